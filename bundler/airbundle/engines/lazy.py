"""What engines fetch by themselves once they run, and whether a bundle has it; pure, apart from reading the data."""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from airbundle.contract.lock import BundleLock
from airbundle_onsite.contract.checks import CheckResult, Status
from airbundle_onsite.contract.record import decode, record


@record
class NeededFile:
    """A file that must be in the bundle: its name there, where it comes from, and its SHA-256."""

    name: str
    url: str
    sha256: str


@record
class LazyNeed:
    """One row of data/lazy.toml; what the fields mean stands there."""

    id: str
    engines: tuple[str, ...]
    what: str
    source: str
    sure: str
    versions: str = ""
    wheel: str = ""
    model_types: tuple[str, ...] = ()
    custom_code: bool = False
    files: tuple[NeededFile, ...] = ()
    same_version: tuple[str, ...] = ()
    absent: Literal["warn", "fail"] = "warn"
    differs: Literal["warn", "fail"] = "fail"
    tools: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    remedy: str = ""


@record
class _Needs:
    need: tuple[LazyNeed, ...]


@functools.cache
def all_needs() -> tuple[LazyNeed, ...]:
    """Everything known."""
    text = importlib.resources.files("airbundle.engines").joinpath("data", "lazy.toml").read_text(encoding="utf-8")
    return decode(_Needs, tomllib.loads(text), "engines/data/lazy.toml").need


def lazy_needs(
    engine: str,
    version: str,
    facts: Mapping[str, str],
    wheels: Mapping[str, str],
    known: Sequence[LazyNeed] | None = None,
) -> tuple[LazyNeed, ...]:
    """What this engine would want from outside with this model.

    Args:
        engine: its name.
        version: its version; rows limited to versions hold for one that cannot be read.
        facts: of the model: ``model_type``, and ``custom_code`` when its Python code is packed.
        wheels: project -> version, of the bundle.
        known: in place of the data.
    """
    return tuple(
        need
        for need in (all_needs() if known is None else known)
        if engine in need.engines
        and _within(version, need.versions)
        and (not need.wheel or need.wheel in wheels)
        and (not need.model_types or facts.get("model_type", "") in need.model_types)
        and (not need.custom_code or bool(facts.get("custom_code")))
    )


def needs_in(engine: str, version: str, lock: BundleLock) -> tuple[LazyNeed, ...]:
    """`lazy_needs` of a locked bundle."""
    model = lock.models[0]
    facts = {"model_type": model.facts.get("model_type", ""), "custom_code": ",".join(model.custom_code)}
    return lazy_needs(engine, version, facts, wheel_versions(lock))


def wheel_versions(lock: BundleLock) -> dict[str, str]:
    """Project -> version, of the bundle's wheels."""
    return {wheel.name: wheel.version for wheel in lock.wheels}


def plan_environment(engine: str, version: str, lock: BundleLock) -> dict[str, str]:
    """Variables for an engine's launch plans: they keep it quiet, and point it to what was packed for it."""
    found: dict[str, str] = {}
    for need in needs_in(engine, version, lock):
        wanted = {file.sha256 for file in need.files}
        holder = next((model for model in lock.models if wanted <= {file.sha256 for file in model.files}), None)
        if holder is not None:
            found |= environment([need], f"{{models}}/{holder.served_name}")
    return found


def _within(version: str, wanted: str) -> bool:
    try:
        return not wanted or SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def lazy_check(
    need: LazyNeed, wheels: Mapping[str, str], hashes: Collection[str], tools: Collection[str] | None
) -> CheckResult:
    """Whether a bundle has what is needed.

    Args:
        need: what `lazy_needs` gave.
        wheels: project -> version, of the bundle.
        hashes: SHA-256 of the files that stand beside the model.
        tools: programs known to be where the engine runs; None when nobody knows.
    """
    identifier = f"lazy.{need.id}"
    lacking = [file for file in need.files if file.sha256 not in hashes]
    if lacking:
        names = ", ".join(file.name for file in lacking)
        return CheckResult(
            identifier,
            "fail",
            f"{need.what}: {names} not in the bundle",
            evidence=tuple(f"{file.name}: {file.url}, SHA-256 {file.sha256}" for file in lacking),
            remedy=need.remedy,
        )
    if need.same_version:
        return _same_version(identifier, need, wheels)
    lost = [tool for tool in need.tools if tool not in (tools if tools is not None else need.tools)]
    if lost:
        return CheckResult(identifier, "warn", f"{need.what}: {', '.join(lost)} wanted", remedy=need.remedy)
    status: Status = "skip" if need.tools and tools is None else "pass"
    return CheckResult(identifier, status, need.what)


def _same_version(identifier: str, need: LazyNeed, wheels: Mapping[str, str]) -> CheckResult:
    wanted = Version(wheels[need.wheel]).public
    there = {name: Version(wheels[name]).public for name in need.same_version if name in wheels}
    if wanted in there.values():
        return CheckResult(identifier, "pass", f"{need.what}: packed, version {wanted}")
    found = ", ".join(f"{name} {version}" for name, version in there.items()) or "none of them"
    return CheckResult(
        identifier,
        need.differs if there else need.absent,
        f"{need.what}: {need.wheel} is {wanted}, and beside it is {found}",
        expected=f"{' or '.join(need.same_version)} {wanted}",
        actual=found,
        remedy=need.remedy,
    )


def environment(needs: Sequence[LazyNeed], vocabulary: str) -> dict[str, str]:
    """Variables for the engine.

    Args:
        needs: what `lazy_needs` gave.
        vocabulary: where the engine sees the packed `files`; rows with files need it.
    """
    return {
        name: value.replace("{vocabulary}", vocabulary) for need in needs for name, value in sorted(need.env.items())
    }
