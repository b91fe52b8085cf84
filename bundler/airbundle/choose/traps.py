"""Combinations known to go wrong (data/traps.toml), held against a plan's facts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Literal

from airbundle.choose.conditions import Value, holds
from airbundle.choose.situation import filled, printable
from airbundle.choose.table import DATA
from airbundle.engines.facts import Sure
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import decode, record


@record
class Trap:
    """One of them; texts have facts in ``<angle brackets>``.

    Attributes:
        when: see `airbundle.choose.conditions`.
        level: ``fail`` when nothing runs, ``warn`` when it runs worse, or may not.
        symptom, found, needed, cure: for the check's result.
    """

    id: str
    when: str
    level: Literal["warn", "fail"]
    symptom: str
    found: str
    needed: str
    cure: str
    source: str
    sure: Sure


@record
class _Traps:
    trap: tuple[Trap, ...]


@cache
def all_traps() -> tuple[Trap, ...]:
    """Every trap, in the file's order."""
    path = DATA / "traps.toml"
    return decode(_Traps, tomllib.loads(path.read_text(encoding="utf-8")), path.name).trap


def traps_met(facts: Mapping[str, Value]) -> tuple[CheckResult, ...]:
    """A result for each trap whose condition holds."""
    words = printable(facts)
    return tuple(
        CheckResult(
            f"trap.{trap.id}",
            trap.level,
            filled(trap.symptom, words),
            expected=filled(trap.needed, words),
            actual=filled(trap.found, words),
            remedy=trap.cure,
            evidence=(f"source: {trap.source}", f"how sure: {trap.sure}"),
        )
        for trap in all_traps()
        if holds(trap.when, facts)
    )
