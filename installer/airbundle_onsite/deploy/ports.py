"""TCP ports of this machine: a free one, and who holds a taken one."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Optional

_LISTEN, _OPEN = "0A", "01"


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def in_use(host: str, port: int) -> bool:
    """Whether `port` cannot be listened on at `host` now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT does not matter
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def owner(port: int, proc: Path = Path("/proc")) -> str:
    """Who listens on a port, as ``nginx (pid 812)``; empty when it cannot be seen."""
    inodes = _listening(port, proc)
    for process in proc.iterdir():
        if process.name.isdigit() and _holds(process, inodes):
            return f"{_name(process)} (pid {process.name})"
    return ""


def connections(port: int, proc: Path = Path("/proc")) -> int:
    """Open connections to a port of this machine; those that the kernel forwards elsewhere do not count."""
    return len(_sockets(port, _OPEN, proc))


def _listening(port: int, proc: Path) -> set[str]:
    return {f"socket:[{inode}]" for inode in _sockets(port, _LISTEN, proc)}


def _sockets(port: int, state: str, proc: Path) -> list[str]:
    """Inodes of the sockets with this port as their own that are in this state of the kernel's tables."""
    inodes = []
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            if words[3] == state and int(words[1].rpartition(":")[2], 16) == port:
                inodes.append(words[9])
    return inodes


def _holds(process: Path, inodes: set[str]) -> bool:
    if not inodes:
        return False
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:  # gone, or another user's
        return False
    return any(_target(descriptor) in inodes for descriptor in descriptors)


def _target(link: Path) -> Optional[str]:
    try:
        return os.fspath(link.readlink())
    except OSError:
        return None


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "a process"
