"""What control groups, versions 1 and 2, leave to this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from airbundle_onsite.contract.record import record
from airbundle_onsite.probes.files import HostFiles, integer

_MOUNT = "/sys/fs/cgroup"
_V1_UNLIMITED = 2**60  # version 1 writes "no limit" as the largest page-aligned number


@record
class CgroupLimits:
    """Limits on this process; None where there is none.

    Attributes:
        version: 1 or 2; None when no control groups are mounted.
        cpus: cores' worth of time it may use.
        memory: bytes it may use in total.
        memory_free: bytes left of that, counting droppable page cache as free.
    """

    version: Optional[int] = None
    cpus: Optional[float] = None
    memory: Optional[int] = None
    memory_free: Optional[int] = None


def limits(files: HostFiles) -> CgroupLimits:
    """The tightest limits from this process's own group up to the root."""
    own = _own_groups(files)
    if files.exists(f"{_MOUNT}/cgroup.controllers"):
        groups = list(_upwards(_MOUNT, own.get("", "/")))
        memory = [_memory(files, group, "memory.max", "memory.current", "inactive_file") for group in groups]
        return _combine(2, [_cpus_v2(files, group) for group in groups], memory)
    if files.exists(f"{_MOUNT}/memory") or files.exists(f"{_MOUNT}/cpu"):
        cpu_groups = _upwards(f"{_MOUNT}/cpu", own.get("cpu", "/"))
        memory_groups = _upwards(f"{_MOUNT}/memory", own.get("memory", "/"))
        memory = [
            _memory(files, group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            for group in memory_groups
        ]
        return _combine(1, [_cpus_v1(files, group) for group in cpu_groups], memory)
    return CgroupLimits()


def _own_groups(files: HostFiles) -> dict[str, str]:
    """Controller (empty for version 2) → path of this process's group below that controller's mount."""
    groups: dict[str, str] = {}
    for line in (files.text("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _upwards(mount: str, path: str) -> Iterator[str]:
    """The group's directory and all above it. In a container the own path may not exist below the mount;
    its files then read as absent, and the mount itself holds the container's limits."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield "/".join([mount, *parts[:count]])


def _cpus_v2(files: HostFiles, group: str) -> Optional[float]:
    words = (files.value(f"{group}/cpu.max") or "").split()
    quota, period = (integer(words[0]), integer(words[1])) if len(words) == 2 else (None, None)
    return quota / period if quota and period else None


def _cpus_v1(files: HostFiles, group: str) -> Optional[float]:
    quota = integer(files.value(f"{group}/cpu.cfs_quota_us"))
    period = integer(files.value(f"{group}/cpu.cfs_period_us"))
    return quota / period if quota and quota > 0 and period else None


def _memory(files: HostFiles, group: str, limit: str, usage: str, cache: str) -> tuple[Optional[int], Optional[int]]:
    """Limit of a group and what is left of it."""
    top = integer(files.value(f"{group}/{limit}"))
    if top is None or top >= _V1_UNLIMITED:
        return None, None
    used = integer(files.value(f"{group}/{usage}"))
    if used is None:
        return top, None
    droppable = 0
    for line in (files.text(f"{group}/memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == cache:
            droppable = integer(value) or 0
    return top, max(0, top - max(0, used - droppable))


def _combine(
    version: int, cpus: list[Optional[float]], memory: list[tuple[Optional[int], Optional[int]]]
) -> CgroupLimits:
    return CgroupLimits(
        version=version,
        cpus=min((value for value in cpus if value is not None), default=None),
        memory=min((top for top, _ in memory if top is not None), default=None),
        memory_free=min((left for _, left in memory if left is not None), default=None),
    )
