"""One hierarchy of errors for both halves; each class has fields, an exit code and a remedy.

Nothing below a CLI exits or prints: it raises one of these, and the CLI's single catch site turns it into a
message and an exit code.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Optional


class ExitCode(enum.IntEnum):
    """Exit codes of `airbundle`, `install.sh` and `airbundlectl`; documented in README.md."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    PREFLIGHT = 3
    WARNINGS = 4
    INTEGRITY = 5
    TRUST = 6
    RESTORED = 7
    NOTHING_RUNNING = 8
    BUSY = 9
    FETCH = 10


class AirbundleError(Exception):
    """Base of every error a person is meant to read.

    Attributes:
        summary: one sentence that names the thing, the value found and the value needed.
        remedy: what the reader can do about it; empty when there is nothing to add.
        details: further lines, one fact each (every bad part, every failed download, …).
    """

    exit_code: ExitCode = ExitCode.UNEXPECTED

    def __init__(self, summary: str, *, remedy: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(summary)
        self.summary = summary
        self.remedy = remedy
        self.details = tuple(details)

    def lines(self) -> list[str]:
        """The message for a person, one line per element, without colour."""
        lines = [self.summary, *(f"  - {detail}" for detail in self.details)]
        if self.remedy:
            lines.append(f"  What to do: {self.remedy}")
        return lines


class UsageError(AirbundleError):
    """The words on the command line, or a file the person wrote, are not usable."""

    exit_code = ExitCode.USAGE


class ContractError(AirbundleError):
    """A document does not follow its schema. `problems` holds every violation found, as ``path: reason``."""

    exit_code = ExitCode.INTEGRITY

    def __init__(self, document: str, problems: Sequence[str], *, remedy: str = "") -> None:
        count = len(problems)
        super().__init__(f"{document}: {count} problem{'s' if count != 1 else ''}", remedy=remedy, details=problems)
        self.document = document
        self.problems = tuple(problems)


class PreflightError(AirbundleError):
    """The host cannot take this bundle; nothing was changed."""

    exit_code = ExitCode.PREFLIGHT


class IntegrityError(AirbundleError):
    """Bytes are not what the manifest says."""

    exit_code = ExitCode.INTEGRITY


class TrustError(AirbundleError):
    """A signature is missing, wrong, or by a signer this site does not accept."""

    exit_code = ExitCode.TRUST


class DeployError(AirbundleError):
    """A release could not be brought up.

    Attributes:
        restored: the version that answers again, or None when nothing is running.
    """

    def __init__(self, summary: str, *, restored: Optional[str], remedy: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(summary, remedy=remedy, details=details)
        self.restored = restored
        self.exit_code = ExitCode.RESTORED if restored else ExitCode.NOTHING_RUNNING


class BusyError(AirbundleError):
    """Another airbundle process holds the lock.

    Attributes:
        pid: the process holding it, or None when it could not be read.
    """

    exit_code = ExitCode.BUSY

    def __init__(self, what: str, pid: Optional[int]) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(
            f"{what} is in use by {holder}",
            remedy="wait until it has finished"
            + (f" (ps -p {pid} shows what it is)" if pid else "")
            + ", then run the same command again",
        )
        self.pid = pid


class FetchError(AirbundleError):
    """Something could not be resolved or fetched; `details` lists every one of them."""

    exit_code = ExitCode.FETCH
