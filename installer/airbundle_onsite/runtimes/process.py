"""Processes found again by number, start time and boot, so that a stranger with a reused number is never touched."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from airbundle_onsite.runtimes.supervisor import identity
from airbundle_onsite.system import Clock


def alive(known: Optional[Mapping[str, Any]]) -> bool:
    """Whether the process that `supervisor.identity` described still runs."""
    return bool(known) and known is not None and identity(int(known["pid"])) == dict(known)


def life(known: Mapping[str, Any]) -> str:
    """What `supervisor.identity` described, as one word."""
    return f"{known['boot']}/{known['start']}/{known['pid']}"


def age(known: Mapping[str, Any], uptime: Path = Path("/proc/uptime")) -> Optional[float]:
    """Seconds since that process began; None when the kernel does not say."""
    try:
        up = float(uptime.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return max(0.0, up - int(known["start"]) / os.sysconf("SC_CLK_TCK"))


def end(known: Optional[Mapping[str, Any]], clock: Clock, *, grace: float, group: bool) -> bool:
    """TERM, and after `grace` seconds KILL; with `group`, its whole process group. Whether it is gone."""
    if known is None or not alive(known):
        return True
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        _send(int(known["pid"]), number, group)
        _send(int(known["pid"]), signal.SIGCONT, group)  # one that was stopped by a signal gets to see the TERM
        deadline = clock.monotonic() + seconds
        while clock.monotonic() < deadline:
            if not alive(known):
                return True
            clock.sleep(0.05)
    return not alive(known)


def _send(pid: int, number: int, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
