"""The rim of the pure core: subprocesses, time and the like, behind small interfaces that tests replace."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional, Protocol

from airbundle_onsite.contract.record import record


@record
class Completed:
    """What a finished command said; output decoded as UTF-8 with replacement."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str


class Runner(Protocol):
    """Runs commands given as lists of words; never through a shell."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[Path] = None,
    ) -> Completed:
        """Run to the end. A missing program gives code 127, one that outlasts `timeout` seconds code 124."""
        ...


class Clock(Protocol):
    """Time, replaceable."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemRunner:
    """The real `Runner`."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[Path] = None,
    ) -> Completed:
        words = tuple(str(word) for word in argv)
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                timeout=timeout,
                env=None if env is None else dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except FileNotFoundError:
            return Completed(words, 127, "", f"{words[0]}: not found")
        except PermissionError as error:
            return Completed(words, 126, "", str(error))
        except subprocess.TimeoutExpired:
            return Completed(words, 124, "", f"{words[0]}: no answer within {timeout:g} s")
        return Completed(
            words,
            done.returncode,
            done.stdout.decode("utf-8", "replace"),
            done.stderr.decode("utf-8", "replace"),
        )


class SystemClock:
    """The real `Clock`."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Talk(Protocol):
    """Where progress and remarks go (stderr, a log, nowhere); results never go through it."""

    def say(self, line: str) -> None:
        """One remark."""
        ...

    def progress(self, what: str, done: int, total: int) -> None:
        """Bytes done of `total`; called often, shown seldom. ``done == total`` ends the bar."""
        ...


class Silent:
    """A `Talk` that says nothing."""

    def say(self, line: str) -> None:
        pass

    def progress(self, what: str, done: int, total: int) -> None:
        pass
