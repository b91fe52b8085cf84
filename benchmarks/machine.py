"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from airbundle import __version__


@dataclass(frozen=True)
class Machine:
    """The machine of a run.

    Attributes:
        memory: bytes.
        sha_extensions: whether the processor computes SHA-256 by itself.
        filesystem: type of the one that holds the working directory, its device and its free bytes.
        load: the load averages over 1, 5 and 15 minutes when the run began; and when it ended.
    """

    cpu: str
    cores: int
    sha_extensions: bool
    memory: int
    filesystem: str
    free: int
    kernel: str
    python: str
    tool: str
    began: str
    load_at_start: tuple[float, ...]
    load_at_end: tuple[float, ...] = ()


def describe(work: Path) -> Machine:
    """The machine as it is now; `work` is the directory of the run."""
    facts = _cpu_facts()
    status = os.statvfs(work)
    return Machine(
        cpu=facts.get("model name", platform.machine()),
        cores=len(os.sched_getaffinity(0)),
        sha_extensions=bool({"sha_ni", "sha2"} & set((facts.get("flags") or facts.get("Features", "")).split())),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        filesystem=_filesystem(work),
        free=status.f_bavail * status.f_frsize,
        kernel=platform.release(),
        python=platform.python_version(),
        tool=f"airbundle {__version__}",
        began=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        load_at_start=load(),
    )


def load() -> tuple[float, ...]:
    """The load averages now."""
    return tuple(round(value, 2) for value in os.getloadavg())


def _cpu_facts() -> dict[str, str]:
    """Of the first processor."""
    text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _filesystem(work: Path) -> str:
    """Type and device of the mount that holds a directory."""
    device = work.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, rest = line.partition(" - ")
        if mount.split()[2] == wanted:
            kind, source = rest.split()[:2]
            return f"{kind} on {source}"
    return "unknown"
