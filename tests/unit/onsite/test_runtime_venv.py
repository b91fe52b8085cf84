"""The venv runtime: installation, and processes that are found again and never mistaken for others."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import runtime_samples as samples
from airbundle_onsite.contract.launch import PlanNeeds
from airbundle_onsite.runtimes.base import ReleaseFiles
from airbundle_onsite.runtimes.failures import EngineError
from airbundle_onsite.runtimes.pip import clean_environment, dist_name, watched
from airbundle_onsite.runtimes.process import alive, end
from airbundle_onsite.runtimes.supervisor import identity
from airbundle_onsite.runtimes.venv import VenvRuntime
from airbundle_onsite.runtimes.venv_python import find_python
from airbundle_onsite.system import SystemClock, SystemRunner
from parts.process import free_port, wait_until
from parts.wheels import make_wheel


class Counting(SystemRunner):
    """The real runner, which remembers what it ran."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, ...]] = []

    def run(self, argv, **options):  # type: ignore[no-untyped-def]
        self.ran.append(tuple(argv))
        return super().run(argv, **options)


@pytest.fixture
def runner() -> Counting:
    return Counting()


@pytest.fixture
def runtime(tmp_path: Path, runner: Counting) -> VenvRuntime:
    return VenvRuntime(replace(samples.environment(tmp_path / "root"), runner=runner))


def wheel_release(directory: Path, *, wheels: bool = True) -> ReleaseFiles:
    launch = samples.plan("venv", argv=("{python}", "-m", "tinyserver"), wheels=wheels)
    make_wheel(directory / "wheels", "tinyserver", "1.0", ["tinydep>=2"], scripts={"tinyserver": "tinydep:main"})
    make_wheel(directory / "wheels", "tinydep", "2.0", files={"tinydep.py": "def main():\n    print('hello')\n"})
    samples.add_pip(directory / "wheels")
    made = samples.manifest(launch, wheels=samples.wheel_entries(directory / "wheels"))
    return samples.release(directory, made, launch)


# --- installation -----------------------------------------------------------------------------------------


