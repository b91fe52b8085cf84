"""Reading wheels."""

from __future__ import annotations

from pathlib import Path

import pytest

from airbundle.prove.facts import GpuCode, Ptx
from airbundle.prove.wheel import read_wheel
from airbundle_onsite.errors import IntegrityError
from parts import native
from parts.wheels import make_wheel

TAGS = "cp312-cp312-manylinux_2_28_x86_64"


def test_natives_and_metadata(tmp_path: Path) -> None:
    files = {
        "demo/_C.abi3.so": native.make_elf("", ["libdemo.so.1", "libc.so.6"]),
        "demo.libs/libdemo.so.1": native.gpu_library((native.SASS, "80"), (native.PTX, "80", "8.0")),
        "demo/kernel.cubin": native.make_cubin(90, arguments="-arch sm_90a "),
        "demo/kernels.fatbin": native.make_fatbin((native.SASS, "75"), (native.SASS, "86")),
        "demo/kernel.ptx": ".version 8.2\n.target sm_70\n" + "//\n" * 40,
        "demo/header.h": b"\x7fELF" + b"x" * 100,
        "demo/__init__.py": "VERSION = 1\n" * 20,
    }
    path = make_wheel(tmp_path, "Demo_Project", "1.2", ["numpy>=1"], TAGS, files, requires_python=">=3.10")
    wheel = read_wheel(path, tmp_path)
    assert (wheel.name, wheel.version, wheel.tags) == ("demo-project", "1.2", TAGS)
    assert (wheel.requires, wheel.requires_python, wheel.cuda) == (("numpy>=1",), ">=3.10", 0)
    found = {each.path: each for each in wheel.natives}
    assert set(found) == set(files) - {"demo/header.h", "demo/__init__.py"}
    assert found["demo/_C.abi3.so"].elf is not None
    assert found["demo/_C.abi3.so"].elf.needed == ("libdemo.so.1", "libc.so.6")
    assert found["demo.libs/libdemo.so.1"].gpu == GpuCode(sass=("80",), ptx=(Ptx("80", "8.0"),), entries=2)
    assert found["demo/kernel.cubin"].gpu.sass == ("90a",)
    assert found["demo/kernels.fatbin"].gpu.sass == ("75", "86")
    assert found["demo/kernel.ptx"].gpu.ptx == (Ptx("70", "8.2"),)


def test_a_large_library_goes_over_disk_and_leaves_nothing(tmp_path: Path) -> None:
    code = native.make_fatbin((native.SASS, "90"))
    large = native.make_elf("libbig.so", ["libc.so.6"], sections={".text": bytes(9 << 20), ".nv_fatbin": code})
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (found,) = read_wheel(make_wheel(tmp_path, "big", "1", tags=TAGS, files={"libbig.so": large}), scratch).natives
    assert (found.size, found.gpu.sass) == (len(large), ("90",))
    assert not list(scratch.iterdir())


def test_a_broken_library_is_a_problem_of_that_file(tmp_path: Path) -> None:
    files = {"demo/testdata/cut.so": native.make_elf("libx.so", ["libc.so.6"])[:300], "demo/_C.so": native.make_elf()}
    cut, whole = read_wheel(make_wheel(tmp_path, "demo", "1", tags=TAGS, files=files), tmp_path).natives
    assert cut.problem
    assert cut.elf is None
    assert not whole.problem


@pytest.mark.parametrize(
    ("version", "requires", "needed", "cuda"),
    [
        ("1.0+cu130", (), ("libcudart.so.12",), 13),
        ("1.0", (), ("libcudart.so.12", "libcusparse.so.11"), 12),
        ("1.0", (), ("libcudart.so.11.0",), 11),
        ("1.0", ("nvidia-cuda-runtime-cu12==12.8.90; platform_system == 'Linux'",), (), 12),
        ("1.0", ("nvidia-cublas-cu11; extra == 'cuda'", "nvidia-cudnn-cu13==9.1"), (), 13),
        ("1.0", ("cuda-toolkit[cudart]==13.0.2",), (), 13),
        ("1.0", ("nvidia-nccl-cu12", "nvidia-nccl-cu13"), (), 0),
        ("1.0", ("numpy",), ("libc.so.6",), 0),
    ],
)
def test_cuda_major(
    tmp_path: Path, version: str, requires: tuple[str, ...], needed: tuple[str, ...], cuda: int
) -> None:
    files = {"demo/_C.so": native.make_elf("", needed)}
    assert read_wheel(make_wheel(tmp_path, "demo", version, requires, TAGS, files), tmp_path).cuda == cuda


def test_builds_for_several_toolkits_have_no_one_major(tmp_path: Path) -> None:
    files = {f"demo/lib{major}.so": native.make_elf("", [f"libcudart.so.{major}"]) for major in (12, 13)}
    assert read_wheel(make_wheel(tmp_path, "demo", "1", tags=TAGS, files=files), tmp_path).cuda == 0


def test_a_name_from_outside_for_a_file_in_the_cache(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "demo", "1")
    cached = path.rename(tmp_path / ("ab" * 32))
    assert read_wheel(cached, tmp_path, file_name=path.name).name == "demo"
    with pytest.raises(IntegrityError, match="not the file name of a wheel"):
        read_wheel(cached, tmp_path)


def test_a_damaged_wheel_is_named(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "demo", "1", tags=TAGS, files={"demo/_C.so": native.make_elf("libdemo.so")})
    data = bytearray(path.read_bytes())
    data[60:90] = b"\xff" * 30
    path.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match=r"demo-1-.*damaged"):
        read_wheel(path, tmp_path)
    path.write_bytes(bytes(data[:100]))
    with pytest.raises(IntegrityError, match=r"demo-1-.*damaged"):
        read_wheel(path, tmp_path)
