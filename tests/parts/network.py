"""Commands without a network."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from parts import need

_LOOPBACK_UP = 'ip link set lo up && exec "$@"'


def no_network_argv(argv: Sequence[str]) -> list[str]:
    """The command, wrapped so that it runs in a network namespace of its own that has loopback only."""
    need.need("netns")
    return [need.program("unshare"), "--net", "--", "/bin/sh", "-c", _LOOPBACK_UP, "sh", *map(str, argv)]


def no_network(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end with loopback as its only network."""
    environment = {**(os.environ if env is None else env)}
    environment.setdefault("PATH", need.SEARCH)
    return subprocess.run(
        no_network_argv(argv), capture_output=True, text=True, timeout=timeout, env=environment, cwd=cwd
    )
