"""What was found wrong with a bundle: as results for a report, and as the one error that ends an installation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import AirbundleError, IntegrityError, TrustError
from airbundle_onsite.verify import media

SIGNATURE_CHECK = "verify.signature"
_MAX_LINES = 50


@record
class Problem:
    """Something wrong with one file. `found` is a clause such as ``found 3 bytes, needed 4``."""

    file: str
    found: str
    remedy: str = media.RECOPY

    def __str__(self) -> str:
        return f"{self.file}: {self.found}"


def differs(found: str, needed: str, by: str = "") -> str:
    """The clause for a SHA-256 that is another one than `needed`; `by` says who needs it, as in `` by SHA256SUMS``."""
    return f"found SHA-256 {found[:16]}…, needed {needed[:16]}…{by}"


def check_of(check_id: str, passed: str, problems: Sequence[Problem]) -> CheckResult:
    """One result for all `problems` of a step; without any it passes, with the summary `passed`."""
    if not problems:
        return CheckResult(check_id, "pass", passed)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    remedies = dict.fromkeys(problem.remedy for problem in problems if problem.remedy)
    return CheckResult(
        check_id,
        "fail",
        f"{problems[0]}{more}",
        remedy="; ".join(remedies),
        evidence=tuple(str(problem) for problem in problems) if len(problems) > 1 else (),
    )


def error_of(directory: Path, failed: Sequence[CheckResult]) -> AirbundleError:
    """One error for everything that failed: about trust when the signature is at fault, else about integrity."""
    details = [line for check in failed for line in (check.evidence or (check.summary,))]
    shown = details[:_MAX_LINES]
    if len(details) > len(shown):
        shown.append(f"and {len(details) - len(shown)} more")
    remedy = "; ".join(dict.fromkeys(check.remedy for check in failed if check.remedy))
    count = f"{len(details)} problem{'s' if len(details) != 1 else ''}"
    if any(check.id == SIGNATURE_CHECK for check in failed):
        return TrustError(f"{directory} cannot be trusted: {count} found", details=shown, remedy=remedy)
    return IntegrityError(f"{directory} is not a whole bundle: {count} found", details=shown, remedy=remedy)
