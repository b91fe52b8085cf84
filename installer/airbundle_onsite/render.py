"""Turns results into text or JSON; returns strings, prints nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import to_plain
from airbundle_onsite.errors import AirbundleError

_MARKS = {"pass": "ok  ", "warn": "WARN", "fail": "FAIL", "skip": "skip"}


def checks_text(checks: Sequence[CheckResult]) -> str:
    """A line per check; for those that did not pass, what was needed, found, and the cure."""
    lines: list[str] = []
    for check in checks:
        lines.append(f"[{_MARKS[check.status]}] {check.summary}")
        if check.status in ("warn", "fail"):
            if check.expected:
                lines.append(f"         needed: {check.expected}")
            if check.actual:
                lines.append(f"         found:  {check.actual}")
            lines.extend(f"         | {line}" for line in check.evidence)
            if check.remedy:
                lines.append(f"         What to do: {check.remedy}")
    counts = {status: sum(check.status == status for check in checks) for status in _MARKS}
    lines.append(
        f"{len(checks)} checks: {counts['pass']} passed, {counts['warn']} warned, "
        f"{counts['fail']} failed, {counts['skip']} skipped"
    )
    return "\n".join(lines)


def json_text(value: Any) -> str:
    """Any record, or plain data holding records, as indented JSON without a final newline."""
    return json.dumps(to_plain(value), indent=2, ensure_ascii=False)


def error_plain(error: AirbundleError) -> dict[str, Any]:
    """An error for ``--json``."""
    return {
        "error": type(error).__name__,
        "exit_code": int(error.exit_code),
        "summary": error.summary,
        "details": list(error.details),
        "remedy": error.remedy,
    }
