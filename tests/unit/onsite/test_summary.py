"""A fingerprint in words."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from airbundle_onsite.contract.fingerprint import Fingerprint, Gpu, GpuFacts, GpuLink, idle
from airbundle_onsite.contract.record import decode_json
from airbundle_onsite.summary import fingerprint_text, gpu_text, link_text, more_as_root, pcie_text
from unit.onsite.hosts import docker, gpus, h100, host, with_os
from unit.onsite.stub_nvml import RECORDED


def test_the_recorded_host() -> None:
    taken = decode_json(Fingerprint, RECORDED.with_name("two-h200.fingerprint.json").read_bytes(), "golden")
    text = fingerprint_text(taken)
    assert "NVIDIA H200, compute capability 9.0; 150.8 GB, 150.1 GB free; PCIe 5 x16; 18 NVLinks 4.0" in text
    assert "18 NVLinks, 478 GB/s each way; PCIe topology hostbridge; peer to peer ok" in text
    assert "580.159.04, kernel module 580.159.04, CUDA 13.0" in text and "Ubuntu 24.04.3" in text


def test_unknown_is_said_and_never_zero() -> None:
    text = fingerprint_text(host(gpu=GpuFacts(state="ok", devices=(Gpu(index=0),), links=(GpuLink(0, 1),))))
    assert "GPU 0      unknown, compute capability unknown; unknown, unknown free" in text
    assert "NVLink unknown; PCIe topology unknown; peer to peer unknown" in text
    assert "CUDA unknown" in text and "0 B" not in text


@pytest.mark.parametrize("state", ["no-driver", "no-gpu", "failed"])
def test_a_host_without_gpus_says_which_of_the_three_it_is(state: str) -> None:
    text = fingerprint_text(host(gpu=GpuFacts(state=state, driver="580.1", error="why")))  # type: ignore[arg-type]
    assert ("it sees no GPU" in text) == (state == "no-gpu")
    assert (f"{state}: why" in text) == (state != "no-gpu")


def pcie(**given: int) -> Gpu:
    facts = {"pcie_generation": 1, "pcie_generation_max": 4, "pcie_width": 16, "pcie_width_max": 16}
    return h100(**{**facts, **given})


def test_a_generation_lowered_while_idle_is_told_from_one_that_is_low() -> None:
    assert pcie_text(pcie(performance_state=8)) == "PCIe 1 now, 4 at most (lowered while idle) x16"
    assert pcie_text(pcie(performance_state=0, clock_sm=345, clock_sm_max=1980)).count("lowered while idle") == 1
    assert pcie_text(pcie(performance_state=0, clock_sm=1900, clock_sm_max=1980)).count("measure it under load") == 1
    assert pcie_text(pcie(pcie_generation=4, pcie_width=8)) == "PCIe 4 x8 of x16"
    assert pcie_text(h100()) == "" and not idle(h100())


def test_slices_lost_gpus_and_links() -> None:
    assert "MIG slice of GPU-1" in gpu_text(h100(parent="GPU-1", mig=True))
    assert gpu_text(Gpu(index=1, unread={"handle": "Gpu Is Lost"})) == "does not answer: Gpu Is Lost"
    assert link_text(GpuLink(0, 1, "system", 0, None, "ok")).startswith("no NVLink; PCIe topology system")
    assert "shared with the host" in gpu_text(h100(unified_memory=True))


def test_what_root_would_add() -> None:
    denied = host(docker=docker(state="denied", error="no permission"))
    assert more_as_root(with_os(denied, euid=0)) == () and more_as_root(with_os(host(), euid=1000)) == ()
    (engine,) = more_as_root(with_os(denied, euid=1000))
    assert engine.startswith("the container engine")
    slice_ = h100(unread={"bar1": "Insufficient Permissions", "ecc": "Not Supported"})
    assert more_as_root(with_os(host(gpu=gpus(slice_)), euid=1000)) == ("GPU 0: bar1",)
    refused = dataclasses.replace(host(), gpu=GpuFacts(state="failed", error="NVML: Insufficient Permissions"))
    assert more_as_root(with_os(refused, euid=1000)) == ("every fact of the GPUs",)


def test_the_recorded_fingerprint_holds_no_real_identity() -> None:
    text = Path(RECORDED.with_name("two-h200.fingerprint.json")).read_text()
    assert text.count("GPU-00000000-0000-0000-0000-00000000000") == text.count('"uuid"') == 2
