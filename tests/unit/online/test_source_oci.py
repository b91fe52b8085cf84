"""Images in OCI layouts: one platform of what is listed, whole or refused by name."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from airbundle.contract.lock import LockedImage
from airbundle.contract.spec import ImageTable
from airbundle.fetch import fetch_all
from airbundle.sources import oci as source_module
from airbundle_onsite.errors import FetchError, UsageError
from parts.layouts import Layout, digest_of, layer_tar
from parts.sources import Heard, context, forget

PLATFORM = "linux/amd64"


def lock(base: Path, source: str = "oci:layout", platform: str = PLATFORM, **settings: str) -> LockedImage:
    return source_module.create(context(base)).lock_image(ImageTable(source, **settings), platform)


def items(image: LockedImage) -> tuple[object, ...]:
    return (image.manifest, image.config, *image.blobs)


@pytest.mark.parametrize("form", ["directory", "tar"])
def test_one_platform_with_the_other_one_absent(tmp_path: Path, form: str) -> None:
    """An index of two platforms and an attestation, only one platform's blobs there: what `docker save` may leave."""
    made = Layout()
    amd, arm = made.image(architecture="amd64"), made.image(architecture="arm64")
    made.list(made.index(made.attestation(), arm, amd), "registry.example/org/app:1")
    made.forget(arm)
    where = made.write(tmp_path / "layout") if form == "directory" else made.write_tar(tmp_path / "layout")
    given = context(tmp_path)
    source = source_module.create(given)
    locked = source.lock_image(ImageTable("oci:layout"), PLATFORM)
    assert locked.manifest.path == locked.source_digest == amd["digest"]
    assert (locked.name, locked.platform) == ("registry.example/org/app:1", PLATFORM)
    assert [layer.digest for layer in locked.layers] == made.layers_of(amd)
    for item in items(locked):
        given.cache.drop(item.sha256)
    fetch_all(items(locked), lambda scheme: source, given.cache, given.talk)
    for item in items(locked):
        assert digest_of(given.cache.path(item.sha256).read_bytes()) == item.path
    with pytest.raises(FetchError, match="1 of its blobs") as caught:
        source.lock_image(ImageTable("oci:layout"), "linux/arm64")
    assert "lists registry.example/org/app:1 for linux/arm64" in caught.value.summary
    assert str(arm["digest"]) in caught.value.details[0]
    assert "whole here: registry.example/org/app:1 for linux/amd64" in caught.value.details[-1]
    assert "--platform linux/arm64" in caught.value.remedy
    with pytest.raises(FetchError, match="no image for linux/s390x") as caught:
        source.lock_image(ImageTable("oci:layout"), "linux/s390x")
    assert all("unknown" not in detail for detail in caught.value.details)
    assert where.exists()


def test_every_missing_and_short_blob_is_named(tmp_path: Path) -> None:
    made = Layout()
    tars = [layer_tar({name: name.encode()}) for name in "abc"]
    image = made.list(made.image([(tar, "+gzip") for tar in tars]), "1")
    first, second, _ = made.layers_of(image)
    del made.blobs[first]
    made.blobs[second] = made.blobs[second][:-1]
    made.write(tmp_path / "layout")
    with pytest.raises(FetchError, match="2 of its blobs") as caught:
        lock(tmp_path)
    assert [detail.split()[0] for detail in caught.value.details] == [first, second]


@pytest.mark.parametrize("form", ["directory", "tar"])
def test_damaged_layer(tmp_path: Path, form: str) -> None:
    made = Layout()
    image = made.list(made.image(), "1")
    (layer,) = made.layers_of(image)
    made.blobs[layer] = bytes(len(made.blobs[layer]))
    if form == "directory":
        made.write(tmp_path / "layout")
    else:
        made.write_tar(tmp_path / "layout")
    given = context(tmp_path)
    source = source_module.create(given)
    locked = source.lock_image(ImageTable("oci:layout"), PLATFORM)
    with pytest.raises(FetchError) as caught:
        fetch_all(locked.blobs, lambda scheme: source, given.cache, given.talk)
    assert f"blobs/{layer.replace(':', '/')} is damaged" in caught.value.details[0]
    assert f"needed {len(made.blobs[layer])} bytes" in caught.value.details[0]


def test_layout_that_states_no_platform(tmp_path: Path) -> None:
    """skopeo and umoci list a lone image without its platform; its configuration tells."""
    made = Layout()
    made.list(made.image(architecture="arm64"), "latest", platform=False)
    made.write(tmp_path / "exported")
    assert lock(tmp_path, "oci:exported", "linux/arm64/v8").name == "exported:latest"
    with pytest.raises(FetchError, match="no image for linux/amd64") as caught:
        lock(tmp_path, "oci:exported")
    assert caught.value.details == ("has latest for linux/arm64",)


def test_several_images_need_a_name(tmp_path: Path) -> None:
    made = Layout()
    one = made.list(made.image([(layer_tar({"a": b"1"}), "")]), "docker.io/org/app:1")
    two = made.list(made.image([(layer_tar({"a": b"2"}), "")]), "2")
    made.write(tmp_path / "with:colon")
    with pytest.raises(UsageError, match="2 images for linux/amd64") as caught:
        lock(tmp_path, "oci:with:colon")
    assert caught.value.details == ("docker.io/org/app:1 for linux/amd64", "2 for linux/amd64")
    assert lock(tmp_path, "oci:with:colon:org/app:1").manifest.path == one["digest"]
    assert lock(tmp_path, "oci:with:colon:2").manifest.path == two["digest"]
    assert lock(tmp_path, "oci:with:colon:2", name="mine:3").name == "mine:3"
    with pytest.raises(FetchError, match="no image 'org/app:9'"):
        lock(tmp_path, "oci:with:colon:org/app:9")


