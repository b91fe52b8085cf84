"""A fingerprint in words: what a person looks at first, and what could not be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from airbundle_onsite.contract.fingerprint import Fingerprint, Gpu, GpuLink, idle
from airbundle_onsite.units import human_bytes


def fingerprint_text(taken: Fingerprint) -> str:
    """A few lines on the host, one for each GPU and each pair of them, and what was not readable."""
    return "\n".join(f"{label:11}{text}" for label, text in _lines(taken))


def _lines(taken: Fingerprint) -> Iterator[tuple[str, str]]:
    system, memory = taken.os, taken.memory
    glibc = f", glibc {system.glibc}" if system.glibc else ""
    yield "System", f"{system.distribution or 'unknown distribution'}, kernel {system.kernel}, {system.machine}{glibc}"
    cores = f"{taken.cpu.physical or '?'} cores, {taken.cpu.logical or '?'} threads usable"
    yield "CPU", f"{taken.cpu.model or 'unknown'}; {cores}; {_vectors(taken)}"
    yield "Memory", f"{_size(memory.total)}, {_size(memory.available)} available; /dev/shm {_size(memory.shm)}"
    for disk in taken.disks:
        notes = "".join(
            f", {word}" for word, is_so in (("read-only", disk.read_only), ("noexec", disk.noexec)) if is_so
        )
        place = f"{disk.path} ({disk.filesystem} on {disk.mount}{notes})"
        yield "Disk", f"{disk.purpose}: {human_bytes(disk.free)} free of {human_bytes(disk.total)} at {place}"
    yield "Containers", _engine(taken)
    yield "GPU driver", _driver(taken)
    for gpu in taken.gpu.devices:
        yield f"GPU {gpu.index}", gpu_text(gpu)
    for link in taken.gpu.links:
        yield f"GPUs {link.a}-{link.b}", link_text(link)
    usable = ", ".join(f"{python.version} {python.path}" for python in taken.pythons)
    yield "Python", usable or "none of 3.9 or newer"
    told = {True: "synchronised", False: "not synchronised", None: "unknown whether synchronised"}
    yield "Clock", told[taken.clock_synchronised]


def _size(count: Optional[int]) -> str:
    return "unknown" if count is None else human_bytes(count)


def _vectors(taken: Fingerprint) -> str:
    known = ("avx2", "avx512f", "amx_tile", "asimd", "sve")
    have = [flag for flag in known if flag in taken.cpu.flags]
    return ", ".join(have) or "no vector extensions seen"


def _engine(taken: Fingerprint) -> str:
    docker = taken.docker
    if docker.state != "ok":
        return f"{docker.state}{': ' + docker.error if docker.error else ''}"
    ways = [f"{len(docker.cdi)} CDI devices"] if docker.cdi else []
    ways += ["nvidia runtime"] if "nvidia" in docker.runtimes else []
    ways += [f"toolkit at {docker.gpu_toolkit}"] if docker.gpu_toolkit else []
    gpus = ", ".join(ways) or "no NVIDIA toolkit"
    return f"{docker.server} {docker.version}, images in {docker.image_store} ({docker.storage_driver}); {gpus}"


def _driver(taken: Fingerprint) -> str:
    facts = taken.gpu
    if facts.state in ("no-driver", "failed"):
        return f"{facts.state}: {facts.error}"
    module = f", kernel module {facts.kernel_driver}" if facts.kernel_driver else ""
    none = "; it sees no GPU" if facts.state == "no-gpu" else ""
    return f"{facts.driver or 'unknown version'}{module}, CUDA {facts.cuda or 'unknown'}{none}"


def gpu_text(gpu: Gpu) -> str:
    """One GPU in one line."""
    if "handle" in gpu.unread:
        return f"does not answer: {gpu.unread['handle']}"
    shared = " shared with the host" if gpu.unified_memory else ""
    parts = [
        f"{gpu.name or 'unknown'}, compute capability {gpu.capability or 'unknown'}",
        f"{_size(gpu.memory_total)}{shared}, {_size(gpu.memory_free)} free",
        pcie_text(gpu),
    ]
    if gpu.nvlinks_active:
        parts.append(f"{gpu.nvlinks_active} NVLinks{' ' + gpu.nvlink_version if gpu.nvlink_version else ''}")
    if gpu.numa_node is not None:
        parts.append(f"NUMA node {gpu.numa_node}")
    if gpu.parent:
        parts.append(f"MIG slice of {gpu.parent}")
    return "; ".join(part for part in parts if part)


def pcie_text(gpu: Gpu) -> str:
    """Generation and width, and whether the generation is low only because the GPU rests; empty when not read."""
    generation, most = gpu.pcie_generation, gpu.pcie_generation_max
    if generation is None or gpu.pcie_width is None:
        return ""
    width = f"x{gpu.pcie_width}" + (f" of x{gpu.pcie_width_max}" if gpu.pcie_width < (gpu.pcie_width_max or 0) else "")
    if most is None or generation >= most:
        return f"PCIe {generation} {width}"
    why = "lowered while idle" if idle(gpu) else "measure it under load"
    return f"PCIe {generation} now, {most} at most ({why}) {width}"


def link_text(link: GpuLink) -> str:
    """How two GPUs reach each other, in one line."""
    if link.nvlinks:
        speed = f", {link.nvlink_speed / 1e9:.0f} GB/s each way" if link.nvlink_speed else ""
        ways = f"{link.nvlinks} NVLinks{speed}"
    else:
        ways = "no NVLink" if link.nvlinks == 0 else "NVLink unknown"
    return f"{ways}; PCIe topology {link.topology or 'unknown'}; peer to peer {link.p2p or 'unknown'}"


def more_as_root(taken: Fingerprint) -> tuple[str, ...]:
    """What root would add to a fingerprint taken without it; empty when it was root, or would add nothing."""
    if taken.os.euid in (None, 0):
        return ()
    more = []
    if taken.docker.state == "denied":
        more.append("the container engine: version, where it stores images, whether it can give GPUs to containers")
    refused = [
        f"GPU {gpu.index}: {field.replace('_', ' ')}"
        for gpu in taken.gpu.devices
        for field, reason in gpu.unread.items()
        if "permission" in reason.lower()
    ]
    if "permission" in taken.gpu.error.lower():
        refused.append("every fact of the GPUs")
    return (*more, *refused)
