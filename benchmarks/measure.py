"""Runs one command and measures it: wall time, peak memory of its processes, peak growth of a filesystem."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL = 0.05


@dataclass(frozen=True)
class Run:
    """What a command took: seconds, peak bytes of anonymous memory over its process tree, peak extra disk bytes."""

    seconds: float
    memory: int
    disk: int


class CommandFailed(Exception):
    """The measured command ended with an error; its output is the message."""


def measure(argv: Sequence[str | Path], *, watch: Path, env: Mapping[str, str] | None = None) -> Run:
    """Run `argv` to its end, watching the filesystem that holds `watch`.

    Raises:
        CommandFailed: it ended with a code other than 0.
    """
    before = _used(watch)
    start = time.monotonic()
    process = subprocess.Popen(
        [str(word) for word in argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
    )
    peak = _Peak(process.pid, watch)
    peak.start()
    output, _ = process.communicate()
    seconds = time.monotonic() - start
    peak.stop()
    if process.returncode:
        raise CommandFailed(f"{' '.join(map(str, argv))}\n{output.decode(errors='replace')[-3000:]}")
    return Run(seconds, peak.memory, max(0, peak.disk - before))


class _Peak(threading.Thread):
    def __init__(self, pid: int, watch: Path) -> None:
        super().__init__(daemon=True)
        self._pid, self._watch, self._ended = pid, watch, threading.Event()
        self.memory = self.disk = 0

    def run(self) -> None:
        while not self._ended.wait(_POLL):
            self.memory = max(self.memory, sum(_anonymous(pid) for pid in _tree(self._pid)))
            self.disk = max(self.disk, _used(self._watch))

    def stop(self) -> None:
        self._ended.set()
        self.join()
        self.disk = max(self.disk, _used(self._watch))


def _used(path: Path) -> int:
    status = os.statvfs(path)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _tree(root: int) -> list[int]:
    """A process and its descendants, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        found.append(queue.pop())
        queue.extend(children.get(found[-1], []))
    return found


def _anonymous(pid: int) -> int:
    """Resident bytes that belong to the process alone; pages of the file cache do not count."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
