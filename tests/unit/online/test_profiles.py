"""The profiles that airbundle brings, and the best one for a host."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from airbundle import profiles
from airbundle_onsite.contract.fingerprint import CpuFacts, Fingerprint, GpuFacts, MemoryFacts
from airbundle_onsite.contract.profile import GpuProfile
from airbundle_onsite.contract.record import decode_json, encode
from airbundle_onsite.errors import UsageError
from airbundle_onsite.match import match_profile
from airbundle_onsite.probes.files import HostFiles
from airbundle_onsite.probes.gpu import SystemMemory, gpu_facts
from unit.onsite.hosts import GB, gpus, h100, host, with_os
from unit.onsite.stub_nvml import StubNvml

ALL = {profile.id: profile for profile in profiles.all_profiles()}
GPUS = {name: profile.gpu for name, profile in ALL.items() if profile.gpu}
AVX512 = ("avx2", "bmi2", "f16c", "fma", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
# The name, capability and MiB that drivers report for real cards.
REPORTED = {
    "v100-16": ("Tesla V100-PCIE-16GB", "7.0", 16384),
    "v100-32": ("Tesla V100-SXM2-32GB", "7.0", 32768),
    "t4": ("Tesla T4", "7.5", 15109),
    "a10": ("NVIDIA A10", "8.6", 22731),
    "a30": ("NVIDIA A30", "8.0", 24576),
    "a100-40-sxm": ("NVIDIA A100-SXM4-40GB", "8.0", 40960),
    "a100-80-pcie": ("NVIDIA A100 80GB PCIe", "8.0", 81920),
    "a6000": ("NVIDIA RTX A6000", "8.6", 49140),
    "rtx-pro-6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0", 97887),
    "h100-pcie": ("NVIDIA H100 PCIe", "9.0", 81559),
    "gb10": ("NVIDIA GB10", "12.1", 122548),
    "a100-40-pcie": ("NVIDIA A100-PCIE-40GB", "8.0", 40536),
    "a100-80-sxm": ("NVIDIA A100-SXM4-80GB", "8.0", 81920),
    "l4": ("NVIDIA L4", "8.9", 23034),
    "l20": ("NVIDIA L20", "8.9", 46068),
    "l40s": ("NVIDIA L40S", "8.9", 46068),
    "rtx-3090": ("NVIDIA GeForce RTX 3090", "8.6", 24576),
    "rtx-4090": ("NVIDIA GeForce RTX 4090", "8.9", 24564),
    "rtx-5090": ("NVIDIA GeForce RTX 5090", "12.0", 32607),
    "h20": ("NVIDIA H20", "9.0", 97871),
    "h100-sxm": ("NVIDIA H100 80GB HBM3", "9.0", 81559),
    "h200-sxm": ("NVIDIA H200", "9.0", 143771),
    "b200": ("NVIDIA B200", "10.0", 183359),
}


def recorded(**options: object) -> Fingerprint:
    facts = gpu_facts(HostFiles(Path("/nonexistent")), SystemMemory(), StubNvml(**options))  # type: ignore[arg-type]
    return host(gpu=facts)


def best(fingerprint: Fingerprint) -> str:
    return profiles.match_fingerprint(fingerprint)[0][0].id


def test_every_profile_has_a_source_for_every_fact() -> None:
    assert set(GPUS) == set(REPORTED) and len(ALL) == len(REPORTED) + 3
    for profile in ALL.values():
        facts = {"cpu_flags"} if profile.gpu is None else {*GPUS_FACTS, "names"}
        facts |= {"min_memory", "min_glibc"}
        assert facts <= set(profile.sources), profile.id
        assert all(isinstance(text, str) and len(text) > 10 for text in profile.sources.values()), profile.id


GPUS_FACTS = ("capability", "memory", "bandwidth", "l2", "link", "min_driver", "dtypes")


@pytest.mark.parametrize("profile_id", sorted(GPUS))
def test_gpu_profiles_are_plausible(profile_id: str) -> None:
    gpu: GpuProfile = GPUS[profile_id]
    assert all(re.compile(name) for name in gpu.names)
    assert 2.5e11 <= gpu.bandwidth <= 1e13 and 4 * 2**20 <= gpu.l2 <= 2**28
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", gpu.min_driver)
    assert gpu.link in ("none", "pcie", "nvlink") and gpu.count == 1
    major = float(gpu.capability)
    assert ("bf16" in gpu.dtypes) == (major >= 8.0) and ("fp8" in gpu.dtypes) == (major >= 8.9)
    assert ("fp4" in gpu.dtypes) == (major >= 10.0)


@pytest.mark.parametrize("profile_id", sorted(REPORTED))
def test_each_real_card_gets_its_own_profile(profile_id: str) -> None:
    name, capability, mib = REPORTED[profile_id]
    card = h100(name=name, capability=capability, memory_total=mib * 2**20)
    there = host(gpu=gpus(card, driver="580.95.05", kernel_driver="580.95.05", cuda="13.0"))
    there = with_os(there, machine=ALL[profile_id].arch)
    there = dataclasses.replace(there, memory=MemoryFacts(total=128_501_256_192, available=100 * GB))
    matched = profiles.match_fingerprint(there)
    assert matched[0][0].id == profile_id
    assert [check.status for check in matched[0][1] if check.status not in ("pass", "skip")] == []


def test_a_profile_that_is_not_there_suggests_one_that_is() -> None:
    with pytest.raises(UsageError, match="did you mean 'h200-sxm'") as caught:
        profiles.load("h200-smx")
    assert "cpu-x86_64" in caught.value.remedy and caught.value.exit_code == 2
    assert profiles.load("h200-sxm").id == "h200-sxm"


def test_a_file_that_is_no_profile_names_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text('title = 3\nmin_glib = "2.28"\n')
    with pytest.raises(UsageError) as caught:
        profiles.read(path)
    assert len(caught.value.details) == 2 and "did you mean 'min_glibc'" in "".join(caught.value.details)
    path.write_text("title = \n")
    with pytest.raises(UsageError, match=r"odd\.toml"):
        profiles.read(path)


def test_the_recorded_host_gets_its_profile_then_its_kin_then_the_cpu() -> None:
    order = [profile.id for profile, checks in profiles.match_fingerprint(recorded())]
    assert order[0] == "h200-sxm"
    assert order.index("h100-sxm") < order.index("cpu-x86_64") < order.index("t4")


def test_cpu_hosts() -> None:
    assert best(host()) == "cpu-x86_64"
    assert best(host(cpu=CpuFacts(flags=AVX512))) == "cpu-x86_64-avx512"
    arm = with_os(host(cpu=CpuFacts(flags=("fp", "asimd"))), machine="aarch64")
    assert best(arm) == "cpu-arm64"
    old = host(cpu=CpuFacts(flags=("sse2",)))
    first, checks = profiles.match_fingerprint(old)[0]
    assert first.id == "cpu-x86_64"
    assert [check.id for check in checks if check.status == "fail"] == ["match.cpu.flags"]


def test_a_broken_driver_still_ranks_the_cpu_first() -> None:
    broken = host(gpu=GpuFacts(state="failed", error="x", driver="2", kernel_driver="1"))
    assert best(broken) == "cpu-x86_64"


def test_a_profile_made_of_the_recorded_host_fits_it_and_only_its_kind() -> None:
    made = profiles.from_fingerprint(recorded())
    gpu = made.gpu
    assert gpu and gpu.names == (r"NVIDIA\ H200",) and (gpu.capability, gpu.count, gpu.link) == ("9.0", 2, "nvlink")
    assert (gpu.min_driver, gpu.bandwidth, gpu.l2) == ("580.159.04", 4_800_000_000_000, 60 * 2**20)
    assert "fp8" in gpu.dtypes and 147e9 < gpu.memory < 150754820096
    assert not any(check.status in ("fail", "warn") for check in match_profile(made, recorded()))
    one = match_profile(made, recorded(gpus=(0,)))
    assert [check.id for check in one if check.status == "fail"] == ["match.gpu.count"]


def test_a_profile_of_a_host_keeps_its_id_when_read_again() -> None:
    first = profiles.from_fingerprint(recorded())
    later = profiles.from_fingerprint(recorded(as_bytes=True))
    assert first.id == later.id and re.fullmatch(r"host-[0-9a-f]{8}", first.id)
    assert profiles.from_fingerprint(host()).id != first.id
    assert decode_json(type(first), encode(first), "profile") == first


def test_a_profile_of_a_cpu_host() -> None:
    made = profiles.from_fingerprint(host(cpu=CpuFacts(flags=("sse2", "avx2", "fma", "avx512_vnni", "md_clear"))))
    assert made.gpu is None and made.cpu_flags == ("avx2", "avx512_vnni", "fma") and made.min_glibc == "2.36"
    assert made.min_memory == int(64 * GB * 0.95)
    assert profiles.from_fingerprint(host(memory=MemoryFacts())).min_memory == 0


def test_mixed_gpus_and_links() -> None:
    odd = h100(2, name="NVIDIA L4", capability="8.9", memory_total=24 * GB)
    made = profiles.from_fingerprint(host(gpu=gpus(h100(0), h100(1), odd)))
    assert made.gpu and made.gpu.count == 2 and made.gpu.names == (re.escape("NVIDIA H100 80GB HBM3"),)
    pcie = gpus(h100(0), h100(1))
    unlinked = host(gpu=GpuFacts(state="ok", devices=pcie.devices, links=()))
    gpu = profiles.from_fingerprint(unlinked).gpu
    assert gpu and gpu.link == "none"


@pytest.mark.parametrize(
    "facts", [GpuFacts(state="failed", error="version mismatch"), gpus(h100(name=None)), gpus(h100(memory_total=None))]
)
def test_gpus_that_could_not_be_read_are_not_guessed(facts: GpuFacts) -> None:
    with pytest.raises(UsageError) as caught:
        profiles.from_fingerprint(host(gpu=facts))
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("h200", "did you mean 'h200-sxm'?"),
        ("a100-80", "did you mean 'a100-80-pcie' or 'a100-80-sxm'?"),
        ("h200-smx", "did you mean 'h200-sxm'?"),
    ],
)
def test_a_shortened_name_is_completed_before_it_is_corrected(word: str, hint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(hint)):
        profiles.load(word)
