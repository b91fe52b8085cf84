"""Facts of a locked bundle: read once, then kept."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile, LockedWheel
from airbundle.prove.collect import Facts
from airbundle.prove.facts import FACTS_VERSION
from airbundle_onsite.contract.manifest import Layer
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
    assert cache.use().partial_files == 0


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
