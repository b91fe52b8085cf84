"""HardwareProfile: the hardware a bundle is built for; data in profiles/*.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Optional

from airbundle_onsite.contract.record import record


@record
class GpuProfile:
    """The GPU of a profile.

    Attributes:
        names: regular expressions, one of which the NVML name must match in full.
        capability: compute capability, e.g. ``"9.0"``.
        memory: bytes as NVML reports them in total, lowest of the variants seen.
        count: lowest number of such GPUs.
        min_driver: lowest driver version, e.g. ``"525.60.13"``.
        bandwidth: memory bandwidth in bytes per second, from the vendor's data sheet.
        l2: bytes of L2 cache, from the vendor's data sheet.
        link: how GPUs reach each other: ``none``, ``pcie`` or ``nvlink``.
        dtypes: data types computed in hardware.
    """

    names: tuple[str, ...]
    capability: str
    memory: int
    count: int = 1
    min_driver: str = ""
    bandwidth: int = 0
    l2: int = 0
    link: str = "none"
    dtypes: tuple[str, ...] = ()


@record
class HardwareProfile:
    """A class of hosts.

    Attributes:
        id: file name without ending, e.g. ``h200-sxm``.
        title: for people.
        arch: as `uname -m` prints it.
        gpu: None for a CPU profile.
        cpu_flags: flags every such CPU has, as in /proc/cpuinfo.
        min_memory: bytes of host memory.
        min_glibc: lowest glibc, e.g. ``"2.28"``; the wheels are resolved for it.
        numa_nodes: of the host; 0 when it is not known, as in a profile of many hosts.
        notes: what engines can and cannot do there, for people.
        sources: where each fact comes from.
    """

    id: str
    title: str
    arch: str = "x86_64"
    gpu: Optional[GpuProfile] = None
    cpu_flags: tuple[str, ...] = ()
    min_memory: int = 0
    min_glibc: str = ""
    numa_nodes: int = 0
    notes: tuple[str, ...] = ()
    sources: Mapping[str, Any] = field(default_factory=dict)
