"""What `docker save` writes, in its old form and its new one."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airbundle.cache import Cache
from airbundle.cacheuse import cache_use
from airbundle.oci import documents
from airbundle.oci.archive import read_saved
from airbundle_onsite.errors import FetchError
from parts.images import small_image


def chunks(data: bytes, size: int = 700) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def old_form(*, lose: str = "") -> bytes:
    """An archive as docker before 25 writes it: directories per layer, equal layers linked."""
    layer = b"layer bytes" * 100
    diff_id = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = json.dumps({"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": [diff_id, diff_id]}}).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    listing = [{"Config": name, "RepoTags": ["x:1"], "Layers": ["one/layer.tar", "two/layer.tar"]}]
    files = {"one/VERSION": b"1.0", "one/json": b"{}", "one/layer.tar": layer, name: config}
    files["manifest.json"] = json.dumps(listing).encode()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path, data in files.items():
            if path != lose:
                entry = tarfile.TarInfo(path)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("two/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../one/layer.tar"
        tar.addfile(link)
    return stream.getvalue()


def test_old_form_with_linked_layers(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    saved = read_saved(chunks(old_form()), cache, "x:1")
    first, second = saved.layers
    assert first == second
    assert first.media_type == documents.OCI_LAYER
    assert saved.tags == ("x:1",)
    manifest = json.loads(saved.manifest)
    assert [layer["digest"] for layer in manifest["layers"]] == [first.digest, second.digest]
    assert cache.path(hashlib.sha256(saved.manifest).hexdigest()).read_bytes() == saved.manifest
    assert cache_use(cache).files == 3
    assert read_saved(chunks(old_form()), Cache(tmp_path / "other"), "x:1").manifest == saved.manifest


def test_new_form_with_compressed_layers(tmp_path: Path) -> None:
    archive = small_image(tmp_path, "small", {"a": b"b" * 5000})
    saved = read_saved(chunks(archive.path.read_bytes()), Cache(tmp_path / "cache"), "x:1")
    assert saved.config.digest == archive.config_digest
    assert saved.layers[0].media_type == f"{documents.OCI_LAYER}+gzip"
    assert saved.tags == (archive.reference,)


@pytest.mark.parametrize("lose", ["one/layer.tar", "manifest.json"])
def test_archive_that_is_not_whole(tmp_path: Path, lose: str) -> None:
    with pytest.raises(FetchError, match="does not hold one whole image"):
        read_saved(chunks(old_form(lose=lose)), Cache(tmp_path), "x:1")


@pytest.mark.parametrize(("length", "words"), [(3000, "breaks off"), (2500, "does not hold one whole image")])
def test_archive_that_ends_early(tmp_path: Path, length: int, words: str) -> None:
    with pytest.raises(FetchError, match=words):
        read_saved(chunks(old_form()[:length]), Cache(tmp_path), "x:1")
