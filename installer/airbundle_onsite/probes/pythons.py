"""Python interpreters that a virtual environment could be made with."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Optional

from airbundle_onsite.contract.fingerprint import PythonFacts
from airbundle_onsite.probes.files import HostFiles
from airbundle_onsite.system import Runner

_NAME = re.compile(r"python3(\.\d+)?")
_USUAL = ("/usr/bin", "/usr/local/bin", "/bin", "/opt/python/bin", "/opt/conda/bin")
_FAMILIES = ("/opt/python*", "/opt/rh/*/root/usr", "~/.*env/versions/*", "~/.local/share/uv/python/*", "~/miniconda3")
_MOST = 24  # interpreters asked; each costs about 10 ms of one core

# One line: implementation, version, pointer size, whether there is a module venv. Runs on any Python 3, and imports
# next to nothing: importing venv itself, and platform, costs three times what starting an interpreter does.
_QUESTION = (
    "import sys\n"
    "from importlib.machinery import PathFinder\n"
    "venv = PathFinder.find_spec('venv') is not None\n"
    "bits = 64 if sys.maxsize > 2**32 else 32\n"
    "print(sys.implementation.name, '.'.join(map(str, sys.version_info[:3])), bits, int(venv))"
)


def pythons(files: HostFiles, runner: Runner, environ: Mapping[str, str]) -> tuple[PythonFacts, ...]:
    """64-bit CPython 3.9 or newer on PATH and in the usual places, in that order; each once.

    Only the running host can be asked: elsewhere the result is empty.
    """
    if not files.here:
        return ()
    candidates = list(_candidates(files, environ))[:_MOST]
    with ThreadPoolExecutor(max_workers=4) as pool:
        answers = pool.map(lambda path: _ask(path, runner), candidates)
    return tuple(answer for answer in answers if answer is not None)


def _candidates(files: HostFiles, environ: Mapping[str, str]) -> Iterator[str]:
    seen: set[str] = set()
    for directory in _directories(files, environ):
        # python3 before python3.11: the same file is then known by the name a person would type
        for name in sorted(filter(_NAME.fullmatch, files.names(directory)), key=len):
            path = f"{directory}/{name}"
            real = os.path.realpath(path)
            if real not in seen and os.access(path, os.X_OK):
                seen.add(real)
                yield path


def _directories(files: HostFiles, environ: Mapping[str, str]) -> Iterator[str]:
    for directory in environ.get("PATH", "").split(os.pathsep):
        # A version manager's shims are scripts that answer differently from directory to directory.
        # A virtual environment's interpreter would vanish with it; the one it was made from is found elsewhere.
        place = Path(directory)
        # os.path.exists and not Path.exists: a folder that may not be entered has no interpreter for us either.
        own = place.name == "shims" or os.path.exists(place.parent / "pyvenv.cfg")  # noqa: PTH110
        if place.is_absolute() and not own:
            yield directory
    yield from _USUAL
    home = environ.get("HOME", "")
    for family in _FAMILIES:
        if family.startswith("~"):
            if not home.startswith("/"):
                continue
            family = home + family[1:]
        for place in sorted(Path("/").glob(family.lstrip("/"))):
            yield str(place / "bin")


def _ask(path: str, runner: Runner) -> Optional[PythonFacts]:
    done = runner.run([path, "-I", "-S", "-c", _QUESTION], timeout=10)
    words = done.stdout.split()
    if done.code != 0 or len(words) != 4 or words[0] != "cpython" or words[2] != "64":
        return None
    version = words[1]
    if tuple(int(number) for number in version.split(".")[:2]) < (3, 9):
        return None
    return PythonFacts(path=path, version=version, venv=words[3] == "1")
