"""Holds flags against the list of those that a version of an engine takes: data/flags/*.txt, data/removed.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache

from packaging.version import Version

from airbundle.engines.facts import DATA
from airbundle_onsite.contract.record import near_miss, record
from airbundle_onsite.errors import UsageError


@record
class Removed:
    """A flag or variable that is gone.

    Attributes:
        last: newest version known to have it; gone: oldest known not to.
        instead: what takes its place.
    """

    engine: str
    name: str
    last: str
    gone: str
    instead: str


@record
class FlagList:
    """What a version takes.

    Attributes:
        version: that the list was made of.
        exact: whether that is the very version asked for.
        names: flag or variable -> its choices, empty when any value will do or they are not known.
        source: where the list is from.
    """

    version: str
    exact: bool
    names: Mapping[str, tuple[str, ...]]
    source: str


@cache
def flag_list(engine: str, version: str) -> FlagList | None:
    """The list of a version, or of the nearest older one, or else of the oldest there is; None when there is none."""
    paths = {path.stem.removeprefix(f"{engine}-"): path for path in (DATA / "flags").glob(f"{engine}-*.txt")}
    if not paths:
        return None
    held = sorted(paths, key=_order)
    older = [one for one in held if _order(one) <= _order(version)] if version else held
    chosen = older[-1] if older else held[0]
    lines = paths[chosen].read_text(encoding="utf-8").splitlines()
    source = next((line.partition(":")[2].strip() for line in lines if line.startswith("# source:")), "")
    words = [line.split() for line in lines if line and not line.startswith("#")]
    return FlagList(chosen, chosen == version, {word[0]: tuple(word[1:]) for word in words}, source)


def _order(version: str) -> Version:
    return Version(version.lstrip("vb") or "0")


@cache
def removed() -> tuple[Removed, ...]:
    """Every flag and variable known to be gone."""
    rows = tomllib.loads((DATA / "removed.toml").read_text(encoding="utf-8"))["removed"]
    return tuple(Removed(**row) for row in rows)


def check_flags(engine: str, version: str, given: Mapping[str, str]) -> None:
    """Refuse what the version does not take.

    Args:
        given: flag or environment variable -> value. Variables are checked only where the engine's prefix says that
            they are its own.

    Raises:
        UsageError: naming each flag, the version, and what takes its place.
    """
    known = flag_list(engine, version)
    if known is None:
        return
    problems = [problem for name, value in given.items() for problem in _problems(engine, version, known, name, value)]
    if problems:
        raise UsageError(
            f"{engine} {version or known.version} does not take: {'; '.join(problems)}",
            remedy="change or remove it under engine.flags, or name an engine.version that takes it",
        )


def _problems(engine: str, version: str, known: FlagList, name: str, value: str) -> Iterable[str]:
    if not _is_own(engine, name):
        return
    choices = known.names.get(name)
    if choices is None and name.startswith("--no-"):
        choices = known.names.get(f"--{name.removeprefix('--no-')}")
    if choices is None:
        gone = next((row for row in removed() if row.engine == engine and row.name == name), None)
        if gone is not None:
            yield f"{name}, gone since {gone.gone}: {gone.instead}"
        else:
            yield f"{name}{near_miss(name, known.names)} (by the flags of {known.version})"
    elif choices and value and value not in choices and not value.startswith("{"):
        yield f"{name} {value}{near_miss(value, choices)}; it takes {', '.join(choices)}"


_PREFIXES = {"vllm": ("VLLM_",), "sglang": ("SGLANG_", "SGL_"), "ollama": ("OLLAMA_",), "tensorrt-llm": ("TRTLLM_",)}


def _is_own(engine: str, name: str) -> bool:
    return name.startswith(("-", *_PREFIXES.get(engine, ())))
