"""A private podman behind its docker-compatible API: own store, own socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from parts import need
from parts.docker import unmount_below
from parts.process import Daemon, wait_until


@dataclass(frozen=True)
class Podman:
    """A running podman service.

    Attributes:
        socket: path of its API socket.
        argv: the podman command on the same store.
    """

    socket: Path
    argv: tuple[str, ...]

    @property
    def host(self) -> str:
        """Value for DOCKER_HOST."""
        return f"unix://{self.socket}"

    def run(self, *words: str, timeout: float = 180) -> str:
        """Run podman; returns what it printed. Raises RuntimeError with its stderr when it fails."""
        done = subprocess.run([*self.argv, *words], capture_output=True, text=True, timeout=timeout)
        if done.returncode != 0:
            raise RuntimeError(f"podman {' '.join(words)}: {done.stderr}")
        return done.stdout


@contextmanager
def running() -> Iterator[Podman]:
    """A fresh podman; on leaving it is ended, unmounted and removed."""
    need.need("podman")
    # A short path: podman allows 50 characters for its run root.
    directory = Path(tempfile.mkdtemp(prefix="ab-podman-"))
    root, run = directory / "root", directory / "run"
    words = ("--root", str(root), "--runroot", str(run), "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs")
    podman = Podman(directory / "podman.sock", (need.program("podman"), *words))
    daemon = Daemon(
        [*podman.argv, "system", "service", "-t", "0", podman.host],
        directory / "podman.log",
        env={**os.environ, "PATH": need.SEARCH},
    )
    try:
        wait_until(podman.socket.exists, 60, "podman", process=daemon)
        yield podman
    finally:
        daemon.stop(20)
        unmount_below(directory)
        shutil.rmtree(directory, ignore_errors=True)
