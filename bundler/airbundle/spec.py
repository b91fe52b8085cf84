"""Reads a bundle spec: TOML in, a `BundleSpec` out, or every problem at once with its line."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from airbundle import engines, sources
from airbundle.choose.table import workload_names
from airbundle.contract.spec import BundleSpec
from airbundle.data import data_dir
from airbundle.tomllines import line_of, locate
from airbundle_onsite.contract.record import decode, near_miss
from airbundle_onsite.errors import ContractError, UsageError

STARTERS = {"venv": "demo-smollm2.toml", "docker": "smollm2-docker.toml", "base-wheels": "smollm2-base-wheels.toml"}
"""Kind of starter spec -> the manifest it is a copy of."""

_PLATFORM = re.compile(r"linux/(amd64|arm64(/v8)?)")
_PYTHON = re.compile(r"3\.\d{1,2}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\dZ)?")


def load_spec(path: Path, overrides: Sequence[str] = ()) -> BundleSpec:
    """Read and check a spec.

    Args:
        path: the TOML file.
        overrides: ``key.path=value`` each, applied after reading; the value is TOML, or else taken as text.

    Raises:
        UsageError: the file cannot be read, or anything in it is wrong; `details` has each problem with file, line
            and key, and what was probably meant.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}", remedy="name a TOML file; `airbundle init` writes a first one"
        ) from error
    try:
        text = data.decode("utf-8-sig")  # some editors put a mark before the first line
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}:{line}: found the byte 0x{data[error.start]:02x}, needed UTF-8", remedy="save the file as UTF-8"
        ) from error
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not valid TOML: {error}", remedy="correct that place and try again") from error
    overridden = {_override(raw, override): override for override in overrides}
    try:
        spec, problems = decode(BundleSpec, raw, str(path)), []
    except ContractError as error:
        spec, problems = None, list(error.problems)
    problems += value_problems(raw)
    if spec is None or problems:
        lines = locate(text)
        shown = [_placed(path, lines, overridden, problem) for problem in dict.fromkeys(problems)]
        count = f"{len(shown)} problem{'s' if len(shown) != 1 else ''}"
        raise UsageError(
            f"{path}: {count} in this spec",
            details=shown,
            remedy="correct each and try again; manifests/spec.schema.json lists every key",
        )
    return spec


def starter_spec(kind: str) -> str:
    """The text of a spec to begin with, one of `STARTERS`. Raises UsageError for another kind."""
    if kind not in STARTERS:
        raise UsageError(
            f"no starter spec {kind!r}{near_miss(kind, STARTERS)}", remedy=f"choose one of: {', '.join(STARTERS)}"
        )
    return (data_dir("manifests") / STARTERS[kind]).read_text(encoding="utf-8")


