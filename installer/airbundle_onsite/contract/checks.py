"""The one result type of verify, preflight, match, smoke and bench gates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import ExitCode

Status = Literal["pass", "warn", "fail", "skip"]


@record
class CheckResult:
    """One fact checked.

    Attributes:
        id: stable dotted name, e.g. ``verify.part`` or ``match.driver``; never translated.
        status: outcome.
        summary: one line for a person.
        expected: what was needed, as text; empty where that makes no sense.
        actual: what was found, as text.
        remedy: what to do when the status is not ``pass``.
        evidence: further lines (log excerpts, lists of names).
    """

    id: str
    status: Status
    summary: str
    expected: str = ""
    actual: str = ""
    remedy: str = ""
    evidence: tuple[str, ...] = ()


def exit_code(checks: Iterable[CheckResult], failure: ExitCode, *, strict: bool = False) -> ExitCode:
    """`failure` when any check failed; WARNINGS when `strict` and any warned; else OK."""
    statuses = {check.status for check in checks}
    if "fail" in statuses:
        return failure
    if strict and "warn" in statuses:
        return ExitCode.WARNINGS
    return ExitCode.OK
