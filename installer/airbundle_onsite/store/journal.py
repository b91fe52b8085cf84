"""The journal: what a deployment was about to do, made durable before it does it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shlex
import stat
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Optional

from airbundle_onsite.contract.record import decode, record, to_plain
from airbundle_onsite.errors import ContractError, IntegrityError
from airbundle_onsite.store.disk import FILE_MODE, make_directory, sync_directory, write_atomic
from airbundle_onsite.system import Clock

CLOSED = frozenset({"done", "undone"})
"""Steps after which a transaction needs nothing more."""

KEPT = 100
"""Finished transactions whose last line is kept, for people."""

Hook = Callable[[str], None]


def no_hook(_moment: str) -> None:
    """The hook of normal operation: nothing happens."""


@record
class JournalEntry:
    """One line of the journal.

    Attributes:
        tx: id of the transaction.
        op: ``install``, ``reinstall``, ``activate``, ``rollback`` or ``restart``.
        name, version: the release it brings up.
        previous: the version that was active when it began.
        step: what has been reached; `CLOSED` steps end the transaction.
        time: seconds since the epoch.
        facts: what undoing needs to know; the same in every line of a transaction.
    """

    tx: str
    op: str
    name: str
    version: str
    previous: Optional[str]
    step: str
    time: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def closed(self) -> bool:
        return self.step in CLOSED


class Journal:
    """JSON lines, each fsynced before the call returns. Only the holder of the store's lock writes.

    A line torn by a crash was never acted upon, so it is dropped at the next write.

    Args:
        path: the file.
        clock: for the time of each line.
        hook: called as ``before STEP`` and ``STEP`` around each line, so that tests can stop the process there.
    """

    def __init__(self, path: Path, clock: Clock, hook: Hook = no_hook) -> None:
        self._path = path
        self._clock = clock
        self._hook = hook

    def entries(self) -> list[JournalEntry]:
        """Every whole line, oldest first.

        Raises:
            IntegrityError: a line other than a torn last one cannot be read.
        """
        return [self._parse(number, line) for number, line in enumerate(self._lines(), start=1)]

    def _lines(self) -> list[bytes]:
        try:
            # Not blocking: a named pipe in its place would be waited for without end.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return []
        with os.fdopen(descriptor, "rb") as file:
            self._require_file(descriptor)
            data = file.read()
        return data.split(b"\n")[:-1]  # what follows the last newline is torn, or empty

    def _require_file(self, descriptor: int) -> None:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IntegrityError(
                f"{self._path} is no regular file, so it is not the journal",
                remedy=f"remove it, and run the same command again: rm {shlex.quote(str(self._path))}",
            )

    def _parse(self, number: int, line: bytes) -> JournalEntry:
        try:
            return decode(JournalEntry, json.loads(line.decode("utf-8")), f"{self._path} line {number}")
        except (ValueError, RecursionError, ContractError) as error:
            raise IntegrityError(
                f"{self._path}, line {number} cannot be read: {error}",
                remedy="if no installation was interrupted, move it away and run the same command again: "
                f"mv {shlex.quote(str(self._path))} {shlex.quote(f'{self._path}.damaged')}",
            ) from error

    def unfinished(self) -> Optional[JournalEntry]:
        """The last line of a transaction that neither finished nor was undone, or None.

        Transactions follow each other, so the last line alone decides, whatever became of older ones.

        Raises:
            IntegrityError: that line cannot be read.
        """
        lines = self._lines()
        last = self._parse(len(lines), lines[-1]) if lines else None
        return None if last is None or last.closed else last

    def begin(self, op: str, name: str, version: str, previous: Optional[str], facts: Mapping[str, Any]) -> Transaction:
        """Start a transaction with the step ``begin``. The one before must be closed."""
        tx = f"{int(self._clock.now())}-{secrets.token_hex(4)}"
        first = JournalEntry(tx, op, name, version, previous, "begin", int(self._clock.now()), facts)
        self._append(first)
        return Transaction(self, first)

    def resume(self, entry: JournalEntry) -> Transaction:
        """Go on with a transaction that an earlier process left."""
        return Transaction(self, entry)

    def step(self, last: JournalEntry, step: str) -> JournalEntry:
        """Note that `step` has been reached; use it through `Transaction.step`."""
        entry = JournalEntry(
            last.tx, last.op, last.name, last.version, last.previous, step, int(self._clock.now()), last.facts
        )
        self._append(entry)
        if entry.closed:
            self._compact()
        return entry

    def _append(self, entry: JournalEntry) -> None:
        self._hook(f"before {entry.step}")
        make_directory(self._path.parent, self._path.parent)
        line = json.dumps(to_plain(entry), ensure_ascii=False, sort_keys=True).encode("utf-8") + b"\n"
        created = not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
        try:
            self._require_file(descriptor)
            end = _end_of_lines(descriptor)
            os.ftruncate(descriptor, end)
            if os.pwrite(descriptor, line, end) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            os.fchmod(descriptor, FILE_MODE)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if created:
            sync_directory(self._path.parent)
        self._hook(entry.step)

    def _compact(self) -> None:
        """Keep the last line of each of the last `KEPT` transactions; all of them are closed by now.

        A line that cannot be read belongs to history and goes.
        """
        last = {}
        for number, line in enumerate(self._lines(), start=1):
            with contextlib.suppress(IntegrityError):
                entry = self._parse(number, line)
                last[entry.tx] = entry
        kept = list(last.values())[-KEPT:]
        lines = [json.dumps(to_plain(entry), ensure_ascii=False, sort_keys=True) + "\n" for entry in kept]
        write_atomic(self._path, "".join(lines).encode("utf-8"))


class Transaction:
    """One transaction being written."""

    def __init__(self, journal: Journal, entry: JournalEntry) -> None:
        self._journal = journal
        self.last = entry

    def step(self, step: str) -> None:
        """Note durably that `step` has been reached."""
        self.last = self._journal.step(self.last, step)


def _end_of_lines(descriptor: int) -> int:
    """Offset after the last newline."""
    size = os.fstat(descriptor).st_size
    data = os.pread(descriptor, size, 0)
    return data.rfind(b"\n") + 1
