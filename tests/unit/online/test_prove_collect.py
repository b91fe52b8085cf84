"""Facts of a locked bundle: read once, then kept."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

from airbundle.cache import Cache
from airbundle.cacheuse import cache_use
from airbundle.contract.lock import LOCK_VERSION, BundleLock, LockedFile, LockedImage, LockedWheel
from airbundle.contract.spec import (
    BundleSpec,
    BundleTable,
    EngineTable,
    ImageTable,
    ModelTable,
    RuntimeTable,
    TargetTable,
)
from airbundle.prove.collect import Facts, prove_lock
from airbundle.prove.facts import FACTS_VERSION
from airbundle_onsite.contract.artifacts import Layer
from airbundle_onsite.contract.profile import GpuProfile, HardwareProfile
from airbundle_onsite.errors import FetchError
from parts import native
from parts.wheels import make_wheel

TAGS = "cp312-cp312-manylinux_2_28_x86_64"


def cached(cache: Cache, path: Path) -> tuple[str, int]:
    data = path.read_bytes()
    cache.add_bytes(data)
    return hashlib.sha256(data).hexdigest(), len(data)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def wheel(cache: Cache, tmp_path: Path) -> LockedWheel:
    files = {"demo/_C.abi3.so": native.gpu_library((native.SASS, "90a"), (native.PTX, "80", "8.0"))}
    path = make_wheel(tmp_path, "demo", "1.0+cu124", ["numpy"], TAGS, files)
    return LockedWheel("demo", "1.0+cu124", LockedFile(path.name, *cached(cache, path)))


def test_a_wheel_is_read_once(cache: Cache, wheel: LockedWheel) -> None:
    told: list[int] = []
    first = Facts(cache, told.append).wheel(wheel)
    assert (first.name, first.cuda, first.natives[0].gpu.sass) == ("demo", 12, ("90a",))
    cache.path(wheel.file.sha256).unlink()
    assert Facts(cache, told.append).wheel(wheel) == first
    assert told == [wheel.file.size] * 2


def test_facts_that_cannot_be_decoded_are_read_again(cache: Cache, wheel: LockedWheel) -> None:
    first = Facts(cache).wheel(wheel)
    (kept,) = (cache.root / "facts" / str(FACTS_VERSION)).iterdir()
    for content in (b"{", b'{"name": "demo", "future": 1}'):
        kept.write_bytes(content)
        assert Facts(cache).wheel(wheel) == first


def test_nothing_is_left_in_scratch(cache: Cache, wheel: LockedWheel) -> None:
    Facts(cache).wheel(wheel)
    assert cache_use(cache).partial_files == 0


def test_a_layer_is_read_once(cache: Cache, tmp_path: Path) -> None:
    library = tmp_path / "libdemo.so.1"
    library.write_bytes(native.make_elf("libdemo.so.1"))
    with tarfile.open(tmp_path / "layer.tar", "w") as archive:
        archive.add(library, "usr/lib/libdemo.so.1")
    sha256, size = cached(cache, tmp_path / "layer.tar")
    layer = Layer(f"sha256:{sha256}", size, f"sha256:{sha256}", "application/vnd.oci.image.layer.v1.tar")
    first = Facts(cache).layer(layer)
    assert [each.path for each in first.natives] == ["usr/lib/libdemo.so.1"]
    cache.path(sha256).unlink()
    assert Facts(cache).layer(layer) == first


def layer_of(cache: Cache, directory: Path, files: dict[str, bytes]) -> Layer:
    archive_path = directory / "made.tar"
    with tarfile.open(archive_path, "w") as archive:
        for path, data in files.items():
            (directory / "member").write_bytes(data)
            archive.add(directory / "member", path)
    sha256, size = cached(cache, archive_path)
    return Layer(f"sha256:{sha256}", size, f"sha256:{sha256}", "application/vnd.oci.image.layer.v1.tar")


def locked(wheels: tuple[LockedWheel, ...], images: tuple[LockedImage, ...]) -> BundleLock:
    """vLLM in a container, for a V100."""
    spec = BundleSpec(
        bundle=BundleTable(name="demo"),
        target=TargetTable(profile="p"),
        model=ModelTable(source="local:x", served_name="m"),
        engine=EngineTable(name="vllm"),
        runtime=RuntimeTable(kind="docker"),
        image=ImageTable(source="registry:x"),
    )
    gpu = GpuProfile(names=("V100",), capability="7.0", memory=1, min_driver="535.54.03")
    profile = HardwareProfile(id="p", title="V100", gpu=gpu)
    return BundleLock(LOCK_VERSION, 0, "t", spec, "0" * 64, profile, (), wheels, None, images)


def test_a_whole_lock(cache: Cache, wheel: LockedWheel, tmp_path: Path) -> None:
    """The wheels run in the first image; a second one, which shares its layer, is judged without them."""
    libc = native.make_elf("libc.so.6", defines=["GLIBC_2.36"])
    base = layer_of(cache, tmp_path, {"usr/lib/libc.so.6": libc})
    blob = LockedFile("blob", "0" * 64, 1)
    images = tuple(
        LockedImage(f"{name}:1", "s", "d", blob, blob, (base,), (blob,), "linux/amd64", require_cuda=asks)
        for name, asks in (("engine", "cuda>=12.0"), ("gateway", ""))
    )
    lock = locked((wheel,), images)
    done: list[int] = []
    proof = prove_lock(lock, cache, advance=done.append)
    assert [(row.package, row.status) for row in proof.rows if row.kind == "wheel"] == [("demo", "fail")]
    failed = {check.id: check.summary for check in proof.checks if check.status == "fail"}
    assert failed == {"prove.gpu": "demo 1.0+cu124 has sm_90a, PTX 80: V100 (sm_70) cannot run it"}
    assert "image engine:1 starts with CUDA 12.2, driver 535.54.03" in [check.summary for check in proof.checks]
    assert sorted(done) == sorted([wheel.file.size, base.size])


@pytest.mark.parametrize(
    ("kernels", "packages", "found"),
    [
        ("0.7.2", ("libc6", "gcc-12", "cuda-nvcc-13-0"), ("pass", "pass", "pass")),
        ("0.6.13", ("libc6",), ("fail", "warn", "warn")),
        ("", (), ("warn",)),
    ],
)
def test_what_the_engine_of_an_image_would_fetch_late(
    cache: Cache, tmp_path: Path, kernels: str, packages: tuple[str, ...], found: tuple[str, ...]
) -> None:
    projects = {"flashinfer-python": "0.7.2", "triton": "3.6.0", "deep-gemm": "2.5", "flashinfer-cubin": kernels}
    files = {
        f"usr/lib/python3/dist-packages/{name}-{version}.dist-info/METADATA": f"Name: {name}\nVersion: {version}\n"
        for name, version in projects.items()
        if version
    }
    status = "\n".join(f"Package: {name}\nStatus: install ok installed\nVersion: 1\n" for name in packages)
    files |= {"var/lib/dpkg/status": status} if packages else {}
    layer = layer_of(cache, tmp_path, {path: text.encode() for path, text in files.items()})
    blob = LockedFile("blob", "0" * 64, 1)
    image = LockedImage("engine:1", "s", "d", blob, blob, (layer,), (blob,), "linux/amd64")
    proof = prove_lock(locked((), (image,)), cache)
    wanted = ("lazy.flashinfer-kernels", "lazy.triton-compiler", "lazy.deepgemm-compiler")
    assert {check.id: check.status for check in proof.checks} == dict(zip(wanted, found, strict=False))
    late = next(check for check in proof.checks if check.id == "lazy.flashinfer-kernels")
    assert late.summary.startswith("image engine:1: ") and "0.7.2" in late.summary
    if "fail" in found:
        with pytest.raises(FetchError, match="closure proof failed") as caught:
            proof.require()
        assert "flashinfer-cubin 0.6.13" in caught.value.details[0]
