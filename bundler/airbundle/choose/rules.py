"""Flags by rule: each with its condition, value, reason and source, in data/rules/*.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Literal

from airbundle.choose.conditions import Value, holds
from airbundle.choose.situation import filled, printable
from airbundle.choose.table import DATA
from airbundle.engines.facts import EngineFacts, Sure, covers
from airbundle.engines.flaglist import flag_list
from airbundle_onsite.contract.launch import Flag, LogPattern
from airbundle_onsite.contract.record import decode, record


@record
class Rule:
    """One flag under one condition.

    Attributes:
        flag: ``--x`` for the command line, ``X`` for the environment, ``x`` for the container (``ipc``, ``shm``).
        when: see `airbundle.choose.conditions`; versions: of the engine.
        value, reason: with facts in braces; an empty value for a switch.
        source, sure: where from, and how sure.
        optional: whether the flag is left out where the version's list does not have it.
    """

    flag: str
    reason: str
    value: str = ""
    when: str = ""
    versions: str = ""
    source: str = ""
    sure: Sure = "unverified"
    optional: bool = False


@record
class Expectation:
    """A log line that must not come otherwise than planned: it matches only what differs from the plan.

    Attributes:
        at_least: a whole number, as text with facts in it; the line then differs when its number is lower.
    """

    id: str
    regex: str
    meaning: str
    remedy: str
    when: str = ""
    versions: str = ""
    level: Literal["warn", "fail"] = "warn"
    source: str = ""
    at_least: str = ""


@record
class RuleFile:
    """All rules of one engine: the first rule of a flag whose condition holds gives its value."""

    rule: tuple[Rule, ...]
    expect: tuple[Expectation, ...] = ()


@cache
def rule_file(engine: str) -> RuleFile:
    """The rules of an engine; none when it has no file."""
    path = DATA / "rules" / f"{engine}.toml"
    if not path.exists():
        return RuleFile(())
    return decode(RuleFile, tomllib.loads(path.read_text(encoding="utf-8")), path.name)


def rule_engines() -> tuple[str, ...]:
    """Engines that have rules."""
    return tuple(sorted(path.stem for path in (DATA / "rules").glob("*.toml")))


def flags_by_rule(facts: EngineFacts, version: str, known: Mapping[str, Value]) -> tuple[Flag, ...]:
    """Every flag whose rule holds, in the file's order, with the engine's fixed variables after them."""
    taken: dict[str, Flag] = {}
    words = printable(known)
    listed = flag_list(facts.name, version)
    for rule in rule_file(facts.name).rule:
        if rule.flag in taken or not covers(rule.versions, version) or not holds(rule.when, known):
            continue
        if rule.optional and listed is not None and rule.flag not in listed.names:
            continue
        taken[rule.flag] = Flag(
            rule.flag, filled(rule.value, words), filled(rule.reason, words), _source(rule.source, rule.sure)
        )
    for variable in facts.variables:
        if variable.name not in taken and covers(variable.versions, version):
            taken[variable.name] = Flag(variable.name, variable.value, variable.reason, variable.source)
    return tuple(taken.values())


def expectations(facts: EngineFacts, version: str, known: Mapping[str, Value]) -> tuple[LogPattern, ...]:
    """Patterns that match when the engine chose otherwise than planned."""
    words = printable(known)
    found: dict[str, LogPattern] = {}
    for item in rule_file(facts.name).expect:
        if item.id not in found and covers(item.versions, version) and holds(item.when, known):
            meaning = filled(item.meaning, words)
            lowest = int(filled(item.at_least, words)) if item.at_least else None
            regex = filled(item.regex, words)
            found[item.id] = LogPattern(item.id, regex, item.level, meaning, item.remedy, lowest)
    return tuple(found.values())


def _source(source: str, sure: Sure) -> str:
    return f"{source} ({sure})" if source and sure == "unverified" else source
