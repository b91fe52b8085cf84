"""Operating system, CPU, memory and clock."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Callable
from typing import Optional

from airbundle_onsite.contract.fingerprint import CpuFacts, MemoryFacts, OsFacts
from airbundle_onsite.probes.cgroups import CgroupLimits
from airbundle_onsite.probes.files import HostFiles, id_list, integer
from airbundle_onsite.system import Runner

_GLIBC = re.compile(rb"GNU C Library [^\n]*?version (\d+\.\d+)")
_LIBC_PLACES = ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "usr/lib64", "usr/lib", "lib")
_CPU_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def os_facts(files: HostFiles, limits: CgroupLimits) -> OsFacts:
    """Distribution, kernel, glibc, SELinux, init and who is asking."""
    system = os.uname()
    return OsFacts(
        machine=system.machine,
        kernel=system.release,
        distribution=_distribution(files),
        glibc=_glibc(files),
        selinux=_selinux(files),
        init="systemd" if files.exists("/run/systemd/system") else files.value("/proc/1/comm"),
        cgroup=limits.version,
        euid=os.geteuid(),
    )


def _distribution(files: HostFiles) -> str:
    text = files.text("/etc/os-release") or files.text("/usr/lib/os-release") or ""
    values = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        values[key.strip()] = value.strip().strip("\"'")
    name = f"{values.get('NAME', '')} {values.get('VERSION', values.get('VERSION_ID', ''))}".strip()
    return values.get("PRETTY_NAME") or name


def _glibc(files: HostFiles) -> Optional[str]:
    if files.here:
        try:
            words = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        except (ValueError, OSError):  # another C library, such as musl, does not know the name
            return None
        return words[1] if len(words) == 2 and words[0] == "glibc" else None
    for place in _LIBC_PLACES:  # another host's files: its library carries the version as text
        try:
            found = _GLIBC.search(files.path(f"{place}/libc.so.6").read_bytes())
        except OSError:
            continue
        if found:
            return found.group(1).decode()
    return None


def _selinux(files: HostFiles) -> Optional[str]:
    enforce = files.value("/sys/fs/selinux/enforce")
    if enforce is not None:
        return "enforcing" if enforce == "1" else "permissive"
    return "disabled" if files.exists("/sys/fs") else None


def cpu_facts(files: HostFiles, limits: CgroupLimits) -> CpuFacts:
    """What this process may use: its affinity, then its control group's share, rounded down but never to none."""
    blocks = _cpuinfo(files)
    first = blocks[0] if blocks else {}
    allowed = _allowed(files)
    logical = len(allowed) if allowed else (len(blocks) or None)
    physical = _physical(files, allowed)
    if limits.cpus is not None:
        share = max(1, int(limits.cpus))
        logical = min(logical, share) if logical else share
    if physical and logical:
        physical = min(physical, logical)
    nodes = [name for name in files.names("/sys/devices/system/node") if re.fullmatch(r"node\d+", name)]
    return CpuFacts(
        model=first.get("model name") or _arm_model(first),
        logical=logical,
        physical=physical,
        flags=tuple((first.get("flags") or first.get("Features") or "").split()),
        numa_nodes=len(nodes) or None,
    )


def _cpuinfo(files: HostFiles) -> list[dict[str, str]]:
    blocks: list[dict[str, str]] = []
    for block in (files.text("/proc/cpuinfo") or "").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
        values = {key.strip(): value.strip() for key, _, value in pairs}
        if "processor" in values:
            blocks.append(values)
    return blocks


def _arm_model(block: dict[str, str]) -> str:
    maker, part = block.get("CPU implementer"), block.get("CPU part")
    return f"ARM implementer {maker} part {part}" if maker and part else ""


def _allowed(files: HostFiles) -> set[int]:
    for line in (files.text("/proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            try:
                return id_list(value)
            except ValueError:
                break
    return set()


def _physical(files: HostFiles, allowed: set[int]) -> Optional[int]:
    """Cores behind the allowed hardware threads: one for each distinct set of siblings."""
    cores = {files.value(_CPU_TOPOLOGY.format(number)) for number in allowed}
    return len(cores) if cores and None not in cores else None


def memory_facts(files: HostFiles, limits: CgroupLimits) -> MemoryFacts:
    """Host memory, lowered by a control group's limit."""
    values = {}
    for line in (files.text("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        kib = integer(rest.split()[0]) if rest.split() else None
        if kib is not None:
            values[name] = kib * 1024
    total, available = values.get("MemTotal"), values.get("MemAvailable")
    return MemoryFacts(
        total=_lower(total, limits.memory), available=_lower(available, limits.memory_free), shm=_shm(files)
    )


def _lower(value: Optional[int], limit: Optional[int]) -> Optional[int]:
    known = [number for number in (value, limit) if number is not None]
    return min(known) if known else None


def _shm(files: HostFiles) -> Optional[int]:
    try:
        status = os.statvfs(files.path("/dev/shm"))
    except OSError:
        return None
    return status.f_blocks * status.f_frsize


def kernel_clock_synchronised() -> Optional[bool]:
    """What the kernel says of its clock (adjtimex, which reads without privilege); None when it cannot be asked."""
    buffer = ctypes.create_string_buffer(512)  # struct timex with room to spare; modes = 0 only reads
    try:
        state = ctypes.CDLL(None).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    unsynchronised = 0x40  # STA_UNSYNC; `status` follows one int, padding and four longs
    (status,) = struct.unpack_from("@i", buffer, 5 * struct.calcsize("@l"))
    return not status & unsynchronised


def clock_synchronised(
    runner: Runner, kernel: Callable[[], Optional[bool]] = kernel_clock_synchronised
) -> Optional[bool]:
    """Whether something keeps the clock right.

    The kernel's flag first; chrony run without rtcsync leaves that flag unset, so it is asked too.
    """
    told = kernel()
    if told:
        return True
    done = runner.run(["chronyc", "-c", "tracking"], timeout=3)
    if done.code == 0 and "," in done.stdout:
        return done.stdout.strip().rsplit(",", 1)[-1] == "Normal"
    return told
