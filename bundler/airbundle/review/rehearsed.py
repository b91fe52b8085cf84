"""What the rehearsal showed and what it did not, for the page."""

from __future__ import annotations

from collections.abc import Iterator

from airbundle.rehearse.report import TRY, RehearsalReport, Step
from airbundle.review.tables import Column, Fact, Table, moment
from airbundle_onsite.contract.record import record
from airbundle_onsite.units import human_seconds

_WORDS = {"pass": "passed", "warn": "passed, with a remark", "fail": "failed", "skip": "not rehearsed"}


@record
class RehearsalView:
    """The report as the page shows it.

    Attributes:
        facts: where and how it was made.
        steps: each with its outcome; those that stand for a start with everything that they showed.
        missing: what was not rehearsed, one sentence each.
    """

    facts: tuple[Fact, ...]
    steps: Table
    missing: tuple[str, ...]


def rehearsal_view(report: RehearsalReport) -> RehearsalView:
    """The view of a report."""
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items() if name != "memory")
    reached = ", ".join(dict.fromkeys(f"{attempt.target} ({attempt.allowed})" for attempt in report.attempts))
    facts = (
        ("When", f"{moment(report.began)}, for {human_seconds(report.seconds)}"),
        ("Network", report.isolation),
        ("Asked of the network", reached or "nothing"),
        ("Where", machine),
    )
    columns = (Column("Step", "word"), Column("Outcome"), Column("What it showed"), Column("Took", "number"))
    rows = tuple(row for step in report.steps for row in _rows(step))
    return RehearsalView(facts, Table("rehearsal-steps", "Steps", columns, rows), report.not_rehearsed)


def _rows(step: Step) -> Iterator[tuple[str, ...]]:
    yield (step.id, _WORDS[step.status], step.summary, human_seconds(step.seconds))
    for check in step.checks if step.id.startswith(TRY) else ():
        yield (f"  {check.id.removeprefix('rehearsal.')}", _WORDS[check.status], check.summary, "")
