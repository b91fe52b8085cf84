"""System, CPU, memory, control groups, clock, ports: read from made-up hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from airbundle_onsite.probes.cgroups import CgroupLimits, limits
from airbundle_onsite.probes.files import HostFiles, id_list
from airbundle_onsite.probes.host import clock_synchronised, cpu_facts, memory_facts, os_facts
from airbundle_onsite.probes.ports import listening
from unit.onsite.hosts import FakeRunner

NONE = CgroupLimits()
MEMINFO = "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:   12000000 kB\nHugePages_Total:       0\n"


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    return HostFiles(tmp_path)


def put(files: HostFiles, name: str, text: str) -> None:
    path = files.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def cpuinfo(count: int, **facts: str) -> str:
    lines = "".join(f"{key}\t: {value}\n" for key, value in facts.items())
    return "".join(f"processor\t: {number}\n{lines}\n" for number in range(count))


def test_id_lists() -> None:
    assert id_list("0-2,5\n") == {0, 1, 2, 5}
    assert id_list("") == set()
    with pytest.raises(ValueError):
        id_list("0-x")


def test_a_host_of_which_nothing_can_be_read(files: HostFiles) -> None:
    system = os_facts(files, NONE)
    assert system.machine and system.kernel  # the kernel itself answers these
    assert (system.distribution, system.glibc, system.selinux, system.init, system.cgroup) == (
        "",
        None,
        None,
        None,
        None,
    )
    cpu = cpu_facts(files, limits(files))
    assert (cpu.model, cpu.logical, cpu.physical, cpu.flags, cpu.numa_nodes) == ("", None, None, (), None)
    memory = memory_facts(files, limits(files))
    assert (memory.total, memory.available, memory.shm) == (None, None, None)
    assert listening(files) == ()


def test_distribution_with_and_without_a_pretty_name(files: HostFiles) -> None:
    put(files, "/usr/lib/os-release", "NAME='openEuler'\nVERSION_ID=\"22.03\"\n")
    assert os_facts(files, NONE).distribution == "openEuler 22.03"
    put(files, "/etc/os-release", '# comment\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
    assert os_facts(files, NONE).distribution == "Debian GNU/Linux 12 (bookworm)"


@pytest.mark.parametrize(("text", "state"), [("1", "enforcing"), ("0\n", "permissive")])
def test_selinux(files: HostFiles, text: str, state: str) -> None:
    put(files, "/sys/fs/selinux/enforce", text)
    assert os_facts(files, NONE).selinux == state


def test_selinux_disabled_and_init(files: HostFiles) -> None:
    files.path("/sys/fs").mkdir(parents=True)
    put(files, "/proc/1/comm", "runit\n")
    assert os_facts(files, NONE).selinux == "disabled"
    assert os_facts(files, NONE).init == "runit"
    files.path("/run/systemd/system").mkdir(parents=True)
    assert os_facts(files, NONE).init == "systemd"


def test_glibc_of_another_host_is_read_from_its_library(files: HostFiles) -> None:
    put(files, "/lib64/libc.so.6", "\x7fELF … GNU C Library (GNU libc) stable release version 2.28.\nCopyright")
    assert os_facts(files, NONE).glibc == "2.28"


def test_cpu_of_a_whole_machine(files: HostFiles) -> None:
    put(files, "/proc/cpuinfo", cpuinfo(4, **{"model name": "Xeon", "flags": "fpu avx2 fma"}))
    put(files, "/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3\n")
    for number, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        put(files, f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list", siblings)
    for node in ("node0", "node1", "possible"):
        put(files, f"/sys/devices/system/node/{node}/x", "")
    cpu = cpu_facts(files, NONE)
    assert (cpu.model, cpu.logical, cpu.physical, cpu.numa_nodes) == ("Xeon", 4, 2, 2)
    assert cpu.flags == ("fpu", "avx2", "fma")


def test_cpu_limited_by_affinity_and_by_quota(files: HostFiles) -> None:
    put(files, "/proc/cpuinfo", cpuinfo(8, flags="fpu"))
    put(files, "/proc/self/status", "Cpus_allowed_list:\t0-3\n")
    for number in range(4):
        put(files, f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list", str(number))
    assert (cpu_facts(files, NONE).logical, cpu_facts(files, NONE).physical) == (4, 4)
    limited = cpu_facts(files, CgroupLimits(cpus=2.5))
    assert (limited.logical, limited.physical) == (2, 2)
    assert cpu_facts(files, CgroupLimits(cpus=0.5)).logical == 1


def test_arm_cpu(files: HostFiles) -> None:
    facts = {"Features": "fp asimd asimddp", "CPU implementer": "0x48", "CPU part": "0xd01"}
    put(files, "/proc/cpuinfo", cpuinfo(2, **facts))
    cpu = cpu_facts(files, NONE)
    assert cpu.flags == ("fp", "asimd", "asimddp") and "0x48" in cpu.model and cpu.logical == 2
    assert cpu.physical is None  # unknown, not guessed


def test_memory_and_its_limit(files: HostFiles) -> None:
    put(files, "/proc/meminfo", MEMINFO)
    assert memory_facts(files, NONE).total == 16000000 * 1024
    limited = memory_facts(files, CgroupLimits(memory=2 * 2**30, memory_free=2**30))
    assert (limited.total, limited.available) == (2 * 2**30, 2**30)
    roomy = memory_facts(files, CgroupLimits(memory=2**40, memory_free=2**40))
    assert (roomy.total, roomy.available) == (16000000 * 1024, 12000000 * 1024)


def test_cgroup_v2_takes_the_tightest_up_to_the_root(files: HostFiles) -> None:
    put(files, "/proc/self/cgroup", "0::/system.slice/app.service\n")
    base = "/sys/fs/cgroup"
    put(files, f"{base}/cgroup.controllers", "cpu memory")
    put(files, f"{base}/system.slice/app.service/cpu.max", "max 100000")
    put(files, f"{base}/system.slice/app.service/memory.max", "max")
    put(files, f"{base}/system.slice/cpu.max", "150000 100000\n")
    put(files, f"{base}/system.slice/memory.max", "1000000\n")
    put(files, f"{base}/system.slice/memory.current", "900000\n")
    put(files, f"{base}/system.slice/memory.stat", "anon 1\ninactive_file 300000\n")
    assert limits(files) == CgroupLimits(version=2, cpus=1.5, memory=1000000, memory_free=400000)


def test_cgroup_v2_inside_a_container_without_its_own_path(files: HostFiles) -> None:
    put(files, "/proc/self/cgroup", "0::/../../elsewhere\n")
    put(files, "/sys/fs/cgroup/cgroup.controllers", "cpu memory")
    put(files, "/sys/fs/cgroup/memory.max", "5000\n")
    assert limits(files) == CgroupLimits(version=2, memory=5000)


def test_cgroup_v1(files: HostFiles) -> None:
    put(files, "/proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n")
    base = "/sys/fs/cgroup"
    put(files, f"{base}/memory/memory.limit_in_bytes", "9223372036854771712\n")
    put(files, f"{base}/memory/docker/abc/memory.limit_in_bytes", "4096\n")
    put(files, f"{base}/memory/docker/abc/memory.usage_in_bytes", "1096\n")
    put(files, f"{base}/cpu/docker/abc/cpu.cfs_quota_us", "200000")
    put(files, f"{base}/cpu/docker/abc/cpu.cfs_period_us", "100000")
    put(files, f"{base}/cpu/cpu.cfs_quota_us", "-1")
    assert limits(files) == CgroupLimits(version=1, cpus=2.0, memory=4096, memory_free=3000)


def test_listening_ports_of_both_families(files: HostFiles) -> None:
    head = "  sl  local_address rem_address   st tx_queue\n"
    rows = "   0: 0100007F:1F40 00000000:0000 0A 0\n   1: 0100007F:0050 0100007F:9999 01 0\n"
    put(files, "/proc/net/tcp", head + rows)
    put(files, "/proc/net/tcp6", head + "   0: 00000000000000000000000000000000:0016 0:0 0A 0\n")
    assert listening(files) == (22, 8000)


def test_clock() -> None:
    never = FakeRunner()
    assert clock_synchronised(never, lambda: True) is True and never.ran == []
    assert clock_synchronised(never, lambda: False) is False
    assert clock_synchronised(never, lambda: None) is None
    chrony = FakeRunner({"chronyc": (0, "C0A80001,host,3,1.5,0.1,Normal\n")})
    assert clock_synchronised(chrony, lambda: False) is True
    behind = FakeRunner({"chronyc": (0, "7F7F0101,,0,0.0,0.0,Not synchronised\n")})
    assert clock_synchronised(behind, lambda: False) is False
