"""The closure proof on real wheels from PyPI and a real image, held against NVIDIA's own reader."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from airbundle.prove.closure import prove_closure, table_text
from airbundle.prove.facts import ImageFacts, Ptx, WheelFacts
from airbundle.prove.image import merge_layers, read_layer
from airbundle.prove.wheel import read_wheel
from airbundle_onsite.contract.profile import GpuProfile, HardwareProfile
from parts import images, need, store

# CUDA code for seven architectures, no CUDA code, and NVIDIA's reader: 56 MB together.
WHEELS = ("ctranslate2==4.8.0", "numpy==2.2.6", "nvidia-cuda-cuobjdump==13.5.37")
LIBRARY = "ctranslate2.libs/libctranslate2-06f0541d.so.4.8.0"


def gpu(name: str, capability: str, driver: str = "580.65.06") -> HardwareProfile:
    made = GpuProfile(names=(name,), capability=capability, memory=1, min_driver=driver)
    return HardwareProfile(id="p", title=name, gpu=made, min_glibc="2.28")


@pytest.fixture(scope="module")
def downloads() -> dict[str, Path]:
    """Wheels by project, for CPython 3.12, whatever Python this is."""

    def make(directory: Path) -> None:
        target = ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--abi", "none"]
        for tag in ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"):
            target += ["--platform", tag]
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", *target]
        done = subprocess.run([*argv, "--dest", str(directory), *WHEELS], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            need.absent(", ".join(WHEELS), f"let pip reach PyPI ({done.stderr.strip()[-300:]})")

    return {path.name.split("-")[0]: path for path in store.once("prove-wheels-1", make).glob("*.whl")}


@pytest.fixture(scope="module")
def facts(downloads: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, WheelFacts]:
    scratch = tmp_path_factory.mktemp("scratch")
    return {name: read_wheel(path, scratch) for name, path in downloads.items()}


@pytest.fixture(scope="module")
def base_facts(base_archive: images.ImageArchive, tmp_path_factory: pytest.TempPathFactory) -> ImageFacts:
    """The Debian image of the test suite."""
    directory = tmp_path_factory.mktemp("layers")
    with tarfile.open(base_archive.path) as archive:
        blobs = [member for member in archive if member.isreg() and member.size > 1 << 20]
        layers = []
        for number, member in enumerate(blobs):
            with (directory / str(number)).open("wb") as target:
                shutil.copyfileobj(archive.extractfile(member) or pytest.fail(member.name), target)
            layers.append(read_layer(directory / str(number), directory))
    return merge_layers("base:1", layers)


def test_a_cuda_library_holds_what_its_publisher_built(facts: dict[str, WheelFacts]) -> None:
    code = {native.path: native.gpu for native in facts["ctranslate2"].natives}[LIBRARY]
    assert code.sass == ("53", "60", "61", "70", "75", "80", "86")
    assert code.ptx == (Ptx("86", "8.7"),)
    assert (code.entries, code.unread) == (200, 0)


def test_nvidias_reader_sees_the_same(downloads: dict[str, Path], facts: dict[str, WheelFacts], tmp_path: Path) -> None:
    with zipfile.ZipFile(downloads["nvidia_cuda_cuobjdump"]) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith("/bin/cuobjdump")]
        program = Path(archive.extract(member, tmp_path))
    program.chmod(0o755)
    with zipfile.ZipFile(downloads["ctranslate2"]) as archive:
        library = archive.extract(LIBRARY, tmp_path)
    listed = {
        kind: subprocess.run([program, f"--list-{kind}", library], capture_output=True, text=True, timeout=300).stdout
        for kind in ("elf", "ptx")
    }
    code = {native.path: native.gpu for native in facts["ctranslate2"].natives}[LIBRARY]
    assert set(re.findall(r"\.sm_(\w+)\.cubin", listed["elf"])) == set(code.sass)
    assert set(re.findall(r"\.sm_(\w+)\.ptx", listed["ptx"])) == {ptx.arch for ptx in code.ptx}
    assert sum(text.count("\n") for text in listed.values()) == code.entries


@pytest.mark.parametrize(
    ("name", "capability", "driver", "status"),
    [
        ("V100", "7.0", "525.60.13", "pass"),
        ("L4", "8.9", "525.60.13", "pass"),
        ("H200", "9.0", "580.65.06", "warn"),
        ("H200", "9.0", "535.54.03", "fail"),
    ],
)
def test_the_verdict_on_real_code(
    facts: dict[str, WheelFacts], name: str, capability: str, driver: str, status: str
) -> None:
    proof = prove_closure(list(facts.values()), gpu(name, capability, driver))
    rows = {row.package: row for row in proof.rows}
    assert rows["ctranslate2"].status == status, table_text(proof.rows)
    assert (rows["numpy"].status, rows["numpy"].glibc) == ("pass", "2.17")


def test_a_real_image_carries_real_wheels(facts: dict[str, WheelFacts], base_facts: ImageFacts) -> None:
    assert (base_facts.libc, base_facts.glibc, base_facts.glibcxx) == ("glibc", "2.36", "3.4.30")
    assert base_facts.python == "3.11"
    assert {"libc6", "python3-minimal", "ca-certificates"} <= {package.name for package in base_facts.os_packages}
    proof = prove_closure(list(facts.values()), gpu("V100", "7.0"), base_facts)
    assert {row.package: row.status for row in proof.rows if row.kind == "wheel"} == {
        "ctranslate2": "pass",
        "numpy": "pass",
        "nvidia-cuda-cuobjdump": "pass",
    }, table_text(proof.rows)
    assert not [check for check in proof.checks if check.status == "fail"]


def test_no_file_of_a_debian_image_is_without_a_package_or_a_library(base_facts: ImageFacts) -> None:
    owned = {path for package in base_facts.os_packages for path in package.files}
    assert [native.path for native in base_facts.natives if native.path not in owned] == []
    assert [row for row in prove_closure([], gpu("V100", "7.0"), base_facts).rows if row.status != "pass"] == []
