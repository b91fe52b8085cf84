"""What happens when a part is missing: decided here, once.

Where the suite provisions its parts itself (as root on Debian or Ubuntu) and in CI, a missing part is a failure.
Elsewhere the test is skipped, saying which part is missing and how to get it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

PACKAGES = {
    "chromium-headless-shell": "chromium-headless-shell",
    "ctr": "containerd",
    "docker": "docker.io",
    "docker-registry": "docker-registry",
    "dockerd": "docker.io",
    "fusefat": "fusefat",
    "fusermount": "fuse",
    "ip": "iproute2",
    "iptables": "iptables",
    "losetup": "mount",
    "mkfs.exfat": "exfatprogs",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.vfat": "dosfstools",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "mount.exfat-fuse": "exfat-fuse",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "podman": "podman",
    "setpriv": "util-linux",
    "shellcheck": "shellcheck",
    "skopeo": "skopeo",
    "ssh-keygen": "openssh-client",
    "systemd-analyze": "systemd",
    "unshare": "util-linux",
}
"""Programs and the Debian package each comes from."""

GROUPS = {
    "browser": ("chromium-headless-shell",),
    "docker": ("docker", "dockerd", "iptables", "ip", "setpriv"),
    "registry": ("docker-registry", "skopeo", "setpriv"),
    "ctr": ("ctr",),
    "podman": ("podman",),
    "images": ("mmdebstrap",),
    "other-user": ("setpriv",),
    "machine": ("mmdebstrap", "unshare", "nsenter", "ip", "mount"),
    "netns": ("unshare", "ip"),
    "ext4": ("mkfs.ext4", "mount"),
    "exfat": ("mkfs.exfat", "mount.exfat-fuse", "losetup", "mount"),
    "fat": ("mkfs.vfat", "fusefat", "fusermount"),
    "shellcheck": ("shellcheck",),
    "ssh-keygen": ("ssh-keygen",),
    "systemd": ("systemd-analyze",),
}
"""Parts by the name used in ``@pytest.mark.real(...)``, and the programs each needs."""

NEED_ROOT = frozenset({"docker", "podman", "images", "machine", "netns", "exfat", "ext4", "fat", "other-user"})

SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def strict() -> bool:
    """Whether a missing part is a failure here."""
    return bool(os.environ.get("CI")) or (os.geteuid() == 0 and Path("/etc/debian_version").exists())


def program(name: str) -> str:
    """Absolute path of a program; the test fails or is skipped when it is missing."""
    found = shutil.which(name, path=SEARCH)
    if found is None:
        absent(name, f"apt-get install {PACKAGES.get(name, name)}, or scripts/provision as root")
    return found


def need(*names: str) -> None:
    """Insist on parts by name (`GROUPS`); the test fails or is skipped when one cannot be used here."""
    for name in names:
        if name not in GROUPS:
            raise KeyError(f"unknown part {name!r}; known: {', '.join(sorted(GROUPS))}")
        if name in NEED_ROOT and os.geteuid() != 0:
            absent(name, "run the tests as root")
        for each in GROUPS[name]:
            program(each)


def absent(part: str, cure: str) -> None:
    """End the test because a part is missing."""
    message = f"missing part: {part}. To get it: {cure}."
    if strict():
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
