"""The person at the keyboard: progress and remarks on stderr, results on stdout. Nothing else of this half prints."""

from __future__ import annotations

import sys
import threading
from typing import TextIO

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from airbundle_onsite.errors import AirbundleError
from airbundle_onsite.system import Clock, SystemClock
from airbundle_onsite.units import human_bytes, human_seconds

_LINE_EVERY = 10.0  # seconds between two lines about the same thing, where there is no terminal


class Console:
    """The online half's `Talk`, and where results go. Any thread may use it.

    On a terminal progress is a bar with bytes, rate and time left; elsewhere it is a line now and then.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Use the process's own streams and clock unless others are given; `quiet` leaves results and errors only."""
        self._quiet, self._clock = quiet, clock or SystemClock()
        self._stdout = stdout or sys.stdout
        self._stderr = RichConsole(file=stderr or sys.stderr, highlight=False, soft_wrap=True)
        self._lock = threading.RLock()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._lines: dict[str, _Pace] = {}

    def say(self, line: str) -> None:
        """One remark."""
        if not self._quiet:
            self._write(line)

    def progress(self, what: str, done: int, total: int) -> None:
        """Bytes done of `total`; ``done == total`` ends the bar."""
        if self._quiet:
            return
        with self._lock:
            if self._stderr.is_terminal:
                self._bar(what, done, total)
            else:
                self._line(what, done, total)

    def result(self, text: str) -> None:
        """A result, for stdout."""
        self.close()
        self._stdout.write(text + "\n")
        self._stdout.flush()

    def error(self, error: AirbundleError) -> None:
        """What went wrong and what to do about it; said even when quiet."""
        self.close()
        first, *rest = error.lines()
        self._write(f"Error: {first}")
        for line in rest:
            self._write(line)

    def close(self) -> None:
        """Take away bars that are still on the screen."""
        with self._lock:
            if self._bars is not None:
                self._bars.stop()
            self._bars, self._tasks, self._lines = None, {}, {}

    def _write(self, line: str) -> None:
        with self._lock:
            self._stderr.print(line, markup=False)

    def _bar(self, what: str, done: int, total: int) -> None:
        if self._bars is None:
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=self._stderr,
            )
            self._bars.start()
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done, total=total)
        if done == total:
            del self._tasks[what]
            if not self._tasks:
                self._bars.stop()
                self._bars = None

    def _line(self, what: str, done: int, total: int) -> None:
        now = self._clock.monotonic()
        pace = self._lines.setdefault(what, _Pace(now, done))
        if done == total:
            del self._lines[what]
            self._write(f"{what}: {human_bytes(total)} in {human_seconds(now - pace.began)}")
        elif now - pace.said >= _LINE_EVERY:
            pace.said = now
            self._write(pace.text(what, done, total, now))


class _Pace:
    """When something began, and from where."""

    def __init__(self, now: float, done: int) -> None:
        self.began, self.said, self.first = now, now, done

    def text(self, what: str, done: int, total: int, now: float) -> str:
        rate = (done - self.first) / (now - self.began)
        left = f", {human_seconds((total - done) / rate)} left" if rate > 0 else ""
        return f"{what}: {human_bytes(done)} of {human_bytes(total)}, {human_bytes(rate)}/s{left}"
