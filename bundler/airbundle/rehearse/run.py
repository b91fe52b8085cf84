"""Rehearses a bundle: from its directory to a report, with nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from airbundle.contract.lock import BundleLock
from airbundle.demo import free_port
from airbundle.rehearse import attempts, payload, room
from airbundle.rehearse.notebook import Notebook
from airbundle.rehearse.report import REPORT_FILE, REPORT_VERSION, RehearsalFailed, RehearsalReport, report_text
from airbundle.rehearse.signals import interruptible, shielded
from airbundle.rehearse.site import Place
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import decode_json, encode, record
from airbundle_onsite.errors import ContractError, UsageError
from airbundle_onsite.system import Runner, Talk
from airbundle_onsite.units import human_bytes
from airbundle_onsite.verify.bundle import trust

__all__ = ["WATCH_SECONDS", "Settings", "examiner", "failure", "rehearse", "report_text"]

WATCH_SECONDS = 5.0
_LOCK = f"{layout.CONFIG}/bundle.lock.json"
_KEPT = ("PATH", "LANG", "LC_ALL", "PYENV_ROOT", "AIRBUNDLE_PYTHON")
_PREFIX = "airbundle-rehearsal-"


@record
class Settings:
    """How to rehearse.

    Attributes:
        allow: names and addresses that the engine may ask for, besides those in the bundle's own spec.
        watch: seconds to listen while the engine is idle.
        directory: where to install for the while; empty for beside the bundle, or for temporary files.
    """

    allow: tuple[str, ...] = ()
    watch: float = WATCH_SECONDS
    directory: str = ""


def rehearse(
    bundle: Path, settings: Settings, *, runner: Runner, environ: Mapping[str, str], talk: Talk
) -> RehearsalReport:
    """Rehearse a bundle here and remove everything again, also when interrupted.

    Args:
        bundle: its directory, whole and published or not yet.
        environ: for DOCKER_HOST, and the few variables that the site's commands get.

    Raises:
        PreflightError: nothing can be rehearsed here.
        UsageError: not enough room for an installation.
    """
    bundle = bundle.resolve()
    manifest = trust(bundle).manifest
    if manifest.bases:
        raise UsageError(
            f"{bundle.name} builds on {', '.join(base.title for base in manifest.bases)}, which is not installed here",
            remedy="rehearse the full bundle, built without --base: what it installs is the same",
        )
    notebook, began = Notebook(talk), time.time()
    with interruptible(), _scratch(bundle, settings.directory, manifest) as work:
        for name in ("home", "tmp", "scratch"):
            (work / name).mkdir()
        place = Place(
            bundle=bundle,
            root=work / "root",
            scratch=work / "scratch",
            port=free_port(),
            watch=settings.watch,
            environment=_environment(environ, work),
        )
        if manifest.needs.runtime == "docker":
            from airbundle.rehearse import engine  # the docker library takes longer to load than all the rest

            isolation, machine = engine.run_in_engine(place, manifest, runner, environ, notebook)
        else:
            room.run_in_room(place, runner, notebook)
            isolation, machine = room.ISOLATION, {}
    made = attempts.gather(
        notebook.contacts,
        began=began,
        allow=(*allowed_by_spec(bundle, manifest), *settings.allow),
        own_names=(socket.gethostname(),),
        shorten=f"{work}/",
    )
    passed = all(step.status != "fail" for step in notebook.steps) and all(attempt.allowed for attempt in made)
    return RehearsalReport(
        report_version=REPORT_VERSION,
        name=manifest.name,
        version=manifest.version,
        parts={part.name: part.sha256 for part in manifest.payload.parts},
        runtime=manifest.needs.runtime,
        isolation=isolation,
        passed=passed,
        steps=tuple(notebook.steps),
        attempts=made,
        not_rehearsed=tuple(notebook.not_rehearsed),
        began=int(began),
        seconds=round(time.time() - began, 3),
        machine={**_machine(), **machine},
    )


def failure(report: RehearsalReport) -> RehearsalFailed | None:
    """The error that names who asked for what, and the cure; None when the rehearsal passed."""
    return None if report.passed else RehearsalFailed(report, attempts.cures(report.offending))


def examiner(
    settings: Settings, *, runner: Runner, environ: Mapping[str, str], talk: Talk
) -> Callable[[Path], Mapping[str, bytes]]:
    """For `airbundle.build.build`: rehearses the bundle there, and gives the report to put beside it.

    The function returned raises RehearsalFailed when the bundle must not leave.
    """

    def examine(bundle: Path) -> Mapping[str, bytes]:
        report = rehearse(bundle, settings, runner=runner, environ=environ, talk=talk)
        failed = failure(report)
        if failed is not None:
            raise failed
        for line in report_text(report).splitlines():
            talk.say(line)
        return {REPORT_FILE: encode(report)}

    return examine


def allowed_by_spec(bundle: Path, manifest: BundleManifest) -> tuple[str, ...]:
    """What the spec in the bundle's own lock allows by name; nothing for a bundle without one."""
    entry = payload.find(manifest, _LOCK)
    if entry is None:
        return ()
    try:
        lock = decode_json(BundleLock, payload.content(bundle, manifest, entry), _LOCK)
    except ContractError:  # of another version of this program
        return _allowed_in(json.loads(payload.content(bundle, manifest, entry)))
    return lock.spec.rehearsal.allow


def _allowed_in(lock: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]]) -> tuple[str, ...]:
    return tuple(lock.get("spec", {}).get("rehearsal", {}).get("allow", ()))


def _environment(environ: Mapping[str, str], work: Path) -> dict[str, str]:
    """No proxies, no caches, no home of this user: as bare as a freshly installed site."""
    kept = {name: environ[name] for name in _KEPT if environ.get(name)}
    return {"PATH": os.defpath, **kept, "HOME": str(work / "home"), "TMPDIR": str(work / "tmp")}


@contextlib.contextmanager
def _scratch(bundle: Path, wanted: str, manifest: BundleManifest) -> Iterator[Path]:
    parent = Path(wanted).resolve() if wanted else bundle.parent
    if not os.access(parent, os.W_OK | os.X_OK):
        if wanted:
            raise UsageError(f"{parent} cannot be written", remedy="name a directory that can")
        parent = Path(tempfile.gettempdir())
    free, needed = shutil.disk_usage(parent).free, manifest.needs.disk
    if free < needed:
        raise UsageError(
            f"a rehearsal installs the bundle for a while: {human_bytes(needed)} needed, {human_bytes(free)} free "
            f"at {parent}",
            remedy="free some space, or name another directory with --dir",
        )
    work = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        work.chmod(0o755)  # engines in containers may run as other users
        yield work
    finally:
        with shielded():
            shutil.rmtree(work, ignore_errors=True)


def _machine() -> dict[str, str]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cores": str(os.cpu_count() or 0),
        "memory": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
    }
