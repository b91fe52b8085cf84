"""A machine that systemd runs: a Debian in namespaces, with processes, network and control groups of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from parts import images, need
from parts.process import Daemon, wait_until

_ROOTFS = images.Rootfs("bookworm", ("systemd", "python3"))
_BOOT = """\
set -eu
root=$1
mount --bind "$root" "$root"
for place in proc sysfs; do mount -t $place $place "$root/${place%fs}"; done
for place in run tmp dev; do mount -t tmpfs tmpfs "$root/$place"; done
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
ip link set lo up
exec env container=tests chroot "$root" /lib/systemd/systemd --unit=multi-user.target
"""


class Machine:
    """A machine that can be booted again and again.

    Attributes:
        root: its root directory, seen from here.
    """

    def __init__(self, directory: Path) -> None:
        self.root = directory / "machine"
        self._directory = directory
        self._daemon: Daemon | None = None
        images.debian_tree("systemd", _ROOTFS, self.root)

    def boot(self) -> None:
        """Boot it, and wait until systemd has done what belongs to a boot."""
        spaces = ("--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup", "--kill-child")
        argv = [need.program("unshare"), *spaces, "/bin/sh", "-c", _BOOT, "sh", str(self.root)]
        self._daemon = Daemon(argv, self._directory / "boot.log", env={**os.environ, "PATH": need.SEARCH})
        wait_until(lambda: self._init() != 0 and self._booted(), 60, "systemd", process=self._daemon)

    def run(self, *words: str, timeout: float = 90) -> subprocess.CompletedProcess[str]:
        """Run a command in it."""
        inside = [need.program("nsenter"), "-t", str(self._init()), "--all", "chroot", str(self.root)]
        environment = {"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", "LANG": "C.UTF-8"}
        return subprocess.run([*inside, *words], capture_output=True, text=True, timeout=timeout, env=environment)

    def power_off(self) -> None:
        """As when the plug is pulled."""
        if self._daemon is not None:
            if init := self._init():
                os.kill(init, signal.SIGKILL)
            self._daemon.stop()
            self._daemon = None

    def _init(self) -> int:
        """Its first process, as it is numbered here; 0 when there is none."""
        assert self._daemon is not None
        try:
            children = Path(f"/proc/{self._daemon.pid}/task/{self._daemon.pid}/children").read_text().split()
        except OSError:
            return 0
        return int(children[0]) if children else 0

    def _booted(self) -> bool:
        state = self.run("systemctl", "is-system-running").stdout.strip()
        return state in ("running", "degraded")
