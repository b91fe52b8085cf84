"""The plan a host gets, the interpreter, the disks, and whether two releases fit side by side."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from airbundle_onsite.capacity import AT_ENGINE, AT_ROOT, MARGIN, choose_python, disk_needs, peak_of, why_no_python
from airbundle_onsite.contract.fingerprint import CpuFacts, GpuFacts, MemoryFacts, PythonFacts
from airbundle_onsite.contract.launch import PlanNeeds
from airbundle_onsite.plan import choose_plan, fits_beside
from airbundle_onsite.probes.files import HostFiles
from airbundle_onsite.probes.gpu import SystemMemory, gpu_facts
from unit.onsite.hosts import GB, disk, docker, gpus, h100, host, image, layer, manifest, plan, with_os
from unit.onsite.stub_nvml import NOT_SUPPORTED, StubNvml

V100 = {"Name": "Tesla V100-SXM2-32GB", "CudaComputeCapability": [7, 0], "MemoryInfo": {"total": 32 * 2**30, "free": 0}}
BUILT = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


def stub_gpus(tmp_path: Path, **options: object) -> GpuFacts:
    return gpu_facts(HostFiles(tmp_path), SystemMemory(), StubNvml(**options))  # type: ignore[arg-type]


def test_the_first_plan_that_fits_is_taken_and_each_other_has_a_reason() -> None:
    gpu = plan("gpu", needs=PlanNeeds(gpus=1, capability="8.0", python=">=3.10"))
    avx512 = plan("avx512", needs=PlanNeeds(cpu_flags=("avx512f", "avx2"), python=">=3.10"))
    plain = plan("plain")
    chosen, checks = choose_plan(manifest(gpu, avx512, plain, plan("never-looked-at")), host())
    assert chosen is plain
    assert [(check.id, check.status) for check in checks] == [
        ("plan.gpu", "skip"),
        ("plan.avx512", "skip"),
        ("plan.plain", "pass"),
    ]
    assert "no-driver" in checks[0].summary and "lacks avx512f" in checks[1].summary


def test_when_none_fits_all_fail_with_every_reason() -> None:
    needs = PlanNeeds(memory=100 * GB, python=">=3.12", cpu_flags=("amx_tile",))
    chosen, checks = choose_plan(manifest(plan(needs=needs)), host())
    assert chosen is None
    (check,) = checks
    text = "\n".join([check.summary, *check.evidence])
    assert check.status == "fail" and check.remedy
    assert "100.0 GB" in text and "64.0 GB" in text
    assert "/usr/bin/python3 (3.11.2) is not >=3.12" in text
    assert "amx_tile" in text


def test_unknown_values_warn_and_do_not_refuse() -> None:
    blind = host(cpu=CpuFacts(), memory=MemoryFacts(), gpu=gpus(h100(capability=None, memory_total=None)))
    needs = PlanNeeds(gpus=1, capability="8.0", gpu_memory=GB, memory=GB, cpu_flags=("avx2",), python=">=3.9")
    chosen, checks = choose_plan(manifest(plan(needs=needs)), blind)
    assert chosen is not None and checks[0].status == "warn"
    for what in ("host memory", "CPU flags", "compute capability of GPU 0", "memory of GPU 0"):
        assert what in checks[0].actual


def test_docker_plan_without_an_engine() -> None:
    bundle = manifest(plan(runtime="docker"), runtime="docker")
    assert choose_plan(bundle, host())[0] is not None
    chosen, checks = choose_plan(bundle, host(docker=docker(state="denied", error="no permission to use /s")))
    assert chosen is None and "no permission to use /s" in checks[0].summary


def test_a_bundle_without_plans() -> None:
    empty = dataclasses.replace(manifest(), launch=())
    assert choose_plan(empty, host())[1][0].status == "fail"


def test_no_kernel_for_a_v100_is_refused_naming_gpu_capability_and_list(tmp_path: Path) -> None:
    needs = PlanNeeds(gpus=2, capability="7.0", architectures=BUILT, python=">=3.10")
    _, checks = choose_plan(manifest(plan(needs=needs)), host(gpu=stub_gpus(tmp_path, change=V100)))
    text = "\n".join([checks[0].summary, *checks[0].evidence])
    assert "Tesla V100-SXM2-32GB has compute capability 7.0" in text and "8.0, 8.6, 8.9" in text
    below = PlanNeeds(gpus=1, capability="8.0", python=">=3.10")
    _, checks = choose_plan(manifest(plan(needs=below)), host(gpu=stub_gpus(tmp_path, change=V100)))
    assert "compute capability 7.0, below 8.0" in "\n".join(checks[0].evidence)


def test_a_gpu_newer_than_the_engines_code_is_refused(tmp_path: Path) -> None:
    newer = {"Name": "NVIDIA GeForce RTX 5090", "CudaComputeCapability": [12, 0]}
    needs = PlanNeeds(gpus=1, capability="7.5", architectures=("8.0", "9.0"), python=">=3.10")
    _, checks = choose_plan(manifest(plan(needs=needs)), host(gpu=stub_gpus(tmp_path, change=newer)))
    assert "RTX 5090 has compute capability 12.0" in "\n".join(checks[0].evidence)


def test_enough_gpus_of_those_that_can_be_used() -> None:
    needs = PlanNeeds(gpus=2, gpu_memory=70 * GB, python=">=3.10")
    small = h100(1, name="NVIDIA L4", memory_total=24 * GB)
    mixed = gpus(h100(0), small, h100(2))
    assert choose_plan(manifest(plan(needs=needs)), host(gpu=mixed))[0] is not None
    lost = gpus(h100(0), small, h100(2, unread={"handle": "GPU is lost"}))
    _, checks = choose_plan(manifest(plan(needs=needs)), host(gpu=lost))
    text = "\n".join([checks[0].summary, *checks[0].evidence])
    assert "1 of 3 can be used" in text and "GPU is lost" in text and "24.0 GB, below 70.0 GB" in text


def test_gpu_memory_that_cannot_be_read_is_unknown_not_zero(tmp_path: Path) -> None:
    facts = stub_gpus(tmp_path, faults={"nvmlDeviceGetMemoryInfo": NOT_SUPPORTED})
    needs = PlanNeeds(gpus=1, gpu_memory=100 * GB, python=">=3.10")
    chosen, checks = choose_plan(manifest(plan(needs=needs)), host(gpu=facts))
    assert chosen is not None and checks[0].status == "warn"


def pythons(*found: tuple[str, str, bool]) -> tuple[PythonFacts, ...]:
    return tuple(PythonFacts(path, version, venv) for path, version, venv in found)


def test_the_interpreter_chosen() -> None:
    there = host(
        pythons=pythons(
            ("/home/u/pythons/3.13.0/bin/python3", "3.13.0", True),
            ("/usr/bin/python3", "3.9.18", True),
            ("/usr/local/bin/python3.11", "3.11.7", True),
            ("/usr/bin/python3.12", "3.12.1", False),
        )
    )

    def path(spec: str, *tags: str) -> str | None:
        found = choose_python(spec, tags, there)
        return found.path if found else None

    assert path("") == "/usr/local/bin/python3.11"  # the system's newest with venv
    assert path(">=3.12") == "/home/u/pythons/3.13.0/bin/python3"
    assert path("<3.10") == "/usr/bin/python3"
    assert path(">=3.14") is None
    assert path("", "cp310-abi3-manylinux_2_17_x86_64") == "/usr/local/bin/python3.11"
    assert path("", "cp39-cp39-manylinux_2_17_x86_64") == "/usr/bin/python3"
    assert path("", "cp39-cp39-manylinux_2_17_x86_64", "cp311-cp311-manylinux_2_17_x86_64") is None
    assert path("", "cp310-abi3-manylinux_2_99_x86_64") is None


def test_why_an_interpreter_does_not_fit() -> None:
    there = host(pythons=pythons(("/a", "3.9.1", True), ("/b", "3.12.1", False), ("/c", "3.13.0", True)))
    lines = why_no_python(">=3.10", ("cp312-cp312-manylinux_2_17_x86_64",), there)
    assert lines == [
        "/a (3.9.1) is not >=3.10",
        "/b (3.12.1) cannot import venv",
        "/c (3.13.0) cannot install 1 of the wheels, such as one tagged cp312-cp312-manylinux_2_17_x86_64",
    ]
    musl = with_os(there, glibc=None)
    assert "cannot install" in why_no_python("", ("cp312-cp312-manylinux_2_17_x86_64",), musl)[1]


def test_disks_apart_and_on_one_filesystem() -> None:
    bundle = manifest(runtime="docker", image_disk=6 * GB, images=(image("a:1", layer(1, 2 * GB)),))
    apart = {need.mount: need.needed for need in disk_needs(bundle, host())}
    assert apart == {"/": 10 * GB + MARGIN, "/var": 8 * GB}
    one = host(disks=(disk("root"), disk("docker"), disk("bundle")))
    (need,) = disk_needs(bundle, one)
    assert need.needed == 18 * GB + MARGIN
    assert [share.what for share in need.shares] == [
        AT_ROOT,
        f"{AT_ENGINE}: layers as they travel, for a time",
        f"{AT_ENGINE}: layers unpacked",
    ]
    assert [disk.purpose for disk in need.disks] == ["root", "docker"]


def test_layers_shared_between_images_count_once_and_unknown_sizes_are_estimated() -> None:
    shared = layer(1, 2 * GB)
    images = (image("a:1", shared, layer(2, GB)), image("b:1", shared))
    bundle = manifest(runtime="docker", images=images)
    need = disk_needs(bundle, host())[1]
    assert [share.size for share in need.shares] == [3 * GB, 9 * GB]


def test_the_containerd_store_keeps_compressed_layers() -> None:
    bundle = manifest(runtime="docker", images=(image(),))
    there = host(docker=docker(storage_driver="containerd:overlayfs", image_store="/var/lib/containerd"))
    assert disk_needs(bundle, there)[1].shares[0].what == f"{AT_ENGINE}: layers as they travel"


def test_a_venv_bundle_needs_no_engine_disk_and_present_bytes_are_free() -> None:
    (need,) = disk_needs(manifest(), host(), present=9 * GB)
    assert need.needed == GB + MARGIN
    (need,) = disk_needs(manifest(), host(), present=99 * GB)
    assert need.needed == MARGIN


@pytest.mark.parametrize(
    ("available", "fits"), [(60 * GB, True), (None, False), (int(2.05 * GB), False), (int(2.2 * GB), True)]
)
def test_beside_in_host_memory(available: int | None, fits: bool) -> None:
    there = host(memory=MemoryFacts(total=64 * GB, available=available))
    assert fits_beside(plan(), there) is fits


def test_beside_on_gpus() -> None:
    needs = PlanNeeds(gpus=1, gpu_memory=40 * GB, memory=GB)
    one = plan(needs=needs, gpus="1")
    assert fits_beside(one, host(gpu=gpus(h100(0))))
    assert not fits_beside(one, host(gpu=gpus(h100(0, memory_free=41 * GB))))
    assert not fits_beside(one, host(gpu=gpus(h100(0, memory_free=None))))
    assert not fits_beside(one, host(gpu=gpus(h100(0, compute_mode="exclusive-process"))))
    busy_first = host(gpu=gpus(h100(0, memory_free=GB), h100(1)))
    assert not fits_beside(one, busy_first)  # a container given one GPU gets the first
    assert fits_beside(one, host(gpu=gpus(h100(0), h100(1, memory_free=GB))))
    assert not fits_beside(plan(needs=needs, gpus="all"), host(gpu=gpus(h100(0), h100(1, memory_free=GB))))
    assert not fits_beside(one, host())


def test_beside_with_unknown_needs_is_refused() -> None:
    assert not fits_beside(plan(needs=PlanNeeds()), host())
    assert not fits_beside(plan(needs=PlanNeeds(gpus=1, memory=GB)), host(gpu=gpus(h100())))


def test_what_the_site_says_is_what_was_said_of_the_bundle() -> None:
    bundle = manifest(runtime="docker", image_disk=6 * GB, images=(image("a:1", layer(1, 2 * GB)),))
    peak = peak_of(bundle)
    assert (peak.root, peak.packed, peak.unpacked) == (10 * GB + MARGIN, 2 * GB, 6 * GB)
    said = dict(peak.places())
    needed = {need.mount: need.needed for need in disk_needs(bundle, host())}
    assert needed == {"/": said[AT_ROOT], "/var": said[AT_ENGINE]}
