"""Fingerprint: what a host is, as far as it can be read without changing anything.

Every field that could not be read is None or empty: unknown is never written as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, Optional

from airbundle_onsite.contract.record import record

FINGERPRINT_VERSION = 1
_IDLE_STATE = 5  # performance states from here on mean that the GPU rests


@record
class OsFacts:
    """Operating system: kernel release, distribution, glibc version such as ``"2.36"``, machine as `uname -m`."""

    machine: str
    kernel: str
    distribution: str = ""
    glibc: Optional[str] = None
    selinux: Optional[str] = None
    init: Optional[str] = None
    cgroup: Optional[int] = None
    euid: Optional[int] = None


@record
class CpuFacts:
    """CPU: logical and physical cores this process may use, flags as in /proc/cpuinfo."""

    model: str = ""
    logical: Optional[int] = None
    physical: Optional[int] = None
    flags: tuple[str, ...] = ()
    numa_nodes: Optional[int] = None


@record
class MemoryFacts:
    """Host memory in bytes; `shm` is the size of /dev/shm. A cgroup limit lowers `total`."""

    total: Optional[int] = None
    available: Optional[int] = None
    shm: Optional[int] = None


@record
class DiskFacts:
    """The filesystem behind a path that will be used.

    Attributes:
        purpose: ``root``, ``docker``, ``bundle``, ``temp``.
        path: the path asked for.
        mount: its mount point.
        filesystem: type, e.g. ``ext4``.
        device: st_dev as text: equal for paths that share free space.
        total, free: bytes; free for an unprivileged process.
        read_only, noexec: mount options.
    """

    purpose: str
    path: str
    mount: str
    filesystem: str
    device: str
    total: int
    free: int
    read_only: bool = False
    noexec: bool = False


@record
class DockerFacts:
    """A docker engine (or podman behind its docker-compatible API).

    Attributes:
        state: ``ok``; ``absent`` (no socket, no client); ``denied`` (no permission); ``failed`` (`error` says why).
        server: ``docker`` or ``podman``.
        storage_driver: e.g. ``overlay2``; with the containerd store ``containerd:<snapshotter>``.
        image_store: directory where image layers really land (containerd's root, if that is the store).
        runtimes: names known to the engine.
        cdi: device names of CDI specifications on the host.
        gpu_toolkit: path of NVIDIA's container toolkit on the host, whether or not the engine uses it.
        cgroup_driver: ``systemd`` or ``cgroupfs``: who manages the containers' control groups.
    """

    state: Literal["ok", "absent", "denied", "failed"]
    server: str = ""
    version: str = ""
    api_version: str = ""
    min_api_version: str = ""
    storage_driver: str = ""
    image_store: str = ""
    socket: str = ""
    runtimes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    gpu_toolkit: str = ""
    cgroup_driver: str = ""
    snap: bool = False
    rootless: bool = False
    error: str = ""


@record
class GpuLink:
    """How two GPUs reach each other: by their indices.

    Attributes:
        a, b: indices.
        topology: NVML's common ancestor: ``internal single multiple hostbridge node system``.
        nvlinks: active NVLink links between them; None when it could not be read.
        nvlink_speed: bytes per second of these links together, in each direction; None when it could not be read.
        p2p: NVML's read-capability status: ``ok`` or the reason.
    """

    a: int
    b: int
    topology: Optional[str] = None
    nvlinks: Optional[int] = None
    nvlink_speed: Optional[int] = None
    p2p: Optional[str] = None


@record
class Gpu:
    """One GPU, or one MIG slice. Sizes in bytes, power in watts, clocks in MHz.

    Attributes:
        parent: for a MIG slice, the UUID of the GPU it is cut from.
        pcie_generation, pcie_width: at this moment; idle GPUs lower the generation.
        pcie_generation_max, pcie_width_max: what GPU and slot reach together.
        pcie_generation_gpu: what the GPU alone could.
        performance_state: 0 (fastest) to 15; 8 and above when idle.
        numa_node: of the PCI device, as the kernel says; None on hosts without NUMA.
        nvlink_version: e.g. ``"4.0"``.
        nvlink_speed: bytes per second of one link, in each direction.
        power_limit, power_default, power_enforced: set, by default, and the lowest that any limiter enforces.
        clock_sm, clock_memory: at this moment; with ``_max`` what they can reach.
        unread: field → why it could not be read.
    """

    index: int
    name: Optional[str] = None
    uuid: Optional[str] = None
    capability: Optional[str] = None
    memory_total: Optional[int] = None
    memory_free: Optional[int] = None
    unified_memory: bool = False
    mig: Optional[bool] = None
    parent: Optional[str] = None
    pci_bus: Optional[str] = None
    pcie_generation: Optional[int] = None
    pcie_generation_max: Optional[int] = None
    pcie_generation_gpu: Optional[int] = None
    pcie_width: Optional[int] = None
    pcie_width_max: Optional[int] = None
    nvlinks_active: Optional[int] = None
    nvlink_version: Optional[str] = None
    nvlink_speed: Optional[int] = None
    numa_node: Optional[int] = None
    ecc: Optional[bool] = None
    persistence: Optional[bool] = None
    compute_mode: Optional[str] = None
    power_limit: Optional[float] = None
    power_default: Optional[float] = None
    power_enforced: Optional[float] = None
    performance_state: Optional[int] = None
    clock_sm: Optional[int] = None
    clock_memory: Optional[int] = None
    clock_sm_max: Optional[int] = None
    clock_memory_max: Optional[int] = None
    bar1: Optional[int] = None
    processes: Optional[int] = None
    unread: Mapping[str, str] = field(default_factory=dict)


def idle(gpu: Gpu) -> Optional[bool]:
    """Whether the GPU rests, so that its clocks and its PCIe generation are lowered; None when that is not known."""
    if gpu.performance_state is not None and gpu.performance_state >= _IDLE_STATE:
        return True
    # Some models stay in the fastest state while they rest, and only lower the clock.
    if gpu.clock_sm is None or gpu.clock_sm_max is None:
        return None
    return gpu.clock_sm < gpu.clock_sm_max / 2


@record
class GpuFacts:
    """What NVML says.

    Attributes:
        state: ``ok``; ``no-driver`` (library absent or driver not loaded); ``no-gpu`` (driver, no device);
            ``failed`` (`error` says why, e.g. a user-space driver newer than the kernel module).
        driver: of the user-space library; kernel_driver: of the loaded module.
        cuda: highest CUDA version of the driver, e.g. ``"13.0"``.
        library: which pynvml file answered.
    """

    state: Literal["ok", "no-driver", "no-gpu", "failed"]
    driver: Optional[str] = None
    kernel_driver: Optional[str] = None
    cuda: Optional[str] = None
    devices: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    error: str = ""
    library: str = ""


@record
class PythonFacts:
    """A Python interpreter found on the host; `venv` says whether `import venv` works."""

    path: str
    version: str
    venv: bool = False


@record
class Fingerprint:
    """Everything known of a host.

    Attributes:
        fingerprint_version: of this document.
        taken: seconds since the epoch by the host's own clock.
        clock_synchronised: whether the host says so; None when it cannot tell.
        ports_in_use: TCP ports listened on.
        extra: facts of later versions.
    """

    fingerprint_version: int
    taken: int
    os: OsFacts
    cpu: CpuFacts
    memory: MemoryFacts
    disks: tuple[DiskFacts, ...]
    docker: DockerFacts
    gpu: GpuFacts
    pythons: tuple[PythonFacts, ...] = ()
    podman: str = ""
    clock_synchronised: Optional[bool] = None
    ports_in_use: tuple[int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
