"""GPU facts: a recorded host of two H200, and every way in which NVML disappoints."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import airbundle_onsite
from airbundle_onsite.contract.fingerprint import Fingerprint, GpuFacts
from airbundle_onsite.contract.record import decode_json
from airbundle_onsite.probes import nvml as nvml_module
from airbundle_onsite.probes.files import HostFiles
from airbundle_onsite.probes.gpu import SystemMemory, gpu_facts
from unit.onsite.stub_nvml import (
    CODES,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    RECORDED,
    VERSION_MISMATCH,
    StubNvml,
)

SYSTEM = SystemMemory(total=128 * 10**9, available=100 * 10**9)
PROC_VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 30 2025\nGCC version: 12\n"
PROC_VERSION_OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\n"


def write(root: Path, name: str, text: str) -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def take(root: Path, **options: object) -> GpuFacts:
    stub = StubNvml(**options)  # type: ignore[arg-type]
    facts = gpu_facts(HostFiles(root), SYSTEM, stub)
    return facts


def test_recorded_host_of_two_h200(tmp_path: Path) -> None:
    stub = StubNvml()
    facts = gpu_facts(HostFiles(tmp_path), SYSTEM, stub)
    assert (facts.state, facts.driver, facts.cuda) == ("ok", "580.159.04", "13.0")
    assert stub.shut_down
    first, second = facts.devices
    assert (first.index, second.index) == (0, 1)
    assert first.name == "NVIDIA H200" and first.capability == "9.0"
    assert first.memory_total == 150754820096 and first.memory_free == 150109880320
    assert first.pci_bus == "00000000:00:06.0" and second.pci_bus == "00000000:00:07.0"
    assert (first.pcie_generation, first.pcie_width, first.pcie_width_max) == (5, 16, 16)
    assert (first.ecc, first.mig, first.persistence, first.compute_mode) == (True, False, True, "default")
    assert (first.power_limit, first.clock_sm_max, first.clock_memory_max) == (700.0, 1980, 3201)
    assert first.nvlinks_active == 18 and first.bar1 == 274877906944 and first.processes == 0
    assert (first.power_default, first.power_enforced, first.performance_state) == (700.0, 700.0, 0)
    assert (first.clock_sm, first.clock_memory) == (345, 3201)
    assert (first.pcie_generation_max, first.pcie_generation_gpu) == (5, 5)
    assert (first.nvlink_version, first.nvlink_speed) == ("4.0", 26_562_000_000)
    assert first.numa_node is None and first.parent is None and first.unread == {}
    (link,) = facts.links
    assert (link.a, link.b, link.topology, link.nvlinks, link.p2p) == (0, 1, "hostbridge", 18, "ok")
    assert link.nvlink_speed == 18 * 26_562_000_000


def test_the_recorded_fingerprint_is_what_the_recorded_nvml_gives(tmp_path: Path) -> None:
    """The whole way on the real host, and the stub: both tell the same of its GPUs."""
    whole = decode_json(Fingerprint, RECORDED.with_name("two-h200.fingerprint.json").read_bytes(), "golden")
    facts = take(tmp_path)
    assert facts.devices == whole.gpu.devices and facts.links == whole.gpu.links


def test_numa_node_is_the_pci_devices(tmp_path: Path) -> None:
    write(tmp_path, "/sys/bus/pci/devices/0000:00:06.0/numa_node", "1\n")
    write(tmp_path, "/sys/bus/pci/devices/0000:00:07.0/numa_node", "-1\n")  # a host without NUMA
    first, second = take(tmp_path).devices
    assert first.numa_node == 1 and second.numa_node is None


def test_nvlink_speed_from_the_older_field_and_unknown(tmp_path: Path) -> None:
    older = take(tmp_path, change={"NvLinkSpeed": None, "fields": {90: 25781}})
    assert older.devices[0].nvlink_speed == 25_781_000_000 and "nvlink_speed" not in older.devices[0].unread
    unknown = take(tmp_path, change={"NvLinkSpeed": None})
    assert unknown.devices[0].nvlink_speed is None and unknown.devices[0].unread["nvlink_speed"] == "NVML returned 3"
    assert unknown.links[0].nvlinks == 18 and unknown.links[0].nvlink_speed is None
    refused = take(tmp_path, faults={"nvmlDeviceGetFieldValues": FUNCTION_NOT_FOUND})
    assert refused.devices[0].nvlink_speed is None and "nvlink_speed" in refused.devices[0].unread


def test_a_gpu_without_nvlink_is_not_asked_for_its_speed(tmp_path: Path) -> None:
    device = take(tmp_path, faults={"nvmlDeviceGetNvLinkState": NOT_SUPPORTED}).devices[0]
    assert device.nvlink_version is None and device.nvlink_speed is None and device.unread == {}


@pytest.mark.parametrize("as_bytes", [True, False])
def test_text_arrives_as_bytes_or_str(tmp_path: Path, as_bytes: bool) -> None:
    facts = take(tmp_path, as_bytes=as_bytes)
    assert facts.driver == "580.159.04"
    assert facts.devices[0].name == "NVIDIA H200"
    assert facts.devices[0].uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert facts.links[0].nvlinks == 18


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST])
@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetName", "name"),
        ("nvmlDeviceGetCudaComputeCapability", "capability"),
        ("nvmlDeviceGetEccMode", "ecc"),
        ("nvmlDeviceGetMigMode", "mig"),
        ("nvmlDeviceGetPowerManagementLimit", "power_limit"),
        ("nvmlDeviceGetCurrPcieLinkWidth", "pcie_width"),
        ("nvmlDeviceGetBAR1MemoryInfo", "bar1"),
        ("nvmlDeviceGetPciInfo", "pci_bus"),
    ],
)
def test_one_failed_query_spoils_only_its_own_field(tmp_path: Path, function: str, field: str, code: int) -> None:
    facts = take(tmp_path, faults={function: code})
    assert facts.state == "ok"
    for device in facts.devices:
        assert getattr(device, field) is None
        assert field in device.unread
        others = {"name", "capability", "memory_total", "bar1", "pcie_width"} - {field}
        assert all(getattr(device, other) is not None for other in others)


def test_every_function_but_the_count_failing_still_gives_a_fingerprint(tmp_path: Path) -> None:
    names = re.findall(r'"(nvml(?:System|Device)\w+)"', Path(nvml_module.__file__).with_name("gpu.py").read_text())
    faults = {name: NOT_SUPPORTED for name in names if "HandleByIndex" not in name}
    facts = take(tmp_path, faults=faults)
    assert facts.state == "ok" and len(facts.devices) == 2
    assert facts.driver is None and facts.devices[0].name is None


def test_memory_falls_back_to_the_second_version_of_the_call(tmp_path: Path) -> None:
    facts = take(tmp_path, faults={"nvmlDeviceGetMemoryInfo_v1": NOT_SUPPORTED})
    assert facts.devices[0].memory_total == 150754820096
    assert not facts.devices[0].unified_memory and "memory" not in facts.devices[0].unread


def test_unified_memory_is_the_hosts(tmp_path: Path) -> None:
    facts = take(tmp_path, faults={"nvmlDeviceGetMemoryInfo": NOT_SUPPORTED})
    device = facts.devices[0]
    assert (device.memory_total, device.memory_free, device.unified_memory) == (SYSTEM.total, SYSTEM.available, True)
    assert "unified" in device.unread["memory"]


def test_memory_of_a_lost_gpu_is_unknown_and_not_zero(tmp_path: Path) -> None:
    device = take(tmp_path, faults={"nvmlDeviceGetMemoryInfo": GPU_IS_LOST}).devices[0]
    assert device.memory_total is None and device.memory_free is None and not device.unified_memory


def test_a_lost_gpu_does_not_hide_the_other(tmp_path: Path) -> None:
    facts = take(tmp_path, faults={"nvmlDeviceGetHandleByIndex@0": GPU_IS_LOST})
    assert facts.state == "ok"
    assert facts.devices[0].unread == {"handle": "Gpu Is Lost"}
    assert facts.devices[1].name == "NVIDIA H200" and facts.devices[1].index == 1


def test_library_newer_than_the_kernel_module_names_both(tmp_path: Path) -> None:
    write(tmp_path, "/proc/driver/nvidia/version", PROC_VERSION)
    write(
        tmp_path, "/proc/self/maps", "7f00-7f01 r-xp 0 08:01 9  /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.575.57.08\n"
    )
    facts = take(tmp_path, faults={"nvmlInit": VERSION_MISMATCH})
    assert (facts.state, facts.driver, facts.kernel_driver) == ("failed", "575.57.08", "570.133.20")
    assert "575.57.08" in facts.error and "570.133.20" in facts.error


def test_version_of_the_open_kernel_module(tmp_path: Path) -> None:
    write(tmp_path, "/proc/driver/nvidia/version", PROC_VERSION_OPEN)
    assert take(tmp_path).kernel_driver == "570.133.20"


@pytest.mark.parametrize("name", ["NVML_ERROR_DRIVER_NOT_LOADED", "NVML_ERROR_LIBRARY_NOT_FOUND"])
def test_no_driver_says_whether_hardware_is_there(tmp_path: Path, name: str) -> None:
    write(tmp_path, "/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    write(tmp_path, "/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")
    write(tmp_path, "/sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n")  # its audio function
    write(tmp_path, "/sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n")
    facts = take(tmp_path, faults={"nvmlInit": CODES[name]})
    assert facts.state == "no-driver" and "1 NVIDIA GPU(s) on the PCI bus" in facts.error


def test_the_real_library_is_looked_for_first(tmp_path: Path) -> None:
    facts = gpu_facts(HostFiles(tmp_path), SYSTEM, None)
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        assert facts.state == "no-driver" and str(error) in facts.error
        assert "no NVIDIA GPU on the PCI bus" in facts.error
    else:
        assert facts.library.endswith("_vendor/pynvml.py")


def test_no_gpu_and_a_failed_count_are_different_things(tmp_path: Path) -> None:
    assert take(tmp_path, gpus=()).state == "no-gpu"
    failed = take(tmp_path, faults={"nvmlDeviceGetCount": CODES["NVML_ERROR_UNKNOWN"]})
    assert failed.state == "failed" and "Unknown" in failed.error
    denied = take(tmp_path, faults={"nvmlInit": CODES["NVML_ERROR_NO_PERMISSION"]})
    assert denied.state == "failed" and "No Permission" in denied.error


def test_mig_slices_are_devices(tmp_path: Path) -> None:
    small = {"Name": "NVIDIA H200 MIG 1g.18gb", "MemoryInfo": {"total": 17 * 2**30, "free": 16 * 2**30, "used": 0}}
    facts = take(tmp_path, gpus=(0,), change={"MigMode": [1, 1]}, slices=[small, small])
    assert [device.name for device in facts.devices] == ["NVIDIA H200 MIG 1g.18gb"] * 2
    assert [device.index for device in facts.devices] == [0, 1]
    assert {device.parent for device in facts.devices} == {"GPU-00000000-0000-0000-0000-000000000000"}
    assert all(device.mig and device.memory_total == 17 * 2**30 for device in facts.devices)
    assert facts.links == ()


def test_mig_mode_without_slices_keeps_the_gpu(tmp_path: Path) -> None:
    facts = take(tmp_path, gpus=(0,), change={"MigMode": [1, 1]})
    assert len(facts.devices) == 1 and facts.devices[0].mig is True


def test_direct_nvlinks_are_counted_per_pair(tmp_path: Path) -> None:
    # each GPU: four links, three to the other and one inactive
    change = {"nvlinks": [[1, 6, 0], [1, 6, 0], [0, 6, 0], [1, 6, 0]], "remote": [[1] * 4, [0] * 4]}
    facts = take(tmp_path, change=change)
    assert facts.devices[0].nvlinks_active == 3
    assert facts.links[0].nvlinks == 3


def test_no_nvlink_is_none_and_unreadable_is_unknown(tmp_path: Path) -> None:
    plain = take(tmp_path, faults={"nvmlDeviceGetNvLinkState": NOT_SUPPORTED})
    assert plain.devices[0].nvlinks_active == 0 and plain.links[0].nvlinks == 0
    unread = take(tmp_path, faults={"nvmlDeviceGetNvLinkState": FUNCTION_NOT_FOUND})
    assert unread.devices[0].nvlinks_active is None and unread.links[0].nvlinks is None
    blind = take(tmp_path, faults={"nvmlDeviceGetNvLinkRemoteDeviceType": NOT_SUPPORTED})
    assert blind.devices[0].nvlinks_active == 18 and blind.links[0].nvlinks is None


def test_p2p_and_topology_failures_are_unknown(tmp_path: Path) -> None:
    faults = {"nvmlDeviceGetP2PStatus": NOT_SUPPORTED, "nvmlDeviceGetTopologyCommonAncestor": NOT_SUPPORTED}
    link = take(tmp_path, faults=faults).links[0]
    assert link.p2p is None and link.topology is None
    refused = take(tmp_path, change={"p2p": [[1] * 5, [1] * 5]}).links[0]
    assert refused.p2p == "chipset not supported"


def test_the_vendored_binding_is_the_file_its_table_names() -> None:
    vendor = Path(airbundle_onsite.__file__).with_name("_vendor")
    digest = hashlib.sha256((vendor / "pynvml.py").read_bytes()).hexdigest()
    assert digest in (vendor / "README.md").read_text()


def test_the_vendored_binding_has_every_function_asked_for() -> None:
    from airbundle_onsite._vendor import pynvml

    probes = Path(nvml_module.__file__).parent
    text = "".join((probes / name).read_text() for name in ("nvml.py", "gpu.py", "gpulinks.py"))
    asked = set(re.findall(r"\"(nvml[A-Z]\w+)\"|nvml\.(nvml[A-Z]\w+|NVML_ERROR_\w+)", text))
    asked = {name for pair in asked for name in pair if name}
    assert len(asked) > 25
    assert {name for name in asked if not hasattr(pynvml, name)} == set()
    assert pynvml.__name__ == "airbundle_onsite._vendor.pynvml"  # not the name that a site's own copy has


def test_a_binding_that_the_site_has_installed_is_never_touched(tmp_path: Path) -> None:
    """Two distributions bring a module of that name, and one of them is another thing altogether."""
    (tmp_path / "pynvml.py").write_text("raise ImportError('the wrong one')")
    (tmp_path / "pynvml_utils").mkdir()
    code = "import airbundle_onsite._vendor.pynvml as binding; print(binding.__file__)"
    place = str(Path(airbundle_onsite.__file__).parents[1])
    environ = {"PYTHONPATH": os.pathsep.join([str(tmp_path), place])}
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == str(Path(airbundle_onsite.__file__).with_name("_vendor") / "pynvml.py"), done.stderr
