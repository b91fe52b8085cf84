"""The decision table of data/table.toml: from the workload to an order of engines."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from airbundle.choose.conditions import Value, holds
from airbundle_onsite.contract.record import decode, near_miss, record
from airbundle_onsite.errors import UsageError

DATA = Path(__file__).parent / "data"


@record
class Workload:
    """A kind of use."""

    name: str
    title: str


@record
class Row:
    """Engines in order of preference for a workload (``any`` for all), under a condition."""

    workload: str
    order: tuple[str, ...]
    reason: str
    source: str
    when: str = ""


@record
class Table:
    """All of it, in the file's order."""

    aliases: Mapping[str, str]
    workload: tuple[Workload, ...]
    row: tuple[Row, ...]


@cache
def table() -> Table:
    """The table."""
    path = DATA / "table.toml"
    return decode(Table, tomllib.loads(path.read_text(encoding="utf-8")), path.name)


def workload_names() -> tuple[str, ...]:
    """Everything that ``serving.workload`` may say."""
    return (*(item.name for item in table().workload), *table().aliases)


def settle_workload(wanted: str, *, concurrency: int, gpus: int) -> tuple[str, str]:
    """The table's name for a workload, and why it is that one.

    Raises:
        UsageError: there is no such workload.
    """
    known = workload_names()
    if wanted not in known:
        raise UsageError(
            f"serving.workload: no workload {wanted!r}{near_miss(wanted, known)}", remedy=f"one of: {', '.join(known)}"
        )
    if wanted == "cpu" or not gpus:
        return "cpu", "the target has no GPU" if not gpus else "asked for"
    if wanted == "chat":
        name = "interactive" if concurrency <= 4 else "concurrent"
        return name, f"chat with {concurrency} request{'s' if concurrency > 1 else ''} at once"
    alias = table().aliases.get(wanted)
    return (alias, f"asked for as {wanted}") if alias else (wanted, "asked for")


def title(workload: str) -> str:
    """A workload for people."""
    return next(item.title for item in table().workload if item.name == workload)


def row_for(workload: str, facts: Mapping[str, Value]) -> Row:
    """The first row whose workload and condition fit. The last row of each workload has no condition."""
    return next(row for row in table().row if row.workload in ("any", workload) and holds(row.when, facts))