def _override(raw: dict[str, Any], override: str) -> str:
    """Apply one ``key.path=value``; returns the key path."""
    key, equals, text = override.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise UsageError(f"--set {override!r}: no key and value", remedy="write it as --set table.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table: Any = raw
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {override!r}: {name!r} is not a table", remedy="write it as --set table.key=value")
    table[names[-1]] = value
    return ".".join(names)


def _placed(path: Path, lines: Mapping[str, int], overridden: Mapping[str, str], problem: str) -> str:
    """``file:line: key: reason``, or the override at fault in place of file and line."""
    key, _, reason = problem.partition(": ")
    if key == "document":  # a rule between tables: its sentence begins with the key it is about
        key = reason.split(" ", 1)[0]
        problem = reason
    if key in overridden:
        hint = ' (for text, quote it: key="…")' if "expected a string" in reason else ""
        return f"--set {overridden[key]}: {reason}{hint}"
    line = line_of(lines, key)
    return f"{path}:{line}: {problem}" if line else f"{path}: {problem}"


# --- values that the types alone cannot tell ---------------------------------------------------------------------


def value_problems(raw: Mapping[str, Any]) -> list[str]:
    """Wrong values of an otherwise well-typed spec, each as ``key: reason``. Wrong types are left to `decode`."""
    problems: list[str] = []
    for key, kind, check in _CHECKS:
        value = _get(raw, key)
        if type(value) is kind:
            problems += [f"{key}: {reason}" for reason in check(value)]
    problems += _requirement_problems("wheels.requirements", _get(raw, "wheels.requirements"))
    problems += _requirement_problems("wheels.constraints", _get(raw, "wheels.constraints"))
    problems += _index_problems(_get(raw, "wheels.indexes"))
    problems += _smoke_problems(raw.get("smoke"))
    problems += _extra_problems(_get(raw, "model.extra"))
    return problems


def _get(raw: Mapping[str, Any], key: str) -> Any:
    value: Any = raw
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _one_of(what: str, known: Callable[[], Sequence[str]]) -> Callable[[str], Iterator[str]]:
    def check(value: str) -> Iterator[str]:
        names = known()
        if value not in names:
            yield f"no {what} {value!r}{near_miss(value, names)}; there are: {', '.join(names)}"

    return check


def _scheme(value: str) -> Iterator[str]:
    scheme, colon, rest = value.partition(":")
    if colon and not sources.exists(scheme):
        known = sorted(sources.discover())
        yield f"no source {scheme!r}{near_miss(scheme, known)}; there are: {', '.join(known)}"
    elif colon and not rest:
        yield f"nothing after {value!r}"


def _profiles() -> list[str]:
    return sorted(path.stem for path in data_dir("profiles").glob("*.toml"))


def _within(low: int, high: int) -> Callable[[int], Iterator[str]]:
    def check(value: int) -> Iterator[str]:
        if not low <= value <= high:
            yield f"{value} is not within {low} to {high}"

    return check


def _like(pattern: re.Pattern[str], example: str) -> Callable[[str], Iterator[str]]:
    def check(value: str) -> Iterator[str]:
        if value and not pattern.fullmatch(value):
            yield f"{value!r} is not like {example}"

    return check


def _address(value: str) -> Iterator[str]:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        yield f"{value!r} is not an IP address (127.0.0.1 for this host alone, 0.0.0.0 for every interface)"


def _index(value: str) -> Iterator[str]:
    if value and not re.match(r"https?://", value):
        yield f"{value!r} is not an http or https URL"
    if re.match(r"\w+://[^/]*@", value):
        yield "holds credentials, which would go into the bundle: put them into ~/.netrc"


_CHECKS: tuple[tuple[str, type, Callable[[Any], Iterator[str]]], ...] = (
    ("engine.name", str, _one_of("engine", lambda: sorted(engines.discover()))),
    ("target.profile", str, _one_of("profile", _profiles)),
    ("target.gpus", int, _within(0, 64)),
    ("target.python", str, _like(_PYTHON, "3.11")),
    ("model.source", str, _scheme),
    ("image.source", str, _scheme),
    ("image.build.base", str, _scheme),
    ("image.platform", str, _like(_PLATFORM, "linux/amd64")),
    ("wheels.index", str, _index),
    ("wheels.before", str, _like(_TIME, "2026-11-30 or 2026-11-30T12:00:00Z")),
    ("serving.context", int, _within(64, 16_777_216)),
    ("serving.concurrency", int, _within(1, 4096)),
    ("serving.ttft_ms", int, _within(0, 3_600_000)),
    ("serving.port", int, _within(1, 65535)),
    ("serving.workload", str, _one_of("workload", workload_names)),
    ("serving.host", str, _address),
)


def _requirement_problems(key: str, lines: Any) -> Iterator[str]:
    if not isinstance(lines, list):
        return
    if not lines:
        yield f"{key}: empty: name the engine's package at least" if key.endswith("requirements") else f"{key}: empty"
    for index, line in enumerate(lines):
        if not isinstance(line, str):
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            yield f"{key}[{index}]: {line!r} is not a requirement: {str(error).splitlines()[0]}"
            continue
        if requirement.url:
            yield f"{key}[{index}]: {line!r} names a URL; only an index can be locked"


def _index_problems(tables: Any) -> Iterator[str]:
    for index, table in enumerate(tables if isinstance(tables, list) else ()):
        if not isinstance(table, Mapping):
            continue
        yield from (f"wheels.indexes[{index}].url: {reason}" for reason in _index(str(table.get("url", ""))))
        if table.get("packages") == []:
            yield f"wheels.indexes[{index}].packages: empty: name the packages that come from there"


def _extra_problems(tables: Any) -> Iterator[str]:
    for index, table in enumerate(tables if isinstance(tables, list) else ()):
        source = table.get("source") if isinstance(table, Mapping) else None
        if isinstance(source, str):
            yield from (f"model.extra[{index}].source: {reason}" for reason in _scheme(source))


def _smoke_problems(tests: Any) -> Iterator[str]:
    for index, test in enumerate(tests if isinstance(tests, list) else ()):
        for key in ("expect", "reject"):
            patterns = test.get(key) if isinstance(test, Mapping) else None
            for pattern in patterns if isinstance(patterns, list) else ():
                try:
                    re.compile(str(pattern))
                except re.error as error:
                    yield f"smoke[{index}].{key}: {pattern!r} is not a regular expression: {error}"
