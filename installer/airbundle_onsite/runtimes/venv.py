"""The venv runtime: no container, no root; the bundle's wheels in a virtual environment, kept up by a supervisor.

<release>/venv/                          the environment; venv/airbundle.json is written last
<root>/run/<name>@<version>-<slot>/      supervisor.py, spec.json, supervisor.json, engine.log
"""

from __future__ import annotations

import hashlib
import json
import os
import pkgutil
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Optional

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.launch import LaunchPlan, RuntimeKind
from airbundle_onsite.contract.layout import CONFIG, MODELS, REQUIREMENTS, WHEELS
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.runtimes import process
from airbundle_onsite.runtimes.base import Blob, Environment, Instance, InstanceState, ReleaseFiles
from airbundle_onsite.runtimes.failures import EngineError
from airbundle_onsite.runtimes.pip import clean_environment, compile_argv, dist_name, install_argv, pip_wheel, watched
from airbundle_onsite.runtimes.supervisor import identity
from airbundle_onsite.runtimes.values import fill_plan, physical_cores
from airbundle_onsite.runtimes.venv_python import find_python

Slot = Literal["service", "candidate"]

_INSTALL_SECONDS = 3600
_GRACE = 20.0  # seconds an engine gets to end by itself
_LOG_BYTES = 50_000_000
_TAIL_BYTES = 1_000_000
_MARKER = "airbundle.json"
_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
_ALONE = "its supervisor is gone, so nothing would start it again: --restart mends that"


def create(environment: Environment) -> VenvRuntime:
    """Called by `airbundle_onsite.runtimes.create`."""
    return VenvRuntime(environment)


