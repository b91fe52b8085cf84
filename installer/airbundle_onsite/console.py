"""The one place on the site that writes to the terminal: results to stdout, talk to stderr, all of it to a log."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Optional, TextIO

from airbundle_onsite.errors import UsageError
from airbundle_onsite.streams import silence
from airbundle_onsite.units import human_bytes, human_seconds

_BAR_INTERVAL = 0.2  # seconds between redraws on a terminal
_SPARSE_INTERVAL = 15.0  # seconds between lines elsewhere
_KEPT_LOGS = 50


class Console:
    """Results, remarks, progress and questions; the real `Talk` of the site.

    A stream that fails (a terminal that went away, a closed pipe) is no reason to leave a deployment half done:
    what cannot be shown is still logged.

    Args:
        stdout, stderr, stdin: text streams.
        assume_yes: answer every question with yes.
        redact: applied to every line that goes into the log.
        monotonic: seconds, for rates.
    """

    def __init__(
        self,
        stdout: TextIO,
        stderr: TextIO,
        stdin: TextIO,
        *,
        assume_yes: bool = False,
        redact: Callable[[str], str] = str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stdout, self._stderr, self._stdin = stdout, stderr, stdin
        self._assume_yes = assume_yes
        self._redact = redact
        self._monotonic = monotonic
        self._tty = stderr.isatty()
        self._bar = _Bar()
        self._drawn = 0
        self._log: Optional[TextIO] = None
        self.log_path: Optional[Path] = None
        self.lost = False  # whether a result could not be written; a reader that had enough is none of that
        self._unlogged: list[str] = []

    def result(self, text: str) -> None:
        """Print a result."""
        self._note(text)
        problem = _write(self._stdout, text + "\n")
        if problem is not None and not isinstance(problem, BrokenPipeError):
            self.lost = True
            self.say(f"The result could not be written to standard output: {problem}")

    def say(self, line: str) -> None:
        """One remark."""
        self._note(line)
        self._clear()
        _write(self._stderr, line + "\n")

    def progress(self, what: str, done: int, total: int) -> None:
        """A bar on a terminal, a line now and then elsewhere, with bytes, rate and time left."""
        now = self._monotonic()
        ended = done >= total
        if self._bar.what != what or self._bar.ended:
            self._bar = _Bar(what, began=now, first=done, shown=now if not self._tty else 0.0)
        interval = _BAR_INTERVAL if self._tty else _SPARSE_INTERVAL
        if not ended and now - self._bar.shown < interval:
            return
        self._bar.shown, self._bar.ended = now, ended
        line = self._bar.text(done, total, now)
        if self._tty:
            self._clear()
            _write(self._stderr, line + ("\n" if ended else ""))
            self._drawn = 0 if ended else len(line)
        else:
            _write(self._stderr, line + "\n")
        if ended:
            self._note(line)

    def confirm(self, question: str) -> bool:
        """Ask; with `assume_yes`, only say what is done.

        Raises:
            UsageError: there is nobody to ask.
        """
        if self._assume_yes:
            self.say(f"{question} yes (--yes)")
            return True
        if not self._stdin.isatty():
            raise UsageError(f"{question} Nobody can answer: standard input is no terminal", remedy="add --yes")
        self._clear()
        _write(self._stderr, f"{question} [y/N] ")
        answer = self._stdin.readline().strip().casefold()
        self._note(f"{question} {answer!r}")
        return answer in ("y", "yes", "j", "ja", "是", "shi")

    # --- the log ------------------------------------------------------------------------------------------
    def keep_log(self, folder: Path, title: str) -> None:
        """From now on, and for what was said before, write a log file; a disk that refuses it only costs the log."""
        name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + f"-{title}-{os.getpid()}.log"
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o755, exist_ok=True)
            for old in sorted(folder.glob("*.log"))[: -_KEPT_LOGS + 1]:
                old.unlink()
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            self._log = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", buffering=1)
            self.log_path = folder / name
        for text in self._unlogged:
            self._write_log(text)
        self._unlogged.clear()

    def close(self) -> None:
        """End the bar and the log."""
        self._clear()
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.close()
            self._log = None

    def note(self, text: str) -> None:
        """Into the log only."""
        self._note(text)

    def _note(self, text: str) -> None:
        stamped = f"{time.strftime('%H:%M:%S', time.gmtime())} {self._redact(text)}"
        if self._log is None:
            self._unlogged.append(stamped)
        else:
            self._write_log(stamped)

    def _write_log(self, text: str) -> None:
        if self._log is not None:
            with contextlib.suppress(OSError):  # a full disk: the run itself will say so
                self._log.write(text + "\n")

    def _clear(self) -> None:
        if self._drawn:
            _write(self._stderr, "\r" + " " * self._drawn + "\r")
            self._drawn = 0


class _Bar:
    """What is being shown of one progress."""

    def __init__(self, what: str = "", *, began: float = 0.0, first: int = 0, shown: float = 0.0) -> None:
        self.what, self.began, self.first, self.shown = what, began, first, shown
        self.ended = what == ""

    def text(self, done: int, total: int, now: float) -> str:
        seconds = now - self.began
        rate = (done - self.first) / seconds if seconds > 0 else 0.0
        share = f"{100 * done // total if total else 100:3d} %"
        line = f"{self.what}  {share}  {human_bytes(done)} of {human_bytes(total)}"
        if rate > 0:
            line += f"  {human_bytes(rate)}/s"
            line += (
                f"  in {human_seconds(seconds)}" if done >= total else f"  {human_seconds((total - done) / rate)} left"
            )
        return line


def _write(stream: TextIO, text: str) -> Optional[Exception]:
    """Write at once; what kept it from that, or None."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError) as error:
        silence(stream)
        return error
    return None
