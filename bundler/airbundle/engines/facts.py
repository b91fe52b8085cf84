"""What is known of each engine, as data: data/facts/*.toml, with versions, sources and how sure each is."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.specifiers import SpecifierSet

from airbundle_onsite.contract.launch import LogPattern
from airbundle_onsite.contract.record import decode, near_miss, record
from airbundle_onsite.errors import UsageError

DATA = Path(__file__).parent / "data"
Sure = Literal["measured", "read", "documented", "unverified"]
"""How sure a fact is: seen running · read in the released files · said by documentation · none of these."""


@record
class Release:
    """Versions of an engine that share what they are built with.

    Attributes:
        versions: a specifier such as ``>=0.20.2,<0.28``.
        torch, cuda, python, glibc: what they need; empty when not known or not used.
        architectures: compute capabilities they hold code for; empty when it is not known.
        source, sure: where from, and how sure.
    """

    versions: str
    torch: str = ""
    cuda: str = ""
    python: str = ""
    glibc: str = ""
    architectures: tuple[str, ...] = ()
    source: str = ""
    sure: Sure = "unverified"


@record
class Kernel:
    """Which GPUs a quantisation method or cache type runs on.

    Attributes:
        name: as ``quantization_config.quant_method`` spells it, or ``kv:fp8`` for a cache type.
        versions: specifier; empty for all.
        capability: lowest; native: from where the arithmetic itself is in that type, below it only storage.
    """

    name: str
    capability: str
    versions: str = ""
    native: str = ""
    source: str = ""
    sure: Sure = "unverified"


@record
class Pattern:
    """A `LogPattern`, and the versions that print it.

    Attributes:
        silent: whether it tells of something weaker than what was asked for: then `level` may be raised or lowered by
            policy.
    """

    id: str
    regex: str
    level: Literal["fact", "warn", "fail"]
    meaning: str
    remedy: str = ""
    versions: str = ""
    silent: bool = False
    source: str = ""


@record
class Variable:
    """An environment variable that is always set, and why."""

    name: str
    value: str
    reason: str
    versions: str = ""
    source: str = ""


@record
class EngineFacts:
    """All of an engine.

    Attributes:
        name, title: for the spec and for people.
        role: what it is for, in a sentence.
        formats: of weights that it reads.
        parallel: ways of using several GPUs: ``tensor``, ``pipeline``, ``data``, ``layers``.
        budget: engine of `airbundle.memory` whose budget it follows.
        plan_for: versions planned for when none is named, newest first.
        image: repository that publishes its image; package: project with its wheels; empty when there is none.
        health, metrics: HTTP paths; empty when there is none.
        utilization: share of the GPU's memory that is planned with.
        releases, kernels, variables, patterns: see their classes.
    """

    name: str
    title: str
    role: str
    formats: tuple[str, ...]
    parallel: tuple[str, ...]
    budget: str
    plan_for: tuple[str, ...]
    health: str
    metrics: str = ""
    image: str = ""
    package: str = ""
    cpu: bool = False
    utilization: float = 0.9
    defaults: Mapping[str, str] = field(default_factory=dict)
    releases: tuple[Release, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    variables: tuple[Variable, ...] = ()
    patterns: tuple[Pattern, ...] = ()

    def release(self, version: str) -> Release:
        """What a version is built with. Raises UsageError for one that no row covers."""
        for row in self.releases:
            if covers(row.versions, version):
                return row
        raise UsageError(
            f"nothing is known of {self.title} {version}",
            remedy=f"name a version that is: {', '.join(row.versions for row in self.releases)}",
        )

    def kernel(self, name: str, version: str) -> Kernel | None:
        """The row of a quantisation method or cache type; None when there is none."""
        return next((row for row in self.kernels if row.name == name and covers(row.versions, version)), None)

    def log_patterns(self, version: str, *, policy: Literal["warn", "fail"] = "warn") -> tuple[LogPattern, ...]:
        """What to look for in the log of a version; a silent downgrade has the level of `policy`."""
        return tuple(
            LogPattern(row.id, row.regex, policy if row.silent else row.level, row.meaning, row.remedy)
            for row in self.patterns
            if covers(row.versions, version)
        )


def covers(specifier: str, version: str) -> bool:
    """Whether a version meets a specifier; an empty specifier is met by all, an empty version is the newest."""
    return not specifier or SpecifierSet(specifier).contains(version or "9999", prereleases=True)


@cache
def engine_facts(name: str) -> EngineFacts:
    """The facts of an engine by its name.

    Raises:
        UsageError: there is no such engine.
        ContractError: its file is wrong; a fault of airbundle itself.
    """
    known = known_engines()
    if name not in known:
        raise UsageError(f"no engine {name!r}{near_miss(name, known)}", remedy=f"write one of: {', '.join(known)}")
    path = DATA / "facts" / f"{name}.toml"
    return decode(EngineFacts, tomllib.loads(path.read_text(encoding="utf-8")), path.name)


def known_engines() -> tuple[str, ...]:
    """Names of all engines there are facts of."""
    return tuple(sorted(path.stem for path in (DATA / "facts").glob("*.toml")))
