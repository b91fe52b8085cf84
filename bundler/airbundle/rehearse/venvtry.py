"""The venv runtime where this machine cannot start the engine: install the wheels without a network, try the engine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from airbundle.rehearse import payload
from airbundle.rehearse.notebook import Recorder
from airbundle.rehearse.report import Step
from airbundle.rehearse.rooms import Served
from airbundle.rehearse.site import Place
from airbundle.rehearse.tries import install_argv, run_tries
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import record
from airbundle_onsite.system import Completed, Runner

_INSTALL_SECONDS = 3600
_TAIL = 30
_MINORS = range(14, 8, -1)


def try_without_start(place: Place, manifest: BundleManifest, runner: Runner, recorder: Recorder) -> None:
    """Install the wheels as the site would, and make the plans' tries; what cannot be done is said."""
    plans = [plan for plan in manifest.launch if plan.runtime == "venv"]
    if not plans or manifest.needs.profile.arch != os.uname().machine:
        recorder.left_out(f"the engine itself: it is built for {manifest.needs.profile.arch}")
        return
    python = find_python(plans[0].needs.python, place.environment, runner)
    if python is None:
        recorder.left_out(
            f"installing the wheels and trying the engine: no Python {plans[0].needs.python} on this machine"
        )
        return
    directory = place.scratch / "release"
    payload.extract(place.bundle, manifest, directory, frozenset({"wheel", "config"}))
    (directory / "state").mkdir(exist_ok=True)
    if _install(place, manifest, plans[0], python, directory, runner, recorder):
        run_tries(plans, VenvRoom(place, manifest, directory, runner), recorder)


class VenvRoom:
    """See `airbundle.rehearse.rooms.Room`: a virtual environment, in whatever network this process is in."""

    def __init__(self, place: Place, manifest: BundleManifest, directory: Path, runner: Runner) -> None:
        self._place, self._manifest = place, manifest
        self._directory, self._runner = directory, runner

    def values(self, plan: LaunchPlan) -> dict[str, str]:
        directory = self._directory
        found = sorted((directory / "venv").glob("lib/python3*/site-packages"))
        return {
            "python": str(directory / "venv" / "bin" / "python"),
            "site": str(found[0] if found else directory),
            "model": str(directory / layout.model_path(plan.model)),
            "models": str(directory / layout.MODELS),
            "config": str(directory / layout.CONFIG),
            "state": str(directory / "state"),
            "host": "127.0.0.1",
            "port": str(self._place.port),
            "served_name": plan.model,
            "threads": str(os.cpu_count() or 1),
            "probes": str(directory / "probes"),
        }

    def weights(self, plan: LaunchPlan) -> int:
        return sum(model.size for model in self._manifest.models)

    def prepare(self, probes: Mapping[str, str], model: str) -> None:
        payload.write_texts(self._directory / "probes", probes)
        if model:
            payload.extract_models(self._place.bundle, self._manifest, self._directory, whole=model == "whole")

    def execute(self, plan: LaunchPlan, argv: Sequence[str], variables: Mapping[str, str], seconds: int) -> Completed:
        cwd = self._directory / "state"
        return self._runner.run(argv, timeout=seconds, env=self._environment(variables), cwd=cwd)

    @contextlib.contextmanager
    def serve(self, plan: LaunchPlan, argv: Sequence[str], variables: Mapping[str, str]) -> Iterator[Served]:
        log = self._directory / "server.log"
        with log.open("wb") as handle:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env=self._environment(variables),
                cwd=self._directory / "state",
                start_new_session=True,
            )
        try:
            yield _Process(process, log, ("127.0.0.1", self._place.port))
        finally:
            with contextlib.suppress(ProcessLookupError):  # it may have ended, with all that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        search = f"{self._directory / 'venv' / 'bin'}{os.pathsep}{self._place.environment.get('PATH', os.defpath)}"
        return {**self._place.environment, "PATH": search, **variables}


@record
class _Process:
    process: subprocess.Popen[bytes]
    path: Path
    address: tuple[str, int]

    def ended(self) -> int | None:
        return self.process.poll()

    def log(self) -> str:
        return self.path.read_text(encoding="utf-8", errors="replace")


def find_python(wanted: str, environment: Mapping[str, str], runner: Runner) -> str | None:
    """The newest Python on PATH that a plan's specifier takes."""
    try:
        specifier = SpecifierSet(wanted)
    except InvalidSpecifier:
        return None
    search = environment.get("PATH", os.defpath)
    for name in ["python3", *(f"python3.{minor}" for minor in _MINORS)]:
        path = shutil.which(name, path=search)
        if path is None:
            continue
        done = runner.run([path, "-I", "-c", "import platform; print(platform.python_version())"], env=environment)
        if done.code == 0 and specifier.contains(done.stdout.strip(), prereleases=True):
            return path
    return None


def _install(
    place: Place,
    manifest: BundleManifest,
    plan: LaunchPlan,
    python: str,
    directory: Path,
    runner: Runner,
    recorder: Recorder,
) -> bool:
    recorder.begin("wheels", f"install {len(manifest.wheels)} wheels without a network")
    began = time.monotonic()
    venv = directory / "venv"
    commands = [[python, "-I", "-m", "venv", "--without-pip", str(venv)]]
    pip = next((wheel.path for wheel in manifest.wheels if wheel.name == "pip"), None)
    if plan.wheels and pip is not None:
        target = str(venv / "bin" / "python")
        commands.append(install_argv(target, str(directory / pip), str(directory / layout.WHEELS)))
    code, said = 0, ""
    for argv in commands:
        done = runner.run(argv, timeout=_INSTALL_SECONDS, env=place.environment, cwd=directory)
        code, said = done.code, done.stdout + done.stderr
        if code:
            break
    summary = f"{len(manifest.wheels)} wheels installed by the bundled pip" if not code else "pip failed"
    evidence = tuple(said.splitlines()[-_TAIL:]) if code else ()
    seconds = round(time.monotonic() - began, 3)
    recorder.done(Step("wheels", "fail" if code else "pass", summary, seconds, exit_code=code, evidence=evidence))
    return not code
