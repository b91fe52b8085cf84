"""Chooses the interpreter of this host that a plan's wheels are installed for."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from airbundle_onsite.contract.record import record
from airbundle_onsite.runtimes.failures import EngineError
from airbundle_onsite.system import Runner

_PROBE = "import sys, venv; print(sys.version_info[0], sys.version_info[1], sys.version_info[2])"
_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|~=|>|<)\s*(\d+(?:\.\d+)*)(\.\*)?\s*")


@record
class Interpreter:
    """A Python of this host that can make virtual environments: its path (or name on PATH) and version."""

    path: str
    version: tuple[int, ...]


def find_python(runner: Runner, specifier: str) -> Interpreter:
    """The first interpreter that satisfies `specifier`: the running one, then the newest on PATH.

    Args:
        specifier: such as ``">=3.10,<3.13"``; empty for any.

    Raises:
        EngineError: there is none; names what was found.
    """
    seen = []
    for path in _candidates():
        done = runner.run([path, "-I", "-c", _PROBE], timeout=20)
        if done.code != 0:
            if "venv" in done.stderr:
                seen.append(f"{path}: has no module venv")
            continue
        version = tuple(int(word) for word in done.stdout.split())
        if satisfies(version, specifier):
            return Interpreter(path, version)
        seen.append(f"{path}: {'.'.join(map(str, version))}")
    raise EngineError(
        f"no Python {specifier or 'with the module venv'} on this machine",
        details=list(dict.fromkeys(seen)),
        remedy="install one from the distribution's medium, or take a bundle that runs in a container",
    )


def satisfies(version: tuple[int, ...], specifier: str) -> bool:
    """Whether a final release `version` satisfies a version specifier. Raises ValueError for one it cannot read."""
    for clause in filter(None, (part.strip() for part in specifier.split(","))):
        match = _CLAUSE.fullmatch(clause)
        if not match:
            raise ValueError(f"version specifier {clause!r} is not like >=3.10")
        if not _holds(version, match[1], tuple(int(part) for part in match[2].split(".")), bool(match[3])):
            return False
    return True


def _holds(version: tuple[int, ...], operator: str, wanted: tuple[int, ...], prefix: bool) -> bool:
    if operator == "~=":
        return _padded(version) >= _padded(wanted) and version[: len(wanted) - 1] == wanted[:-1]
    if prefix:
        equal = version[: len(wanted)] == wanted
        return equal if operator == "==" else not equal
    left, right = _padded(version), _padded(wanted)
    return {
        ">=": left >= right,
        "<=": left <= right,
        "==": left == right,
        "!=": left != right,
        ">": left > right,
        "<": left < right,
    }[operator]


def _padded(version: tuple[int, ...]) -> tuple[int, ...]:
    return version + (0,) * (4 - len(version))


def _candidates() -> Iterator[str]:
    yield sys.executable
    for minor in range(14, 8, -1):
        yield f"python3.{minor}"
    yield "python3"