def test_wheels_are_installed_offline_whatever_the_environment_says(
    runtime: VenvRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_conf = tmp_path / "pip.conf"
    pip_conf.write_text("[install]\ntarget = /nonexistent/place\n")
    for name, value in {
        "PIP_CONFIG_FILE": str(pip_conf),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_TARGET": "/nonexistent/place",
        "PYTHONHOME": "/nonexistent",
        "PYTHONPATH": "/nonexistent",
        "https_proxy": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    release = wheel_release(tmp_path / "release 中文")
    runtime.prepare(release)
    python = release.directory / "venv" / "bin" / "python"
    done = subprocess.run(
        [python, "-I", "-c", "import tinyserver, tinydep; print(tinyserver.VERSION)"],
        capture_output=True,
        text=True,
        env={},
    )
    assert done.stdout.strip() == "1.0", done.stderr
    script = subprocess.run([python.with_name("tinyserver")], capture_output=True, text=True, env={})
    assert script.stdout == "hello\n", script.stderr
    assert "Successfully installed" in (release.directory / "prepare.log").read_text()


def test_a_finished_environment_is_kept_and_an_unfinished_one_begun_afresh(
    runtime: VenvRuntime, runner: Counting, tmp_path: Path
) -> None:
    release = wheel_release(tmp_path / "release")
    runtime.prepare(release)
    runs = len(runner.ran)
    runtime.prepare(release)
    assert len(runner.ran) == runs
    (release.directory / "venv" / "airbundle.json").unlink()  # as if killed just before the end
    (release.directory / "venv" / "half-written").write_text("")
    runtime.prepare(release)
    assert not (release.directory / "venv" / "half-written").exists()


def test_an_environment_made_elsewhere_is_made_again(runtime: VenvRuntime, tmp_path: Path) -> None:
    release = wheel_release(tmp_path / "staging")
    runtime.prepare(release)
    (tmp_path / "staging").rename(tmp_path / "release")
    moved = replace(release, directory=tmp_path / "release")
    runtime.prepare(moved)
    script = (tmp_path / "release" / "venv" / "bin" / "tinyserver").read_text()
    assert str(tmp_path / "release") in script
    assert str(tmp_path / "staging") not in script


def test_a_changed_wheel_is_refused(runtime: VenvRuntime, tmp_path: Path) -> None:
    release = wheel_release(tmp_path / "release")
    make_wheel(release.directory / "wheels", "tinydep", "2.0", files={"tinydep.py": "EVIL = 1\n"})
    with pytest.raises(EngineError, match="could not install the wheels") as caught:
        runtime.prepare(release)
    assert any("HASHES" in line for line in caught.value.details)
    assert "prepare.log" in caught.value.remedy


class Shown:
    """A talk that keeps the progress it was told."""

    def __init__(self) -> None:
        self.bars: list[tuple[str, int, int]] = []

    def say(self, line: str) -> None:
        pass

    def progress(self, what: str, done: int, total: int) -> None:
        self.bars.append((what, done, total))


def test_byte_code_is_written_and_progress_ends_with_all_bytes(tmp_path: Path) -> None:
    talk, release = Shown(), wheel_release(tmp_path / "release")
    odd = "def broken(:\n"  # packages bring test data that no Python can read
    make_wheel(release.directory / "wheels", "tinydep", "2.0", files={"tinydep.py": "VALUE = 1\n", "tinybad.py": odd})
    entries = samples.wheel_entries(release.directory / "wheels")
    release = replace(release, manifest=replace(release.manifest, wheels=entries))
    VenvRuntime(replace(samples.environment(tmp_path / "root"), talk=talk)).prepare(release)
    cached = [path.name for path in (release.directory / "venv").rglob("*.pyc")]
    assert any(name.startswith("tinydep.") for name in cached)
    total = sum(path.stat().st_size for path in (release.directory / "wheels").glob("*.whl"))
    assert talk.bars[-1] == ("installing wheels", total, total)


def test_an_installation_under_way_is_shown_wheel_by_wheel(tmp_path: Path) -> None:
    talk, site = Shown(), tmp_path / "site"
    with watched({"foo-bar-1-0-cu130": 60, "other-2": 40}, site, talk):
        (site / "Foo.Bar-1.0+cu130.dist-info").mkdir(parents=True)
        wait_until(lambda: ("installing wheels", 60, 100) in talk.bars, 10, "the first wheel")
    assert talk.bars[-1] == ("installing wheels", 100, 100)
    assert dist_name("Foo.Bar-1.0+cu130") == dist_name("foo_bar-1.0+cu130") == "foo-bar-1-0-cu130"


def test_a_missing_requirement_is_named(runtime: VenvRuntime, tmp_path: Path) -> None:
    release = wheel_release(tmp_path / "release")
    next((release.directory / "wheels").glob("tinydep*")).unlink()
    with pytest.raises(EngineError) as caught:
        runtime.prepare(release)
    assert any("tinydep" in line for line in caught.value.details)


def test_a_bundle_without_pip_is_told_apart(runtime: VenvRuntime, tmp_path: Path) -> None:
    release = wheel_release(tmp_path / "release")
    without = tuple(wheel for wheel in release.manifest.wheels if wheel.name != "pip")
    changed = replace(release, manifest=replace(release.manifest, wheels=without))
    with pytest.raises(EngineError, match="no wheel of pip"):
        runtime.prepare(changed)


def test_the_interpreter_fits_the_plan_and_the_wheels() -> None:
    runner = SystemRunner()
    found = find_python(runner, ">=3.9", ["cp39-abi3-manylinux_2_17_x86_64.manylinux_2_17_aarch64"])
    assert runner.run([found.path, "-c", "import venv"]).code == 0
    with pytest.raises(EngineError, match=r"no Python >=4\.0 on this machine fits the bundle") as caught:
        find_python(runner, ">=4.0", [])
    assert any(os.path.realpath(sys.executable) in line for line in caught.value.details)
    with pytest.raises(EngineError) as caught:
        find_python(runner, "", ["cp27-cp27mu-manylinux1_x86_64"])
    assert any("cannot install a wheel tagged cp27" in line for line in caught.value.details)


def test_an_interpreter_without_venv_is_passed_over() -> None:
    with pytest.raises(EngineError) as caught:
        find_python(samples.ScriptedRunner({}), "", [])
    assert all("has no module venv" in line for line in caught.value.details)


def test_a_clean_environment() -> None:
    dirty = {"PATH": "/bin", "PIP_INDEX_URL": "x", "PYTHONHOME": "x", "HTTP_PROXY": "x", "no_proxy": "x", "LANG": "C"}
    clean = clean_environment(dirty)
    assert {name: clean[name] for name in ("PATH", "LANG", "PIP_CONFIG_FILE")} == {
        "PATH": "/bin",
        "LANG": "C",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    assert not {"PIP_INDEX_URL", "PYTHONHOME", "HTTP_PROXY", "no_proxy"} & set(clean)


# --- processes --------------------------------------------------------------------------------------------


def started(runtime: VenvRuntime, directory: Path, code: str, slot: str = "service"):  # type: ignore[no-untyped-def]
    """The runtime's instance of an engine that is this Python code."""
    launch = samples.plan("venv", argv=("{python}", "-u", "-c", code), needs=PlanNeeds())
    release = samples.release(directory, samples.manifest(launch), launch)
    runtime.prepare(release)
    return runtime.start(release, slot=slot, host="127.0.0.1", port=free_port())  # type: ignore[arg-type]


def kept(instance) -> dict:  # type: ignore[no-untyped-def, type-arg]
    value: dict[str, object] = json.loads((Path(instance.details["run"]) / "supervisor.json").read_text())
    return value


SLEEP = "import time; print('up'); time.sleep(600)"


def test_the_supervisor_outlives_its_starter_and_has_no_terminal(runtime: VenvRuntime, tmp_path: Path) -> None:
    instance = started(runtime, tmp_path / "release", SLEEP)
    supervisor = kept(instance)["supervisor"]["pid"]
    try:
        stat = Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[1]) != os.getpid()  # parent
        assert int(stat[3]) != os.getsid(0)  # session
        assert int(stat[4]) == 0  # terminal
        assert Path(f"/proc/{supervisor}/fd/0").readlink() == Path(os.devnull)
    finally:
        runtime.remove(instance)
    assert not Path(f"/proc/{supervisor}/exe").exists()


def test_the_whole_process_group_ends_with_the_engine(runtime: VenvRuntime, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('child', child.pid)\ntime.sleep(600)"
    )
    instance = started(runtime, tmp_path / "release", code)
    wait_until(lambda: "child" in runtime.logs(instance), 10, "the worker")
    worker = identity(int(runtime.logs(instance).split()[1]))
    assert alive(worker)
    runtime.stop(instance)
    wait_until(lambda: not alive(worker), 5, "the end of the worker")
    runtime.remove(instance)


def test_workers_of_an_engine_that_was_killed_end_too(runtime: VenvRuntime, tmp_path: Path) -> None:
    code = (
        "import os, signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('child', child.pid)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    instance = started(runtime, tmp_path / "release", code, "candidate")
    wait_until(lambda: runtime.state(instance).status == "exited", 10, "the end")
    assert runtime.state(instance).code == -9
    worker = identity(int(runtime.logs(instance).split()[1]))
    wait_until(lambda: not alive(worker), 5, "the end of the worker")
    runtime.remove(instance)


def test_an_engine_that_ignores_term_is_killed_after_its_grace(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"
    state = supervise(directory, [sys.executable, "-u", "-c", code], grace=0.5)
    wait_until(lambda: "up" in (directory / "engine.log").read_text(), 10, "the engine")
    begun = time.monotonic()
    assert end(state()["supervisor"], SystemClock(), grace=10, group=False)
    assert 0.4 < time.monotonic() - begun < 8
    assert not alive(state()["engine"])
    assert state()["status"] == "stopped"


def supervise(directory: Path, argv: list[str], **changes: object):  # type: ignore[no-untyped-def]
    """Run the supervisor by itself; returns a function that reads its state."""
    from airbundle_onsite.runtimes import supervisor

    spec = {
        "argv": argv,
        "env": {"PATH": os.environ["PATH"]},
        "cwd": str(directory),
        "log": str(directory / "engine.log"),
        "state": str(directory / "state.json"),
        "restart": False,
        "grace": 5,
        "backoff": 0.2,
        "backoff_max": 1,
        "log_bytes": 1000,
        "log_files": 2,
        **changes,
    }
    (directory / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-I", str(supervisor.__file__), str(directory / "spec.json")]
    subprocess.run(command, check=True, timeout=20)
    return lambda: json.loads((directory / "state.json").read_text())


def test_restarts_back_off_and_are_counted(tmp_path: Path) -> None:
    code = "import sys, time; print('life', time.monotonic()); sys.exit(7)"
    state = supervise(tmp_path, [sys.executable, "-c", code], restart=True, log_bytes=10**6)
    log = tmp_path / "engine.log"
    wait_until(lambda: log.read_text().count("life") >= 4, 20, "four lives")
    end(state()["supervisor"], SystemClock(), grace=10, group=False)
    lives = [float(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("life")]
    gaps = [later - earlier for earlier, later in itertools.pairwise(lives)]
    assert gaps[0] < gaps[2]
    assert "the engine ended with code 7; it is started again (restart 1)" in log.read_text()
    assert state()["status"] == "stopped"
    assert state()["restarts"] >= 3


def test_the_log_is_rotated_under_a_running_engine(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "for n in range(40):\n    print(f'line {n:04d} ' + 'x' * 90, flush=True); time.sleep(0.05)\n"
        "print('last')"
    )
    state = supervise(tmp_path, [sys.executable, "-c", code])
    wait_until(lambda: state()["status"] == "exited", 30, "the end")
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("engine.log*")}
    assert set(sizes) == {"engine.log", "engine.log.1", "engine.log.2"}
    assert max(sizes.values()) < 3000
    assert "last" in (tmp_path / "engine.log").read_text() + (tmp_path / "engine.log.1").read_text()
    assert "\0" not in (tmp_path / "engine.log").read_text()


def test_a_program_that_cannot_be_executed_is_told_in_the_foreground(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        supervise(tmp_path, [str(tmp_path / "no-such-program")])
    assert json.loads((tmp_path / "state.json").read_text())["status"] == "exited"


def test_a_supervisor_that_was_killed_leaves_an_engine_that_stop_still_ends(
    runtime: VenvRuntime, tmp_path: Path
) -> None:
    instance = started(runtime, tmp_path / "release", SLEEP)
    os.kill(kept(instance)["supervisor"]["pid"], signal.SIGKILL)
    engine = kept(instance)["engine"]
    assert alive(engine)
    assert runtime.state(instance).status == "running"
    runtime.stop(instance)
    assert not alive(engine)
    runtime.remove(instance)


def test_a_stranger_with_a_reused_number_is_left_alone(runtime: VenvRuntime, tmp_path: Path) -> None:
    instance = started(runtime, tmp_path / "release", SLEEP)
    runtime.stop(instance)
    with subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.DEVNULL, start_new_session=True) as stranger:
        try:
            file = Path(instance.details["run"]) / "supervisor.json"
            state = json.loads(file.read_text())
            true = identity(stranger.pid)
            assert true is not None
            for lie in ({"start": true["start"] - 1}, {"boot": "00000000-0000-0000-0000-000000000000"}):
                both = {**true, **lie}
                file.write_text(json.dumps({**state, "status": "running", "engine": both, "supervisor": both}))
                assert runtime.state(instance).status == "exited"
                runtime.stop(instance)
                assert stranger.poll() is None
            runtime.remove(instance)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_crash_before_the_state_was_written_is_cleaned_up(runtime: VenvRuntime, tmp_path: Path) -> None:
    run = tmp_path / "root" / "run" / "demo@1-service"
    run.mkdir(parents=True)
    found = runtime.find("demo", "1", "service")
    assert found is not None
    assert runtime.state(found).status == "exited"
    runtime.remove(found)
    assert not run.exists()


def test_the_environment_of_an_engine_is_not_for_others_to_read(runtime: VenvRuntime, tmp_path: Path) -> None:
    instance = started(runtime, tmp_path / "release", SLEEP)
    try:
        for name in ("spec.json", "engine.log"):
            assert (Path(instance.details["run"]) / name).stat().st_mode & 0o077 == 0
    finally:
        runtime.remove(instance)
