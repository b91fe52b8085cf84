"""How a bundle's wheels are installed: with the bundle's own pip, from its own files, by hash, and nothing else."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Optional

from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.runtimes.failures import EngineError
from airbundle_onsite.runtimes.values import PROXIES
from airbundle_onsite.system import Talk

_DIST = ".dist-info"
_INSTALLING = "installing wheels"
_LOOK_SECONDS = 1.0
_CREDENTIAL = re.compile(r"(?i)token|secret|passw|credential|(api|access|private|auth)_?key")


def pip_wheel(manifest: BundleManifest) -> str:
    """Path of pip's own wheel inside the release. Raises EngineError when the bundle has none."""
    for wheel in manifest.wheels:
        if wheel.name == "pip":
            return wheel.path
    raise EngineError(
        f"bundle {manifest.name}-{manifest.version} has wheels, but no wheel of pip to install them with",
        remedy="build the bundle again with this version of airbundle",
    )


def install_argv(
    python: str, pip: PurePath, wheels: PurePath, target: Optional[PurePath] = None, *, byte_code: bool = True
) -> list[str]:
    """The command that installs ``requirements.txt`` from `wheels`.

    Args:
        python: interpreter to install with.
        pip: pip's wheel; it runs from inside the file, so the host needs no pip of its own.
        wheels: directory with the wheels and their requirements.txt.
        target: install there; None for the interpreter's own environment.
        byte_code: write it too, on one core; `compile_argv` does that on all of them.
    """
    return [
        python,
        *("-I", str(pip / "pip"), "install"),
        *("--isolated", "--no-index", "--no-cache-dir", "--disable-pip-version-check", "--no-input"),
        *("--only-binary=:all:", "--require-hashes", "--progress-bar=off", "--no-warn-script-location"),
        *(() if byte_code else ("--no-compile",)),
        *(() if target is None else ("--target", str(target))),
        *("--find-links", str(wheels), "--requirement", str(wheels / "requirements.txt")),
    ]


def compile_argv(python: str, site: PurePath) -> list[str]:
    """The command that writes the byte code of all modules under `site`, on all cores.

    It may end with 1, as pip's own step may not: packages hold test data that is no valid Python, on purpose.
    """
    return [python, "-I", "-m", "compileall", "-q", "-j", "0", str(site)]


@contextlib.contextmanager
def watched(wheels: Mapping[str, int], site: Path, talk: Talk) -> Iterator[None]:
    """Show how far an installation is, while the block runs.

    pip itself says nothing for minutes; but it writes one ``.dist-info`` for each wheel, in a row.

    Args:
        wheels: bytes of each wheel, by what `dist_name` makes of its project and version.
        site: the directory that they are installed into; it need not be there yet.
        talk: is called from another thread.
    """
    over, total = threading.Event(), sum(wheels.values())

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            with contextlib.suppress(OSError):
                there = [dist_name(path.name[: -len(_DIST)]) for path in site.glob(f"*{_DIST}")]
                talk.progress(_INSTALLING, min(sum(wheels.get(name, 0) for name in there), total - 1), total)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if total:
        talk.progress(_INSTALLING, total, total)


def dist_name(name: str) -> str:
    """``Foo.Bar-1.0+cu130`` as it compares with other spellings of the same project and version."""
    return re.sub(r"[-_.+]+", "-", name).lower()


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without anything that could change what pip or Python do, and with pip's files switched off.

    Without credentials too: an engine that runs for months is not to hold the token of whoever installed it.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("PIP_", "PYTHON", "VIRTUAL_ENV", "CONDA_", "UV_"))
        and name not in PROXIES
        and not _CREDENTIAL.search(name)
    }
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PYTHONNOUSERSITE": "1", "PYTHONUTF8": "1"}
