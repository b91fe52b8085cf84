"""GPUs through NVML: no driver, no GPU and a failed query are three different things."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Optional

from airbundle_onsite.contract.fingerprint import Gpu, GpuFacts
from airbundle_onsite.contract.record import record
from airbundle_onsite.probes.files import HostFiles, integer
from airbundle_onsite.probes.gpulinks import Wired, Wiring, links, wiring
from airbundle_onsite.probes.nvml import Session, kernel_driver, library_version, load_nvml, pci_gpus, text

_COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
_CLOCK_SM, _CLOCK_MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_PSTATE_UNKNOWN = 32


@record
class SystemMemory:
    """Total and available bytes of the host, for GPUs that share its memory."""

    total: Optional[int] = None
    available: Optional[int] = None


def gpu_facts(files: HostFiles, system: SystemMemory, nvml: Any = None) -> GpuFacts:
    """What the driver says of the GPUs.

    Args:
        files: of the host.
        system: its memory.
        nvml: a module like pynvml; None loads the vendored one.
    """
    kernel = kernel_driver(files)
    if nvml is None:
        try:
            nvml = load_nvml()
        except OSError as error:
            return _no_driver(files, kernel, str(error))
    session = Session(nvml)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _init_failed(session, error, files, kernel)
    try:
        return _read(session, files, system, kernel)
    except nvml.NVMLError as error:  # not even the number of GPUs could be read
        return GpuFacts(
            state="failed",
            driver=library_version(files),
            kernel_driver=kernel,
            error=f"NVML: {error}",
            library=session.file,
        )
    finally:
        session.close()


def _no_driver(files: HostFiles, kernel: Optional[str], reason: str) -> GpuFacts:
    hardware = pci_gpus(files)
    seen = f"{hardware} NVIDIA GPU(s) on the PCI bus" if hardware else "no NVIDIA GPU on the PCI bus"
    return GpuFacts(state="no-driver", kernel_driver=kernel, error=f"{reason}; {seen}")


def _init_failed(session: Session, error: Any, files: HostFiles, kernel: Optional[str]) -> GpuFacts:
    nvml, code = session.nvml, session.code(error)
    if code in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
        return _no_driver(files, kernel, f"NVML: {error}")
    library = library_version(files)
    reason = f"NVML: {error}"
    if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        reason = (
            f"the driver's library is version {library or 'unknown'}, "
            f"the loaded kernel module is version {kernel or 'unknown'}"
        )
    return GpuFacts(state="failed", driver=library, kernel_driver=kernel, error=reason, library=session.file)


def _read(session: Session, files: HostFiles, system: SystemMemory, kernel: Optional[str]) -> GpuFacts:
    unread: dict[str, str] = {}
    count = session.nvml.nvmlDeviceGetCount()
    driver = text(session.ask("driver", unread, "nvmlSystemGetDriverVersion"))
    number = session.ask("cuda", unread, "nvmlSystemGetCudaDriverVersion_v2")
    cuda = f"{number // 1000}.{number % 1000 // 10}" if number else None
    if not count:
        return GpuFacts(state="no-gpu", driver=driver, kernel_driver=kernel, cuda=cuda, library=session.file)
    devices: list[Gpu] = []
    whole: list[Wired] = []
    for position in range(count):
        lost: dict[str, str] = {}
        handle = session.ask("handle", lost, "nvmlDeviceGetHandleByIndex", position)
        if handle is None:
            devices.append(Gpu(index=len(devices), unread=lost))
            continue
        pieces = list(_slices(session, handle))
        parent = text(session.ask("parent", {}, "nvmlDeviceGetUUID", handle)) if pieces else None
        for piece in pieces:
            device = _device(session, system, piece, len(devices), wires=Wiring(), unread={})
            devices.append(_placed(dataclasses.replace(device, mig=True, parent=parent), files))
        if not pieces:
            notes: dict[str, str] = {}
            wires = wiring(session, handle, notes)
            device = _placed(_device(session, system, handle, len(devices), wires=wires, unread=notes), files)
            devices.append(device)
            whole.append(Wired(device.index, handle, device.pci_bus, wires.remotes, wires.speed))
    return GpuFacts(
        state="ok",
        driver=driver,
        kernel_driver=kernel,
        cuda=cuda,
        devices=tuple(devices),
        links=links(session, whole),
        library=session.file,
    )


def _slices(session: Session, handle: Any) -> Iterator[Any]:
    """Handles of the MIG slices of a GPU in MIG mode; none when it is whole."""
    ignored: dict[str, str] = {}
    mode = session.ask("mode", ignored, "nvmlDeviceGetMigMode", handle)
    if not mode or mode[0] != 1:
        return
    most = session.ask("count", ignored, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    for number in range(most):
        piece = session.ask("slice", ignored, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        if piece is not None:
            yield piece


def _placed(gpu: Gpu, files: HostFiles) -> Gpu:
    """With the NUMA node of its PCI device, for which NVML has no question: its own speaks of memory on the GPU."""
    domain, _, rest = (gpu.pci_bus or "").partition(":")
    node = integer(files.value(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node")) if rest else None
    return gpu if node is None or node < 0 else dataclasses.replace(gpu, numa_node=node)


def _device(
    session: Session, system: SystemMemory, handle: Any, index: int, *, wires: Wiring, unread: dict[str, str]
) -> Gpu:
    def ask(field: str, name: str, *arguments: Any) -> Any:
        return session.ask(field, unread, name, handle, *arguments)

    def first(field: str, name: str) -> Optional[bool]:
        """Of NVML's (current, pending) pair, the current one."""
        pair = ask(field, name)
        return bool(pair[0]) if pair else None

    total, free, unified = _memory(session, system, handle, unread)
    capability = ask("capability", "nvmlDeviceGetCudaComputeCapability")
    persistence = ask("persistence", "nvmlDeviceGetPersistenceMode")
    bar1 = ask("bar1", "nvmlDeviceGetBAR1MemoryInfo")
    pci = ask("pci_bus", "nvmlDeviceGetPciInfo")
    processes = ask("processes", "nvmlDeviceGetComputeRunningProcesses")
    mode = ask("compute_mode", "nvmlDeviceGetComputeMode")
    state = ask("performance_state", "nvmlDeviceGetPerformanceState")
    return Gpu(
        index=index,
        name=text(ask("name", "nvmlDeviceGetName")),
        uuid=text(ask("uuid", "nvmlDeviceGetUUID")),
        capability=f"{capability[0]}.{capability[1]}" if capability else None,
        memory_total=total,
        memory_free=free,
        unified_memory=unified,
        mig=first("mig", "nvmlDeviceGetMigMode"),
        pci_bus=(text(pci.busId) or "").lower() or None if pci is not None else None,
        pcie_generation=ask("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_generation_max=ask("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_generation_gpu=ask("pcie_generation_gpu", "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        pcie_width=ask("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=ask("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
        nvlinks_active=len(wires.remotes) if wires.remotes is not None else None,
        nvlink_version=wires.version,
        nvlink_speed=wires.speed,
        ecc=first("ecc", "nvmlDeviceGetEccMode"),
        persistence=bool(persistence) if persistence is not None else None,
        compute_mode=_COMPUTE_MODES.get(mode, str(mode)) if mode is not None else None,
        power_limit=_watts(ask("power_limit", "nvmlDeviceGetPowerManagementLimit")),
        power_default=_watts(ask("power_default", "nvmlDeviceGetPowerManagementDefaultLimit")),
        power_enforced=_watts(ask("power_enforced", "nvmlDeviceGetEnforcedPowerLimit")),
        performance_state=state if state is not None and state < _PSTATE_UNKNOWN else None,
        clock_sm=ask("clock_sm", "nvmlDeviceGetClockInfo", _CLOCK_SM),
        clock_memory=ask("clock_memory", "nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
        clock_sm_max=ask("clock_sm_max", "nvmlDeviceGetMaxClockInfo", _CLOCK_SM),
        clock_memory_max=ask("clock_memory_max", "nvmlDeviceGetMaxClockInfo", _CLOCK_MEMORY),
        bar1=int(bar1.bar1Total) if bar1 is not None else None,
        processes=len(processes) if processes is not None else None,
        unread=unread,
    )


def _memory(
    session: Session, system: SystemMemory, handle: Any, unread: dict[str, str]
) -> tuple[Optional[int], Optional[int], bool]:
    """Total and free bytes, and whether they are the host's own memory.

    The first version of the call, then the second; a GPU that supports neither has no memory of its own.
    """
    nvml = session.nvml
    unsupported = False
    for options in ({}, {"version": getattr(nvml, "nvmlMemory_v2", None)}):
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, **options)
        except nvml.NVMLError as error:
            unsupported = session.code(error) == nvml.NVML_ERROR_NOT_SUPPORTED
            unread["memory"] = str(error)
            continue
        unread.pop("memory", None)
        return int(memory.total), int(memory.free), False
    if unsupported:
        unread["memory"] += ": unified memory, the host's is given"
        return system.total, system.available, system.total is not None
    return None, None, False


def _watts(milliwatts: Optional[int]) -> Optional[float]:
    return milliwatts / 1000 if milliwatts is not None else None
