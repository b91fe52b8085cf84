"""What the console writes, and where."""

from __future__ import annotations

import io

import pytest

from airbundle.console import Console
from airbundle_onsite.errors import FetchError


class Ticking:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_results_and_talk_go_different_ways() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(stdout=out, stderr=err)
    console.say("a remark with [brackets]")
    console.result("a result")
    console.error(FetchError("it broke", remedy="mend it", details=["here"]))
    assert out.getvalue() == "a result\n"
    assert err.getvalue() == "a remark with [brackets]\nError: it broke\n  - here\n  What to do: mend it\n"


def test_without_a_terminal_lines_are_few_and_tell_bytes_rate_and_time_left() -> None:
    err, clock = io.StringIO(), Ticking()
    console = Console(stderr=err, clock=clock)
    for done in range(0, 100_000_000, 1_000_000):
        console.progress("fetching", done, 100_000_000)
        clock.sleep(0.3)
    console.progress("fetching", 100_000_000, 100_000_000)
    lines = err.getvalue().splitlines()
    assert 2 <= len(lines) <= 4
    assert lines[0] == "fetching: 34.0 MB of 100.0 MB, 3.3 MB/s, 20 s left"
    assert lines[-1] == "fetching: 100.0 MB in 30 s"


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    err = Terminal()
    console = Console(stderr=err)
    console.progress("fetching", 0, 2_000_000)
    console.progress("fetching", 2_000_000, 2_000_000)
    assert "fetching" in err.getvalue()
    assert "2.0/2.0 MB" in err.getvalue()


def test_quiet_leaves_results_and_errors() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(quiet=True, stdout=out, stderr=err)
    console.say("a remark")
    console.progress("fetching", 1, 1)
    console.result("a result")
    console.error(FetchError("it broke"))
    assert out.getvalue() == "a result\n"
    assert err.getvalue() == "Error: it broke\n"
