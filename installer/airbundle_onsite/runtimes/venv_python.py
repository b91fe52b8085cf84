"""Chooses the interpreter of this host that a plan's wheels are installed for."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Optional

from airbundle_onsite.contract.fingerprint import PythonFacts
from airbundle_onsite.runtimes.failures import EngineError
from airbundle_onsite.system import Runner
from airbundle_onsite.versions import numbers, satisfies, wheel_fits

_PROBE = "import sys, venv; print('.'.join(map(str, sys.version_info[:3])))"
_SYSTEM = ("/usr/", "/bin/", "/opt/")


def find_python(runner: Runner, specifier: str, wheel_tags: Sequence[str]) -> PythonFacts:
    """The interpreter to use: one of the system before one in a person's home, which may go away; then the newest.

    Args:
        specifier: such as ``">=3.10,<3.13"``; empty for any.
        wheel_tags: tag sets of the wheels that are not pure Python.

    Raises:
        EngineError: there is none; names what was found.
    """
    found, rejected = [], []
    for path in dict.fromkeys(_candidates()):
        done = runner.run([path, "-I", "-c", _PROBE], timeout=20)
        if done.code != 0:
            rejected.append(f"{path}: has no module venv")
            continue
        version = done.stdout.strip()
        reason = _unfit(version, specifier, wheel_tags)
        if reason:
            rejected.append(f"{path}: {version} {reason}")
        else:
            found.append(PythonFacts(path, version, venv=True))
    if not found:
        raise EngineError(
            f"no Python {specifier} on this machine fits the bundle".replace("  ", " "),
            details=rejected,
            remedy="install one from the distribution's medium, or take a bundle that runs in a container",
        )
    return max(found, key=lambda python: (python.path.startswith(_SYSTEM), numbers(python.version)))


def _unfit(version: str, specifier: str, wheel_tags: Sequence[str]) -> str:
    if not satisfies(version, specifier):
        return f"is not {specifier}"
    glibc = _glibc()
    for tags in wheel_tags:
        if not wheel_fits(tags, python=version, machine=platform.machine(), glibc=glibc):
            return f"cannot install a wheel tagged {tags}"
    return ""


def _glibc() -> Optional[str]:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")[2] or None
    except (ValueError, OSError):
        return None


def _candidates() -> Iterator[str]:
    names = ["python3", *(f"python3.{minor}" for minor in range(9, 20))]
    search = os.environ.get("PATH", os.defpath).split(os.pathsep)
    for directory in [*search, "/usr/local/bin", "/usr/bin"]:
        for name in names:
            path = shutil.which(name, path=directory)
            # A version manager's shims answer differently from one directory to the next.
            if path is not None and os.path.basename(directory) != "shims":  # noqa: PTH119
                yield os.path.realpath(path)
    if sys.executable:
        yield os.path.realpath(sys.executable)
