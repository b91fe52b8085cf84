"""Who is behind a packet: from its ports to a socket, and from the socket to the process that holds it, by /proc."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from airbundle.rehearse.packets import Flow
from airbundle.rehearse.sinkhole import Asker

PROC = Path("/proc")
_EMBEDDED_RESOLVER = "0B00007F:0035"
"""127.0.0.11:53 as /proc/net/udp writes it: docker's resolver inside a container, which asks on its behalf."""
_UNCONNECTED = re.compile(r"0+:0000")
_SECRET_FLAG = re.compile(r"(?i)(key|token|secret|password|passwd|credential)")
_WORDS = 40
_WORD = 200


class ProcAskers:
    """Looks among the processes of one network namespace.

    Args:
        namespace: for the source address of a packet, a process id in the namespace it comes from; None when there
            is none (any more).
        proc: where /proc is mounted.
    """

    def __init__(self, namespace: Callable[[str], int | None], proc: Path = PROC) -> None:
        self._namespace, self._proc = namespace, proc

    def find(self, kind: Literal["tcp", "udp"], flow: Flow) -> Asker:
        """See `sinkhole.Askers`."""
        pid = self._namespace(flow.source)
        if pid is None:
            return Asker()
        sockets = list(self._sockets(pid, kind, flow.source_port))
        owners = self._owners(pid)
        for inode in sockets:
            if inode in owners:
                return describe(owners[inode], self._proc)
        if kind == "udp":
            return self._asking_resolver(pid, owners)
        return Asker()

    def _asking_resolver(self, pid: int, owners: dict[int, int]) -> Asker:
        """The socket is not of these processes: it is the embedded resolver's, asked by one of them just now."""
        rows = list(self._table(pid, "udp"))
        for wanted in (re.compile(re.escape(_EMBEDDED_RESOLVER)), _UNCONNECTED):
            for row in rows:
                if wanted.fullmatch(row[2]) and int(row[9]) in owners:
                    return describe(owners[int(row[9])], self._proc)
        return Asker()

    def _sockets(self, pid: int, kind: str, port: int) -> Iterator[int]:
        """Inodes of sockets with that local port, IPv4 ones first."""
        ending = f":{port:04X}"
        for table in (kind, f"{kind}6"):
            for row in self._table(pid, table):
                if row[1].endswith(ending):
                    yield int(row[9])

    def _table(self, pid: int, table: str) -> Iterator[list[str]]:
        try:
            lines = (self._proc / str(pid) / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            return
        yield from (row for row in map(str.split, lines) if len(row) > 9)

    def _owners(self, pid: int) -> dict[int, int]:
        """Socket inode -> process id, for the processes in the namespace of `pid`; the youngest process wins."""
        wanted = self._namespace_of(pid)
        found: dict[int, int] = {}
        for entry in sorted(int(path.name) for path in self._proc.iterdir() if path.name.isdecimal()):
            if self._namespace_of(entry) == wanted:
                found.update((inode, entry) for inode in self._held(entry))
        return found

    def _namespace_of(self, pid: int) -> str:
        try:
            return str((self._proc / str(pid) / "ns" / "net").readlink())
        except OSError:
            return ""

    def _held(self, pid: int) -> Iterator[int]:
        try:
            for descriptor in (self._proc / str(pid) / "fd").iterdir():
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    yield int(target[8:-1])
        except OSError:  # it ended meanwhile
            return


def describe(pid: int, proc: Path = PROC) -> Asker:
    """A process with its command line, cut to a length for people and without what looks like a secret."""
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return Asker(pid)
    words = raw.decode("utf-8", "replace").rstrip("\0").split("\0")
    return Asker(pid, tuple(without_secrets(words[:_WORDS])))


def without_secrets(words: list[str]) -> list[str]:
    """A command line with the values of flags like ``--api-key`` replaced by three stars."""
    made: list[str] = []
    for word in words:
        flag, equals, _ = word.partition("=")
        after_secret = bool(made) and made[-1].startswith("-") and _SECRET_FLAG.search(made[-1])
        if after_secret and "=" not in made[-1] and not word.startswith("-"):
            word = "***"
        elif equals and _SECRET_FLAG.search(flag):
            word = f"{flag}=***"
        made.append(word if len(word) <= _WORD else f"{word[:_WORD]}…")
    return made