class VenvRuntime:
    """Runs releases as processes of this user."""

    kind: RuntimeKind = "venv"

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    # --- before a start -----------------------------------------------------------------------------------

    def preflight(self, manifest: BundleManifest, plan: LaunchPlan, fingerprint: Fingerprint) -> list[CheckResult]:
        """Whether processes can be found again; the match of the fingerprint has compared all else already."""
        if identity(os.getpid()) is not None:
            return [CheckResult("runtime.processes", "pass", "processes can be found again by /proc")]
        return [
            CheckResult(
                "runtime.processes",
                "fail",
                "/proc cannot be read: what is started could not be found again, nor stopped",
                expected="/proc mounted",
                actual="nothing readable at /proc/self/stat",
                remedy="mount -t proc proc /proc",
            )
        ]

    def load_images(self, manifest: BundleManifest, blobs: Iterator[Blob]) -> None:
        """There are no images without containers; what streams by is consumed."""
        for blob in blobs:
            for _ in blob.chunks:
                pass

    def has_images(self, manifest: BundleManifest) -> list[str]:
        """Nothing is ever missing."""
        return []

    def prepare(self, release: ReleaseFiles) -> None:
        """Make the virtual environment and install the wheels; nothing to do when that was finished before.

        Raises:
            EngineError: no suitable Python, or pip failed.
        """
        (release.directory / "state").mkdir(exist_ok=True)
        target = release.directory / "venv"
        if _marker(release) == _wanted_marker(release):
            return
        shutil.rmtree(target, ignore_errors=True)
        python = find_python(self._environment.runner, release.plan.needs.python, release.manifest.needs.wheel_tags)
        self._environment.talk.say(f"making a virtual environment with {python.path}")
        self._run([python.path, "-I", "-m", "venv", "--without-pip", str(target)], release, "make the environment")
        if release.plan.wheels:
            self._environment.talk.say(f"installing {len(release.manifest.wheels)} wheels")
            self._install_wheels(release, target)
        partial = target / f"{_MARKER}.partial"
        partial.write_text(_wanted_marker(release), encoding="utf-8")
        partial.replace(target / _MARKER)

    def _install_wheels(self, release: ReleaseFiles, target: Path) -> None:
        python, pip = str(target / "bin" / "python"), release.directory / pip_wheel(release.manifest)
        # The interpreter says where: another one's rule for the directory's name is not copied here.
        site = Path(self._run([python, "-I", "-c", _SITE], release, "find its packages").strip())
        files = {
            dist_name(f"{each.name}-{each.version}"): release.directory / each.path for each in release.manifest.wheels
        }
        wheels = {
            name: path.stat().st_size for name, path in files.items() if path.is_file()
        }  # pip names a missing one
        with watched(wheels, site, self._environment.talk):
            argv = install_argv(python, pip, release.directory / WHEELS, byte_code=False)
            self._run(argv, release, "install the wheels")
        self._run(compile_argv(python, site), release, "write byte code", may_fail=True)

    def _run(self, argv: list[str], release: ReleaseFiles, what: str, *, may_fail: bool = False) -> str:
        """What the command wrote to standard output; everything it wrote is in prepare.log."""
        done = self._environment.runner.run(
            argv, timeout=_INSTALL_SECONDS, env=clean_environment(os.environ), cwd=release.directory
        )
        log = release.directory / "prepare.log"
        with log.open("a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(argv)}\n{done.stdout}{done.stderr}\n")
        if done.code != 0 and not may_fail:
            raise EngineError(
                f"could not {what} (exit code {done.code})",
                remedy=f"the whole output is in {log}",
                details=(done.stdout + done.stderr).splitlines()[-20:],
            )
        return done.stdout

    # --- running ------------------------------------------------------------------------------------------

    def start(self, release: ReleaseFiles, *, slot: Slot, host: str, port: int) -> Instance:
        """Start the engine under a supervisor in the background.

        Raises:
            EngineError: it could not be executed; `details` is the end of its log.
        """
        manifest = release.manifest
        older = self.find(manifest.name, manifest.version, slot)
        if older is not None:
            self.remove(older)
        run = self._run_directory(manifest.name, manifest.version, slot)
        run.mkdir(parents=True, mode=0o755)
        python = str(release.directory / "venv" / "bin" / "python")
        (run / "supervisor.py").write_bytes(_supervisor_source())
        spec = self._spec(release, run, python, slot, host, port)
        _write_private(run / "spec.json", json.dumps(spec))
        done = self._environment.runner.run(
            [python, "-I", str(run / "supervisor.py"), str(run / "spec.json")],
            timeout=60,
            env=clean_environment(os.environ),
        )
        if done.code != 0:
            reason = (done.stdout + done.stderr).strip() or f"exit code {done.code}"
            raise EngineError(
                f"the engine of {manifest.name}-{manifest.version} could not be started: {reason}",
                remedy=f"its log is {run / 'engine.log'}",
                details=_tail(run / "engine.log", 20).splitlines(),
            )
        return Instance(manifest.name, manifest.version, slot, host, port, {"run": str(run)})

    def _spec(self, release: ReleaseFiles, run: Path, python: str, slot: Slot, host: str, port: int) -> dict[str, Any]:
        directory, plan = release.directory, release.plan
        argv, env = fill_plan(
            plan,
            {
                "python": python,
                "site": str(_site_packages(directory / "venv")),
                "model": str(directory / MODELS / plan.model),
                "models": str(directory / MODELS),
                "config": str(directory / CONFIG),
                "state": str(directory / "state"),
                "host": host,
                "port": str(port),
                "served_name": plan.model,
                "threads": str(physical_cores()),
            },
        )
        search = f"{directory / 'venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {
            "argv": argv,
            "env": {**clean_environment(os.environ), "PATH": search, **env},
            "cwd": str(directory / "state"),
            "log": str(run / "engine.log"),
            "state": str(run / "supervisor.json"),
            "restart": slot == "service",
            "grace": _GRACE,
            "backoff": 1,
            "backoff_max": 60,
            "log_bytes": _LOG_BYTES,
            "log_files": 3,
            "host": host,
            "port": port,
        }

    def find(self, name: str, version: str, slot: Slot) -> Optional[Instance]:
        """What was started in that slot and not removed."""
        run = self._run_directory(name, version, slot)
        spec = _read_json(run / "spec.json")
        if spec is None:
            if not run.is_dir():
                return None
            spec = {}  # a crash came between making the directory and writing the file
        host, port = str(spec.get("host", "127.0.0.1")), int(spec.get("port", 0))
        return Instance(name, version, slot, host, port, {"run": str(run)})

    def state(self, instance: Instance) -> InstanceState:
        """What its engine does. One that the supervisor is about to start again counts as exited."""
        run = self._directory(instance)
        if not run.is_dir():
            return InstanceState("absent")
        kept = self._settled(run)
        if kept.get("status") == "running" and process.alive(kept.get("engine")):
            alone = "" if process.alive(kept.get("supervisor")) else _ALONE
            engine = kept["engine"]
            return InstanceState("running", problem=alone, life=process.life(engine), age=process.age(engine))
        return InstanceState("exited", kept.get("code"))

    def _settled(self, run: Path) -> Mapping[str, Any]:
        """What the supervisor wrote, once it has noticed the end of an engine that ended a moment ago."""
        clock = self._environment.clock
        deadline = clock.monotonic() + 2
        while True:
            kept = _read_json(run / "supervisor.json") or {}
            stale = kept.get("status") == "running" and not process.alive(kept.get("engine"))
            if not stale or not process.alive(kept.get("supervisor")) or clock.monotonic() > deadline:
                return kept
            clock.sleep(0.05)

    def logs(self, instance: Instance, lines: int = 200) -> str:
        """The end of the engine's log, also of the file before a rotation when the newest is short."""
        log = self._directory(instance) / "engine.log"
        text = _tail(log, lines)
        missing = lines - len(text.splitlines())
        return _tail(log.with_name("engine.log.1"), missing) + text if missing > 0 else text

    def stop(self, instance: Instance) -> None:
        """End the supervisor and its engine; the log stays.

        Raises:
            EngineError: they could not be ended.
        """
        kept = _read_json(self._directory(instance) / "supervisor.json") or {}
        clock = self._environment.clock
        # The supervisor first, or it would start the engine again; what it left is ended after it.
        gone = process.end(kept.get("supervisor"), clock, grace=_GRACE + 10, group=False)
        kept = _read_json(self._directory(instance) / "supervisor.json") or kept
        gone = process.end(kept.get("engine"), clock, grace=_GRACE, group=True) and gone
        if not gone:
            raise EngineError(
                f"process {(kept.get('engine') or {}).get('pid')} of {instance.name}-{instance.version} does not end",
                remedy="see what it waits for: ps -o pid,stat,wchan,cmd; a process in state D waits for a device",
            )

    def remove(self, instance: Instance) -> None:
        """Stop it and remove its run directory with its log."""
        self.stop(instance)
        shutil.rmtree(self._directory(instance), ignore_errors=True)

    def sweep(self, kept: Sequence[BundleManifest]) -> list[str]:
        """Nothing of it is outside the root."""
        return []

    # --- names --------------------------------------------------------------------------------------------

    def _run_directory(self, name: str, version: str, slot: str) -> Path:
        # With an @, which neither may hold: joined by a dash, demo v2-x and demo-v2 x would be one.
        return self._environment.root / "run" / f"{name}@{version}-{slot}"

    def _directory(self, instance: Instance) -> Path:
        return self._run_directory(instance.name, instance.version, instance.slot)


def _wanted_marker(release: ReleaseFiles) -> str:
    """What a finished environment says of itself: where it was made (its scripts hold that path) and from what."""
    requirements = release.directory / REQUIREMENTS
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest() if release.plan.wheels else ""
    facts = {"path": str(release.directory), "python": release.plan.needs.python, "requirements": digest}
    return json.dumps(facts, sort_keys=True)


def _marker(release: ReleaseFiles) -> str:
    try:
        return (release.directory / "venv" / _MARKER).read_text(encoding="utf-8")
    except OSError:
        return ""


def _site_packages(venv: Path) -> Path:
    found = sorted(venv.glob("lib/python3*/site-packages"))
    return found[0] if found else venv / "lib"


def _supervisor_source() -> bytes:
    source = pkgutil.get_data(__package__, "supervisor.py")  # also from inside a zip
    assert source is not None
    return source


def _write_private(path: Path, text: str) -> None:
    """Only for this user: the environment may hold a key."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _read_json(path: Path) -> Optional[Mapping[str, Any]]:
    try:
        value: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value


def _tail(path: Path, lines: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except OSError:
        return ""
    return "".join(data.decode("utf-8", "replace").splitlines(keepends=True)[-lines:])