def test_name_of_an_image_without_one(tmp_path: Path) -> None:
    made = Layout()
    image = made.list(made.image())
    made.write_tar(tmp_path / "My Export.tar")
    assert lock(tmp_path, "oci:My Export.tar").name == f"image:{str(image['digest'])[7:19]}"


def test_things_that_are_no_layout(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FetchError, match=r"no index\.json") as caught:
        lock(tmp_path, "oci:empty")
    assert "docker-archive:PATH" in caught.value.remedy
    (tmp_path / "text.tar").write_text("not a tar")
    with pytest.raises(FetchError, match="not a whole tar"):
        lock(tmp_path, "oci:text.tar")
    packed = tmp_path / "packed.tar.gz"
    packed.write_bytes(gzip.compress(b"x" * 1000))
    with pytest.raises(UsageError, match="packed with gzip"):
        lock(tmp_path, "oci:packed.tar.gz")
    with pytest.raises(FetchError, match="No such file"):
        lock(tmp_path, "oci:absent")


def test_zstd_layers_become_plain_tar(tmp_path: Path) -> None:
    tars = [layer_tar({"data": bytes(range(256)) * 3000}), layer_tar({"more": b"m" * 9000})]
    made = Layout()
    image = made.list(made.image([(tars[0], "+zstd"), (tars[1], "+gzip")]), "org/app:1")
    made.write(tmp_path / "layout")
    talk = Heard()
    given = context(tmp_path, talk=talk)
    source = source_module.create(given)
    locked = source.lock_image(ImageTable("oci:layout"), PLATFORM)
    packed, gzipped = made.layers_of(image)
    assert [layer.digest for layer in locked.layers] == [digest_of(tars[0]), gzipped]
    assert [layer.diff_id for layer in locked.layers] == [digest_of(tar) for tar in tars]
    assert [layer.media_type.rpartition(".")[2] for layer in locked.layers] == ["tar", "tar+gzip"]
    assert locked.source_digest == image["digest"] != locked.manifest.path
    assert locked.config.path == json.loads(made.blobs[str(image["digest"])])["config"]["digest"]
    assert "1 zstd layers" in talk.said[0]
    assert not given.cache.path(packed[7:]).exists()
    manifest = json.loads(given.cache.path(locked.manifest.sha256).read_bytes())
    assert [layer["digest"] for layer in manifest["layers"]] == [layer.digest for layer in locked.layers]
    assert [layer["size"] for layer in manifest["layers"]] == [len(tars[0]), len(made.blobs[gzipped])]
    for item in items(locked):
        given.cache.drop(item.sha256)
    fetch_all(items(locked), lambda scheme: source, given.cache, given.talk)
    assert given.cache.path(digest_of(tars[0])[7:]).read_bytes() == tars[0]
    assert source.lock_image(ImageTable("oci:layout"), PLATFORM) == locked


@pytest.mark.parametrize(("fault", "words"), [("cut", "unpacks to other bytes"), ("no zstd", "cannot be unpacked")])
def test_zstd_layer_that_is_not_whole(tmp_path: Path, fault: str, words: str) -> None:
    tar = layer_tar({"data": bytes(range(256)) * 3000})
    made = Layout()
    image = made.image([(tar, "+zstd")])
    (layer,) = made.layers_of(image)
    data = made.blobs.pop(layer)
    bad = data[: len(data) // 2] if fault == "cut" else b"plain text" * 100
    document = json.loads(made.blobs[str(image["digest"])])
    document["layers"] = [made.add(document["layers"][0]["mediaType"], bad)]
    made.list(made.add(str(image["mediaType"]), document), "1")
    made.write(tmp_path / "layout")
    with pytest.raises(FetchError, match=words):
        lock(tmp_path)


def test_plain_layer_that_its_configuration_does_not_name(tmp_path: Path) -> None:
    made = Layout()
    made.list(made.image([(layer_tar({"a": b"1"}), "")], diff_ids=[digest_of(b"another")]), "1")
    made.write(tmp_path / "layout")
    with pytest.raises(FetchError, match="other bytes than its configuration names"):
        lock(tmp_path)


def test_settings_of_a_cuda_image(tmp_path: Path) -> None:
    settings = {
        "User": "1000:1000",
        "Entrypoint": ["python3", "-m", "server"],
        "Env": ["PATH=/usr/bin", "NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=tesla,driver>=535,driver<536"],
    }
    made = Layout()
    made.list(made.image(settings=settings), "cuda:1")
    made.write(tmp_path / "layout")
    locked = lock(tmp_path)
    assert locked.user == "1000:1000"
    assert locked.entrypoint == ("python3", "-m", "server")
    assert locked.require_cuda == "cuda>=12.8 brand=tesla,driver>=535,driver<536"
    assert locked.platform == PLATFORM


def test_blob_that_went_away(tmp_path: Path) -> None:
    made = Layout()
    image = made.list(made.image(), "1")
    made.write(tmp_path / "layout")
    locked = lock(tmp_path)
    (layer,) = made.layers_of(image)
    (tmp_path / "layout" / "blobs" / layer.replace(":", "/")).unlink()
    given = context(tmp_path)
    given.cache.drop(layer[7:])
    with pytest.raises(FetchError, match="any more"):
        source_module.create(given).fetch(locked.blobs[0], lambda count: None)
    forget(given.cache, locked.config)
