"""A fingerprint against a profile: what fails, what only warns, and what the messages name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import CpuFacts, Fingerprint, GpuFacts, GpuLink, MemoryFacts
from airbundle_onsite.contract.profile import GpuProfile, HardwareProfile
from airbundle_onsite.match import match_profile
from airbundle_onsite.probes.files import HostFiles
from airbundle_onsite.probes.gpu import SystemMemory, gpu_facts
from unit.onsite.hosts import CPU_PROFILE, GB, gpus, h100, host, with_os
from unit.onsite.stub_nvml import CODES, GPU_IS_LOST, NOT_SUPPORTED, VERSION_MISMATCH, StubNvml

H100 = GpuProfile(
    names=("NVIDIA H100 80GB HBM3",), capability="9.0", memory=83 * GB, count=1, min_driver="525.60.13", link="nvlink"
)
H200 = dataclasses.replace(H100, names=("NVIDIA H200",), memory=147 * GB, count=2)


def profile(gpu: GpuProfile) -> HardwareProfile:
    return dataclasses.replace(CPU_PROFILE, gpu=gpu)


def by_id(checks: list[CheckResult]) -> dict[str, list[CheckResult]]:
    found: dict[str, list[CheckResult]] = {}
    for check in checks:
        found.setdefault(check.id, []).append(check)
    return found


def of(checks: list[CheckResult], *statuses: str) -> list[str]:
    return [check.id for check in checks if check.status in statuses]


def against(gpu: GpuProfile, facts: GpuFacts) -> list[CheckResult]:
    return match_profile(profile(gpu), host(gpu=facts))


def replayed(tmp_path: Path, **options: object) -> GpuFacts:
    return gpu_facts(HostFiles(tmp_path), SystemMemory(64 * GB, 60 * GB), StubNvml(**options))  # type: ignore[arg-type]


def complete(check: CheckResult) -> bool:
    """A result that did not pass says what was needed, what was found and what to do."""
    return check.status in ("pass", "skip") or bool(check.remedy and check.summary)


def test_a_cpu_host_that_fits() -> None:
    checks = match_profile(CPU_PROFILE, host())
    assert of(checks, "fail", "warn") == [] and len(of(checks, "pass")) == 4


@pytest.mark.parametrize(
    ("fingerprint", "check", "words"),
    [
        (with_os(host(), machine="aarch64"), "match.arch", ["aarch64", "x86_64"]),
        (host(cpu=CpuFacts(model="Old CPU", flags=("sse2",))), "match.cpu.flags", ["Old CPU", "avx2"]),
        (host(memory=MemoryFacts(total=4 * GB)), "match.memory", ["4.0 GB", "8.0 GB"]),
        (with_os(host(), glibc="2.17"), "match.glibc", ["2.17", "2.28"]),
    ],
)
def test_what_fails_names_both_values(fingerprint: Fingerprint, check: str, words: list[str]) -> None:
    checks = match_profile(CPU_PROFILE, fingerprint)
    assert of(checks, "fail") == [check]
    (failed,) = by_id(checks)[check]
    assert all(word in failed.summary for word in words)
    assert failed.expected and failed.actual and failed.remedy


@pytest.mark.parametrize(
    ("fingerprint", "check"),
    [
        (host(cpu=CpuFacts()), "match.cpu.flags"),
        (host(memory=MemoryFacts()), "match.memory"),
        (with_os(host(), glibc=None), "match.glibc"),
    ],
)
def test_unknown_values_only_warn(fingerprint: Fingerprint, check: str) -> None:
    checks = match_profile(CPU_PROFILE, fingerprint)
    assert of(checks, "fail") == [] and of(checks, "warn") == [check]


def test_images_bring_their_own_c_library() -> None:
    checks = match_profile(CPU_PROFILE, with_os(host(), glibc="2.17"), runtime="docker")
    assert of(checks, "fail") == [] and of(checks, "skip") == ["match.glibc"]


def test_the_recorded_host_meets_its_profile(tmp_path: Path) -> None:
    checks = against(H200, replayed(tmp_path))
    assert of(checks, "fail", "warn") == []
    assert "NVLink between all 2 GPUs, at least 18 links" in by_id(checks)["match.gpu.nvlink"][0].summary


def test_every_unsuccessful_result_says_what_to_do(tmp_path: Path) -> None:
    faults = [{"nvmlInit": code} for code in CODES.values()] + [
        {name: NOT_SUPPORTED} for name in ("nvmlDeviceGetName", "nvmlDeviceGetCudaComputeCapability")
    ]
    for fault in faults:
        assert all(complete(check) for check in against(H200, replayed(tmp_path, faults=fault)))
    for gpu in (H100, H200, dataclasses.replace(H200, capability="8.0", count=8, min_driver="999")):
        assert all(complete(check) for check in against(gpu, replayed(tmp_path)))


def test_no_driver_no_gpu_and_a_failed_query_are_three_things(tmp_path: Path) -> None:
    no_driver = against(H200, replayed(tmp_path, faults={"nvmlInit": CODES["NVML_ERROR_DRIVER_NOT_LOADED"]}))
    no_gpu = against(H200, replayed(tmp_path, gpus=()))
    failed = against(H200, replayed(tmp_path, faults={"nvmlDeviceGetCount": CODES["NVML_ERROR_UNKNOWN"]}))
    texts = [[check.summary for check in checks if check.status == "fail"] for checks in (no_driver, no_gpu, failed)]
    assert texts == [
        ["no NVIDIA driver answers on this host"],
        ["the NVIDIA driver 580.159.04 runs, but it sees no GPU"],
        ["the NVIDIA driver is there, but asking it failed"],
    ]


def test_driver_upgraded_under_a_loaded_module_prints_both_and_never_says_no_gpu(tmp_path: Path) -> None:
    for name, text in {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun\n",
        "proc/self/maps": "7f0 r-xp /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.575.57.08\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    checks = against(H200, replayed(tmp_path, faults={"nvmlInit": VERSION_MISMATCH}))
    assert of(checks, "fail") == ["match.gpu.driver-mismatch"]
    (check,) = by_id(checks)["match.gpu.driver-mismatch"]
    assert "575.57.08" in check.summary and "570.133.20" in check.summary
    assert "restart" in check.remedy and "modprobe" in check.remedy and "hold" in check.remedy
    assert not any("no GPU" in one.summary or "no NVIDIA" in one.summary for one in checks)


def test_an_older_driver(tmp_path: Path) -> None:
    checks = against(dataclasses.replace(H200, min_driver="590.44.01"), replayed(tmp_path))
    assert of(checks, "fail") == ["match.gpu.driver"]
    assert "580.159.04" in checks[-2].summary + checks[-1].summary


def test_driver_versions_are_compared_as_numbers(tmp_path: Path) -> None:
    checks = against(dataclasses.replace(H200, min_driver="580.65.06"), replayed(tmp_path, driver="580.159.04"))
    assert of(checks, "fail") == []


def test_one_unsupported_query_warns_and_does_not_refuse(tmp_path: Path) -> None:
    for function, check in {
        "nvmlDeviceGetName": "match.gpu.name",
        "nvmlDeviceGetCudaComputeCapability": "match.gpu.capability",
        "nvmlSystemGetDriverVersion": "match.gpu.driver",
        "nvmlDeviceGetNvLinkState": "match.gpu.nvlink",
    }.items():
        code = GPU_IS_LOST if "NvLink" in function else NOT_SUPPORTED
        checks = against(H200, replayed(tmp_path, faults={function: code}))
        assert of(checks, "fail") == [], function
        assert set(of(checks, "warn")) == {check}, function
    lost = against(H200, replayed(tmp_path, faults={"nvmlDeviceGetMemoryInfo": GPU_IS_LOST}))
    assert of(lost, "fail") == [] and set(of(lost, "warn")) == {"match.gpu.memory"}


def test_unified_memory_is_compared_and_named(tmp_path: Path) -> None:
    facts = replayed(tmp_path, faults={"nvmlDeviceGetMemoryInfo": NOT_SUPPORTED})
    checks = against(H200, facts)
    assert "64.0 GB of memory, shared with the host" in by_id(checks)["match.gpu.memory"][0].summary


def test_a_v100_where_the_bundle_is_for_newer_gpus(tmp_path: Path) -> None:
    change = {"Name": "Tesla V100-SXM2-32GB", "CudaComputeCapability": [7, 0]}
    (check, _) = by_id(against(H200, replayed(tmp_path, change=change)))["match.gpu.capability"]
    assert check.status == "fail" and "Tesla V100-SXM2-32GB" in check.summary and "7.0" in check.summary


def test_another_model_that_computes_alike_only_warns(tmp_path: Path) -> None:
    one = dataclasses.replace(H100, count=1)
    checks = against(one, replayed(tmp_path))
    assert of(checks, "fail") == [] and of(checks, "warn") == ["match.gpu.name"]
    smaller = against(dataclasses.replace(H200, count=1), gpus(h100()))
    assert set(of(smaller, "fail")) == {"match.gpu.name", "match.gpu.memory"}


def test_a_name_must_match_in_full() -> None:
    checks = against(dataclasses.replace(H100, names=("NVIDIA H100",)), gpus(h100()))
    assert "match.gpu.name" in of(checks, "warn")


def test_too_few_gpus_and_a_lost_one(tmp_path: Path) -> None:
    assert of(against(dataclasses.replace(H200, count=4), replayed(tmp_path)), "fail") == ["match.gpu.count"]
    lost = against(H200, replayed(tmp_path, faults={"nvmlDeviceGetHandleByIndex@1": GPU_IS_LOST}))
    assert of(lost, "fail") == ["match.gpu.lost", "match.gpu.count"]


def test_mixed_gpus_choose_those_of_the_profile_and_warn() -> None:
    checks = against(H100, gpus(h100(0, name="NVIDIA L4", capability="8.9", memory_total=24 * GB), h100(1)))
    assert of(checks, "fail") == [] and of(checks, "warn") == ["match.gpu.mixed"]
    (check,) = by_id(checks)["match.gpu.mixed"]
    assert "GPU 0 NVIDIA L4" in check.actual and "gets GPU 1" in check.remedy


def test_links_between_the_gpus_used() -> None:
    two = dataclasses.replace(H100, count=2)
    for link, found in {
        GpuLink(a=0, b=1, topology="system", nvlinks=0, p2p="ok"): ["match.gpu.nvlink"],
        GpuLink(a=0, b=1, nvlinks=None): ["match.gpu.nvlink"],
        GpuLink(a=0, b=1, nvlinks=18, p2p="chipset not supported"): ["match.gpu.p2p"],
        GpuLink(a=0, b=1, nvlinks=18, p2p=None): [],
    }.items():
        checks = against(two, gpus(h100(0), h100(1), links=(link,)))
        assert of(checks, "warn") == found and of(checks, "fail") == []
    assert of(against(two, gpus(h100(0), h100(1), links=())), "warn") == ["match.gpu.nvlink"]
    assert of(against(H100, gpus(h100(0))), "warn") == []


def test_a_device_that_cannot_compute() -> None:
    assert of(against(H100, gpus(h100(compute_mode="prohibited"))), "fail") == ["match.gpu.compute-mode"]
    assert of(against(H100, gpus(h100(mig=True))), "fail") == ["match.gpu.mig"]
    narrow = against(H100, gpus(h100(pcie_width=4, pcie_width_max=16)))
    assert of(narrow, "warn") == ["match.gpu.pcie"]


def test_a_pcie_generation_that_is_low_counts_only_under_load() -> None:
    low = {"pcie_generation": 1, "pcie_generation_max": 5, "pcie_width": 16, "pcie_width_max": 16}
    busy = {**low, "performance_state": 0, "clock_sm": 1900, "clock_sm_max": 1980}
    check = "match.gpu.pcie-generation"
    (warned,) = by_id(against(H100, gpus(h100(**busy))))[check]
    assert warned.status == "warn" and "generation 1 of 5" in warned.summary and complete(warned)
    for rests in ({"performance_state": 8}, {"performance_state": 0, "clock_sm": 345, "clock_sm_max": 1980}, {}):
        (told,) = by_id(against(H100, gpus(h100(**{**low, **rests}))))[check]
        assert told.status == "skip" and "under load" in told.summary
    assert check not in by_id(against(H100, gpus(h100(**{**busy, "pcie_generation": 5}))))


def test_a_cpu_profile_does_not_look_at_gpus() -> None:
    assert not any(check.id.startswith("match.gpu") for check in match_profile(CPU_PROFILE, host(gpu=gpus(h100()))))
