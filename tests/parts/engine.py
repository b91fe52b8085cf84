"""Starts `fake_engine.py` as a process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from parts.process import Daemon, free_port, port_open, wait_until

SCRIPT = Path(__file__).with_name("fake_engine.py")


@dataclass(frozen=True)
class FakeEngine:
    """A running fake engine: its base URL, its port and its process."""

    url: str
    port: int
    process: Daemon


class FakeEngines:
    """Starts fake engines and ends them all on leaving."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[Daemon] = []

    def start(self, fault: str = "none", *words: str, wait: bool = True) -> FakeEngine:
        """Start one with that fault (`fake_engine.FAULTS`); waits for its port unless told not to."""
        port = free_port()
        argv = [sys.executable, str(SCRIPT), "--port", str(port), "--fault", fault, *words]
        process = Daemon(argv, self._directory / f"engine-{port}.log")
        self._started.append(process)
        if wait:
            wait_until(lambda: port_open(port), 20, f"fake engine ({fault})", process=process)
        return FakeEngine(f"http://127.0.0.1:{port}", port, process)

    def stop(self) -> None:
        """End them all."""
        for process in self._started:
            process.stop(5)


@contextmanager
def running(directory: Path) -> Iterator[FakeEngines]:
    """A starter of fake engines whose logs go into this directory."""
    engines = FakeEngines(directory)
    try:
        yield engines
    finally:
        engines.stop()
