"""Reads an engine's log for what the launch plan says to look for: facts, and signs of a silent downgrade. Pure."""

from __future__ import annotations

import math
import re
from typing import Optional

from airbundle_onsite.contract.checks import CheckResult, Status
from airbundle_onsite.contract.launch import LaunchPlan, LogPattern

_LINE_LIMIT = 4000  # characters; no engine's message is longer, but a dumped configuration may be
_EXAMPLES = 3
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STATUS: dict[str, Status] = {"fact": "pass", "warn": "warn", "fail": "fail"}


def scan_log(plan: LaunchPlan, log: str) -> list[CheckResult]:
    """One result for each of the plan's patterns that occurs in `log`; patterns that do not occur give none."""
    lines = [_ANSI.sub("", line)[:_LINE_LIMIT] for line in log.splitlines()]
    return [result for result in (_scan(pattern, lines) for pattern in plan.log_patterns) if result is not None]


def _scan(pattern: LogPattern, lines: list[str]) -> Optional[CheckResult]:
    try:
        expression = re.compile(pattern.regex)
    except re.error as error:
        return CheckResult(
            f"log.{pattern.id}",
            "warn",
            f"the bundle's log pattern {pattern.id} cannot be used: {error}",
            actual=pattern.regex,
            remedy="report it to whoever built the bundle",
        )
    found = [match for match in map(expression.search, lines) if match]
    if not found or (pattern.at_least is not None and _number(found[-1]) >= pattern.at_least):
        return None
    # The last match: an engine that restarted says it again, and the newest is what runs.
    values = {name: value for name, value in found[-1].groupdict().items() if value is not None}
    actual = ", ".join(f"{name}={value}" for name, value in values.items())
    return CheckResult(
        f"log.{pattern.id}",
        _STATUS[pattern.level],
        f"{pattern.meaning} ({actual})" if actual else pattern.meaning,
        expected="" if pattern.at_least is None else f"at least {pattern.at_least:,}",
        actual=actual,
        remedy="" if pattern.level == "fact" else pattern.remedy,
        evidence=tuple(dict.fromkeys(match.string.strip() for match in found[-_EXAMPLES:])),
    )


def _number(match: re.Match[str]) -> float:
    """The number in the first named group; infinity, which nothing is above, when there is none."""
    values = [value for value in match.groupdict().values() if value is not None]
    try:
        return float(values[0].replace(",", "")) if values else math.inf
    except ValueError:
        return math.inf
