"""RehearsalReport: what a rehearsal did and saw; rehearsal.json beside the bundle's parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal

from airbundle_onsite.contract.checks import CheckResult, Status
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import AirbundleError, ExitCode
from airbundle_onsite.units import human_seconds

REPORT_FILE = "rehearsal.json"
REPORT_VERSION = 1
TRY = "try."
"""How ids of steps begin that stand in for a start."""
_MARKS = {"pass": "ok  ", "warn": "WARN", "fail": "FAIL", "skip": "skip"}


@record
class Step:
    """One step of the rehearsal.

    Attributes:
        id: ``verify``, ``preflight``, ``install``, ``generate``, ``status``, ``log``, ``uninstall``, or ``try.<id>``
            for what stands in for a start that is not possible here.
        status: outcome.
        summary: one line for a person.
        seconds: how long it took.
        command: what was run, without its directories; empty when nothing was.
        exit_code: of the command.
        checks: what it found.
        evidence: the end of what it said, when it failed.
    """

    id: str
    status: Status
    summary: str
    seconds: float = 0.0
    command: tuple[str, ...] = ()
    exit_code: int = 0
    checks: tuple[CheckResult, ...] = ()
    evidence: tuple[str, ...] = ()


@record
class Attempt:
    """Something that a process tried to reach, all its tries together.

    Attributes:
        target: the name asked for, or the address when no name led to it.
        kind: which of the two it is.
        ports: as ``443/tcp``; empty when only the name was asked.
        details: what was said on connecting: ``TLS``, ``GET /path``; record types asked for.
        count: questions and connections.
        at: when it was first seen, as ``2026-01-31T12:00:00Z``.
        seconds: the same, since the rehearsal began.
        step: id of the step during which it was first seen.
        pid: process, as numbered where the engine ran; 0 when it could not be found.
        argv: its command line, secrets replaced.
        allowed: why it fails nothing; empty for one that does.
    """

    target: str
    kind: Literal["name", "address"]
    ports: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    count: int = 1
    at: str = ""
    seconds: float = 0.0
    step: str = ""
    pid: int = 0
    argv: tuple[str, ...] = ()
    allowed: str = ""

    @property
    def process(self) -> str:
        """The process in words."""
        if not self.argv:
            return f"process {self.pid}" if self.pid else "a process that was gone before it could be named"
        return f"process {self.pid}: {' '.join(self.argv)}"

    def line(self) -> str:
        """One line for a person."""
        ports = f" ({', '.join(self.ports)})" if self.ports else ""
        details = f" [{', '.join(self.details)}]" if self.details else ""
        times = f", {self.count} times" if self.count > 1 else ""
        return f"{self.target}{ports}{details}, by {self.process}, at {self.at}{times}, during {self.step}"


@record
class RehearsalReport:
    """Everything a rehearsal did and saw.

    Attributes:
        report_version: of this document.
        name, version: the bundle's.
        parts: SHA-256 of each part rehearsed, by name: what the report is about.
        runtime: which runtime was rehearsed.
        isolation: how the network was cut, in words.
        passed: whether every step passed and nothing was asked of a network that is not allowed.
        steps: in order.
        attempts: in order of time.
        not_rehearsed: what could not be, one sentence each.
        began: seconds since the epoch; seconds: how long it took.
        machine: facts on where it was done.
    """

    report_version: int
    name: str
    version: str
    parts: Mapping[str, str]
    runtime: str
    isolation: str
    passed: bool
    steps: tuple[Step, ...]
    attempts: tuple[Attempt, ...] = ()
    not_rehearsed: tuple[str, ...] = ()
    began: int = 0
    seconds: float = 0.0
    machine: Mapping[str, str] = field(default_factory=dict)

    @property
    def offending(self) -> tuple[Attempt, ...]:
        """The attempts that are not allowed."""
        return tuple(attempt for attempt in self.attempts if not attempt.allowed)

    @property
    def failed(self) -> tuple[Step, ...]:
        """The steps that failed."""
        return tuple(step for step in self.steps if step.status == "fail")


class RehearsalFailed(AirbundleError):
    """The bundle asked the network for something, or a step failed. The bundle must not leave as it is.

    Attributes:
        report: all that was seen.
    """

    exit_code = ExitCode.FETCH

    def __init__(self, report: RehearsalReport, cures: Sequence[str]) -> None:
        name = f"{report.name}-{report.version}"
        failed = [f"step {step.id}: {step.summary}" for step in report.failed]
        evidence = [f"  {line}" for step in report.failed for line in step.evidence[-12:]]
        if report.offending:
            targets = ", ".join(dict.fromkeys(attempt.target for attempt in report.offending))
            super().__init__(
                f"{name} asked the network for {targets}, which no site without internet answers",
                remedy="; ".join(cures),
                details=[*(attempt.line() for attempt in report.offending), *failed, *evidence],
            )
        else:
            super().__init__(
                f"{name} did not pass its rehearsal: {', '.join(step.id for step in report.failed)} failed",
                remedy="correct what the step names, then build again; the site would have met the same",
                details=[*failed, *evidence],
            )
            self.exit_code = _exit_code(report.failed[0])
        self.report = report


def _exit_code(failed: Step) -> ExitCode:
    """The site program's own code; an engine's code means something else, and that it was tried in vain is known."""
    if failed.id.startswith(TRY):
        return ExitCode.FETCH
    codes = {int(code) for code in ExitCode} - {0}
    return ExitCode(failed.exit_code) if failed.exit_code in codes else ExitCode.UNEXPECTED


def _worth_saying(step: Step) -> Iterator[CheckResult]:
    """All that a try showed, since it stands for a start; of other steps what is not as it should be."""
    for check in step.checks:
        if step.id.startswith(TRY) or (step.status != "skip" and check.status in ("warn", "fail")):
            yield check


def report_text(report: RehearsalReport) -> str:
    """The report for a person."""
    lines = [f"rehearsal of {report.name}-{report.version} ({report.runtime}; {report.isolation})"]
    for step in report.steps:
        lines.append(f"[{_MARKS[step.status]}] {step.id:10} {step.summary} ({human_seconds(step.seconds)})")
        if step.status == "fail":
            lines.extend(f"         | {line}" for line in step.evidence)
        lines.extend(f"         {_MARKS[check.status]} {check.summary}" for check in _worth_saying(step))
    lines.extend(f"[FAIL] reached for {attempt.line()}" for attempt in report.offending)
    lines.extend(
        f"[ok  ] reached for {attempt.target} ({attempt.allowed})" for attempt in report.attempts if attempt.allowed
    )
    if not report.attempts:
        lines.append("[ok  ] nothing was asked of any network")
    lines.extend(f"not rehearsed: {sentence}" for sentence in report.not_rehearsed)
    lines.append(f"{'passed' if report.passed else 'FAILED'} in {human_seconds(report.seconds)}")
    return "\n".join(lines)
