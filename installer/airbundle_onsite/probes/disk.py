"""The filesystems behind the paths that an installation will use."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from airbundle_onsite.contract.fingerprint import DiskFacts
from airbundle_onsite.contract.record import record
from airbundle_onsite.probes.files import HostFiles


@record
class MountPoint:
    """A line of /proc/self/mountinfo."""

    point: str
    device: str
    filesystem: str
    options: tuple[str, ...]


def disk_facts(paths: Mapping[str, Path], files: HostFiles) -> tuple[DiskFacts, ...]:
    """Facts for each purpose; one whose filesystem cannot be asked is left out.

    Args:
        paths: purpose to path; paths need not exist yet, then their nearest existing parent counts.
        files: of the host.
    """
    table = mounts(files)
    facts = (_facts(purpose, path, files, table) for purpose, path in paths.items())
    return tuple(fact for fact in facts if fact is not None)


def mounts(files: HostFiles) -> list[MountPoint]:
    """The mount table, in mount order: a later entry hides an earlier one at the same point."""
    table = []
    for line in (files.text("/proc/self/mountinfo") or "").splitlines():
        left, separator, right = line.partition(" - ")
        head, tail = left.split(), right.split()
        if separator and len(head) >= 6 and len(tail) >= 1:
            options = head[5].split(",") + (tail[2].split(",") if len(tail) > 2 else [])
            table.append(MountPoint(_plain(head[4]), head[2], tail[0], tuple(options)))
    return table


def _plain(text: str) -> str:
    r"""Undo the kernel's escapes: ``\040`` is a blank. They stand for bytes, so that UTF-8 names survive."""
    if "\\" not in text:
        return text
    raw = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match.group(1), 8)]), text.encode("utf-8", "replace"))
    return raw.decode("utf-8", "replace")


def nearest_existing(path: Path, files: HostFiles) -> Path:
    """`path`, or its nearest parent that exists, with links followed."""
    candidate = Path(os.path.realpath(path)) if files.here else path
    while not files.path(str(candidate)).exists() and candidate != candidate.parent:
        candidate = candidate.parent
    return candidate


def _facts(purpose: str, path: Path, files: HostFiles, table: list[MountPoint]) -> Optional[DiskFacts]:
    existing = nearest_existing(path, files)
    mount = _mount_of(existing, table)
    try:
        space = os.statvfs(files.path(str(existing)))
        number = files.path(str(existing)).stat().st_dev
    except OSError:
        return None
    options = mount.options if mount else ()
    return DiskFacts(
        purpose=purpose,
        path=str(path),
        mount=mount.point if mount else "",
        filesystem=mount.filesystem if mount else "",
        # The mount table's number: btrfs gives every subvolume an st_dev of its own, though they share free space.
        device=mount.device if mount else f"{os.major(number)}:{os.minor(number)}",
        total=space.f_blocks * space.f_frsize,
        free=space.f_bavail * space.f_frsize,
        read_only="ro" in options or bool(space.f_flag & os.ST_RDONLY),
        noexec="noexec" in options,
    )


def _mount_of(path: Path, table: list[MountPoint]) -> Optional[MountPoint]:
    best: Optional[MountPoint] = None
    for mount in table:
        inside = path == Path(mount.point) or Path(mount.point) in path.parents
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
