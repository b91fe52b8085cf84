"""Servers as child processes: started, waited for, and ended by their own process id."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from parts import need


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_until(ready: Callable[[], bool], seconds: float, what: str, *, process: Daemon | None = None) -> None:
    """Poll until `ready`; raises RuntimeError with `what` and the end of the daemon's log when it takes too long."""
    deadline = time.monotonic() + seconds
    while not ready():
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline:
            how = "ended at once" if ended else f"not ready within {seconds:g} s"
            raise RuntimeError(f"{what}: {how}\n{process.log_tail() if process else ''}")
        time.sleep(0.05)


def port_open(port: int) -> bool:
    """Whether something listens on that port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Daemon:
    """A child process with its log in a file. It dies with this process, even when that is killed."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as handle:
            self._process = subprocess.Popen(
                [need.program("setpriv"), "--pdeathsig", "TERM", *argv],
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
            )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Exit status, or None while it runs."""
        return self._process.poll()

    def stop(self, seconds: float = 20) -> None:
        """Ask it to end; after that many seconds, kill it."""
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
