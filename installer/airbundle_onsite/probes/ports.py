"""TCP ports that something listens on."""

from __future__ import annotations

from airbundle_onsite.probes.files import HostFiles

_LISTEN = "0A"


def listening(files: HostFiles) -> tuple[int, ...]:
    """Ports listened on at any address, IPv4 or IPv6, ascending."""
    ports: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (files.text(table) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[3] == _LISTEN:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return tuple(sorted(ports))
