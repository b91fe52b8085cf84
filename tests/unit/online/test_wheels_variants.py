"""Wheels for other hardware, and wheels that ask more of glibc than their tag says."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from airbundle.contract.lock import LockedFile, LockedWheel
from airbundle.wheels.variants import check_glibc, check_variants, is_untagged
from airbundle_onsite.contract.profile import GpuProfile, HardwareProfile
from airbundle_onsite.errors import FetchError
from parts.native import make_elf
from parts.wheels import make_wheel

CPU = HardwareProfile("cpu", "CPU")
H200 = HardwareProfile("h200", "H200", gpu=GpuProfile(("NVIDIA H200",), "9.0", 1))


def wheel(name: str, version: str, file: str = "x-1-py3-none-any.whl") -> LockedWheel:
    return LockedWheel(name, version, LockedFile(file, "0" * 64, 1))


@pytest.mark.parametrize(
    ("profile", "version"),
    [
        (H200, "2.11.0+cu130"),
        (H200, "2.11.0"),
        (H200, "1.0+local.1"),
        (H200, "2.0+pt211.cu130"),
        (H200, "2.8.3+cu12torch2.7cxx11abitrue"),
        (H200, "1.0+custom"),
        (CPU, "2.11.0+cpu"),
        (CPU, "2.0"),
    ],
)
def test_what_fits_passes(profile: HardwareProfile, version: str) -> None:
    check_variants([wheel("torch", version)], profile)


@pytest.mark.parametrize(
    ("profile", "version", "said"),
    [
        (H200, "2.0+rocm6", "torch 2.0+rocm6 is built for ROCm; profile h200 is for CUDA"),
        (H200, "2.0+rocm6.4", "built for ROCm"),
        (H200, "2.0+cpu", "built for the CPU; profile h200 is for CUDA"),
        (H200, "2.0+xpu", "built for Intel GPUs"),
        (H200, "2.0+hip6.3", "built for ROCm"),
        (CPU, "2.0+cu121", "built for CUDA; profile cpu is for the CPU"),
        (CPU, "2.8.3+cu12torch2.7cxx11abitrue", "built for CUDA"),
    ],
)
def test_the_wrong_variant_of_the_right_version(profile: HardwareProfile, version: str, said: str) -> None:
    with pytest.raises(FetchError) as caught:
        check_variants([wheel("numpy", "2.0"), wheel("torch", version)], profile)
    assert said in caught.value.summary
    assert "[[wheels.indexes]]" in caught.value.remedy


def test_two_toolkits_side_by_side_are_refused() -> None:
    with pytest.raises(FetchError, match="different versions of CUDA") as caught:
        check_variants([wheel("torch", "2.0+cu130"), wheel("torchvision", "0.9+cu128")], H200)
    assert caught.value.details == ("torch 2.0+cu130", "torchvision 0.9+cu128")


@pytest.mark.parametrize("others", [("2.0+cu13",), ("2.0+cu13.0",), ("2.0+cu13torch2.11", "1.0")])
def test_a_toolkit_named_less_exactly_is_the_same_one(others: tuple[str, ...]) -> None:
    check_variants([wheel("torch", "2.0+cu130"), *(wheel("other", version) for version in others)], H200)
    with pytest.raises(FetchError, match="different versions of CUDA"):
        check_variants([wheel("torch", "2.0+cu128"), *(wheel("other", version) for version in others)], H200)


@pytest.mark.parametrize(
    ("tags", "untagged"),
    [
        ("cp312-cp312-linux_x86_64", True),
        ("cp312-cp312-manylinux_2_17_x86_64", False),
        ("cp312-cp312-linux_x86_64.manylinux_2_17_x86_64", False),
        ("py3-none-any", False),
    ],
)
def test_which_wheels_promise_nothing(tags: str, untagged: bool) -> None:
    assert is_untagged(f"x-1-{tags}.whl") is untagged


def glibc(tmp_path: Path, tags: str, *versions: str) -> None:
    library = make_elf(needed=("libc.so.6",), versions={"libc.so.6": versions})
    path = make_wheel(tmp_path, "native", "1.0", tags=tags, files={"native/_c.so": library, "native/__init__.py": ""})
    data = path.read_bytes()
    locked = LockedFile(path.name, hashlib.sha256(data).hexdigest(), len(data))
    check_glibc([LockedWheel("native", "1.0", locked)], "2.28", lambda item: path, tmp_path / "scratch")


def test_a_wheel_built_on_a_newer_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchError) as caught:
        glibc(tmp_path, "cp312-cp312-linux_x86_64", "GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.17")
    said = "native-1.0-cp312-cp312-linux_x86_64.whl: native/_c.so needs glibc 2.34; the target has 2.28"
    assert caught.value.summary == said
    assert "wheels.build" in caught.value.remedy


def test_one_that_is_old_enough_passes_and_a_tag_is_believed(tmp_path: Path) -> None:
    glibc(tmp_path, "cp312-cp312-linux_x86_64", "GLIBC_2.2.5", "GLIBC_2.28", "GLIBC_PRIVATE")
    glibc(tmp_path, "cp312-cp312-manylinux_2_17_x86_64", "GLIBC_2.34")
