"""Images in files that `docker save` wrote: named, several, packed, damaged."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from airbundle.cacheuse import prune
from airbundle.contract.spec import ImageTable
from airbundle.fetch import fetch_all
from airbundle.sources import dockerarchive as source_module
from airbundle_onsite.errors import FetchError, UsageError
from parts.images import ARCHITECTURES, Config, small_image
from parts.layouts import digest_of, layer_tar, zstd
from parts.sources import Heard, context

PLATFORM = f"linux/{ARCHITECTURES['x86_64']}"


def saved(path: Path, *images: tuple[list[str] | None, bytes], lose: str = "") -> Path:
    """An archive as docker before 25 writes it; each image is its names and the tar of its one layer."""
    files: dict[str, bytes] = {}
    listing = []
    for number, (names, layer) in enumerate(images):
        plain = layer if layer[:4] != b"\x28\xb5\x2f\xfd" else layer_tar({"z": b"z" * 5000})
        config = {"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": [digest_of(plain)]}}
        data = json.dumps({**config, "number": number}).encode()
        name = f"{digest_of(data)[7:]}.json"
        files |= {f"{number}/VERSION": b"1.0", f"{number}/layer.tar": layer, name: data}
        listing.append({"Config": name, "RepoTags": names, "Layers": [f"{number}/layer.tar"]})
    files["manifest.json"] = json.dumps(listing).encode()
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            if name != lose:
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return path


ONE, TWO = layer_tar({"a": b"1" * 3000}), layer_tar({"a": b"2" * 3000})


@pytest.mark.parametrize("packed", [False, True])
def test_image_of_an_archive(tmp_path: Path, packed: bool) -> None:
    settings = Config(entrypoint=("/bin/app",), env=("NVIDIA_REQUIRE_CUDA=cuda>=13.0",))
    archive = small_image(tmp_path, "small", {"bin/app": b"#!/bin/sh\n"}, settings)
    if packed:
        archive.path.write_bytes(gzip.compress(archive.path.read_bytes()))
    given = context(tmp_path)
    source = source_module.create(given)
    locked = source.lock_image(ImageTable(f"docker-archive:{archive.path.name}"), PLATFORM)
    assert locked.name == archive.reference
    assert locked.source_digest == locked.config.path == archive.config_digest
    assert (locked.entrypoint, locked.require_cuda) == (("/bin/app",), "cuda>=13.0")
    items = (locked.manifest, locked.config, *locked.blobs)
    for item in items:
        given.cache.drop(item.sha256)
    fetch_all(items, lambda scheme: source, given.cache, given.talk)
    assert all(digest_of(given.cache.path(item.sha256).read_bytes()) == item.path for item in items)
    again = source.lock_image(ImageTable(f"docker-archive:{archive.path}"), PLATFORM)
    assert again.manifest.sha256 == locked.manifest.sha256


def test_several_images_need_a_name_and_only_one_is_read(tmp_path: Path) -> None:
    saved(tmp_path / "two.tar", (["org/app:1", "org/app:latest"], ONE), (["reg.example:5000/b:2"], TWO))
    given = context(tmp_path)
    source = source_module.create(given)
    with pytest.raises(UsageError, match="2 images") as caught:
        source.lock_image(ImageTable("docker-archive:two.tar"), PLATFORM)
    assert caught.value.details == ("org/app:1, org/app:latest", "reg.example:5000/b:2")
    one = source.lock_image(ImageTable("docker-archive:two.tar:docker.io/org/app:latest"), PLATFORM)
    assert (one.name, one.layers[0].digest) == ("org/app:latest", digest_of(ONE))
    assert not given.cache.path(digest_of(TWO)[7:]).exists()
    two = source.lock_image(ImageTable("docker-archive:two.tar:reg.example:5000/b:2"), PLATFORM)
    assert (two.name, two.layers[0].digest) == ("b:2", digest_of(TWO))
    with pytest.raises(FetchError, match="no image 'org/app:3'"):
        source.lock_image(ImageTable("docker-archive:two.tar:org/app:3"), PLATFORM)


@pytest.mark.parametrize("names", [None, []])
def test_image_saved_by_id_gets_a_name(tmp_path: Path, names: list[str] | None) -> None:
    saved(tmp_path / "My_App.v2.tar", (names, ONE))
    talk = Heard()
    source = source_module.create(context(tmp_path, talk=talk))
    locked = source.lock_image(ImageTable("docker-archive:My_App.v2.tar"), PLATFORM)
    assert locked.name == f"my-app-v2:{locked.config.sha256[:12]}"
    assert "<none>" in talk.said[0]
    assert locked.name in talk.said[0]
    named = source.lock_image(ImageTable("docker-archive:My_App.v2.tar", name="mine:1"), PLATFORM)
    assert (named.name, len(talk.said)) == ("mine:1", 1)


def test_zstd_layer_of_an_archive(tmp_path: Path) -> None:
    plain = layer_tar({"z": b"z" * 5000})
    saved(tmp_path / "z.tar", (["z:1"], zstd(plain)))
    given = context(tmp_path)
    source = source_module.create(given)
    locked = source.lock_image(ImageTable("docker-archive:z.tar"), PLATFORM)
    assert locked.layers[0].digest == locked.layers[0].diff_id == digest_of(plain)
    prune(given.cache)
    items = (locked.manifest, locked.config, *locked.blobs)
    fetch_all(items, lambda scheme: source, given.cache, given.talk)
    assert given.cache.path(digest_of(plain)[7:]).read_bytes() == plain


def test_archives_that_are_not_whole(tmp_path: Path) -> None:
    source = source_module.create(context(tmp_path))
    saved(tmp_path / "lost.tar", (["a:1"], ONE), lose="0/layer.tar")
    with pytest.raises(FetchError, match="not in it") as caught:
        source.lock_image(ImageTable("docker-archive:lost.tar"), PLATFORM)
    assert caught.value.details == ("0/layer.tar",)
    whole = saved(tmp_path / "whole.tar", (["a:1"], ONE))
    (tmp_path / "short.tar").write_bytes(whole.read_bytes()[:2000])
    with pytest.raises(FetchError):
        source.lock_image(ImageTable("docker-archive:short.tar"), PLATFORM)
    packed = gzip.compress(whole.read_bytes())
    (tmp_path / "short.tar.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(FetchError, match="not a whole tar"):
        source.lock_image(ImageTable("docker-archive:short.tar.gz"), PLATFORM)
    saved(tmp_path / "none.tar", (["a:1"], ONE), lose="manifest.json")
    with pytest.raises(FetchError, match=r"no manifest\.json"):
        source.lock_image(ImageTable("docker-archive:none.tar"), PLATFORM)


def test_layout_without_manifest_json_says_which_source_reads_it(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "layout.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("index.json"))
    with pytest.raises(FetchError, match=r"no manifest\.json") as caught:
        source_module.create(context(tmp_path)).lock_image(ImageTable("docker-archive:layout.tar"), PLATFORM)
    assert "oci:PATH" in caught.value.remedy


def test_file_that_was_replaced(tmp_path: Path) -> None:
    saved(tmp_path / "a.tar", (["a:1"], ONE))
    given = context(tmp_path)
    source = source_module.create(given)
    locked = source.lock_image(ImageTable("docker-archive:a.tar"), PLATFORM)
    saved(tmp_path / "a.tar", (["a:1"], TWO))
    given.cache.drop(locked.blobs[0].sha256)
    with pytest.raises(FetchError, match="another image now"):
        source.fetch(locked.blobs[0], lambda count: None)
