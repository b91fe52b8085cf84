"""The images of a bundle: those that will run, each layer once, under names that every engine reads alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airbundle.build import require_images
from airbundle.cache import Cache
from airbundle.contents import image_members
from airbundle.contract.lock import LockedImage
from airbundle.contract.spec import ImageTable
from airbundle.fetch import fetch_all
from airbundle.oci.reference import is_same, qualified
from airbundle.sources import oci
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.errors import UsageError
from parts.layouts import Layout, layer_tar
from parts.sources import context


def plan(name: str, image: str) -> LaunchPlan:
    return LaunchPlan(name, "engine", "1", "docker", ("serve",), "m", image=image)


def two_images(tmp_path: Path) -> tuple[tuple[LockedImage, ...], Cache]:
    """An engine and a gateway that stand on the same layer."""
    made = Layout()
    shared = (layer_tar({"base": bytes(50_000)}), "+gzip")
    for name in ("org/engine:1", "nvcr.io/org/gateway:2"):
        made.list(made.image([shared, (layer_tar({"own": name.encode()}), "+gzip")]), name)
    made.write(tmp_path / "layout")
    given = context(tmp_path)
    source = oci.create(given)
    images = tuple(
        source.lock_image(ImageTable(f"oci:layout:{name}"), "linux/amd64")
        for name in ("org/engine:1", "nvcr.io/org/gateway:2")
    )
    items = {item.sha256: item for image in images for item in (image.manifest, image.config, *image.blobs)}
    fetch_all(tuple(items.values()), lambda scheme: source, given.cache, given.talk)
    return images, given.cache


def test_an_image_that_will_run_but_is_not_packed(tmp_path: Path) -> None:
    images, _ = two_images(tmp_path)
    require_images([plan("cpu", "org/engine:1"), plan("proxy", "nvcr.io/org/gateway:2")], images)
    require_images([LaunchPlan("v", "engine", "1", "venv", ("serve",), "m")], ())
    with pytest.raises(UsageError, match=r"packed \(org/engine:1\)") as caught:
        require_images([plan("cpu", "org/engine:1"), plan("proxy", "nvcr.io/org/gateway:2")], images[:1])
    assert caught.value.details == ("launch plan proxy starts nvcr.io/org/gateway:2",)


def test_two_images_of_one_name(tmp_path: Path) -> None:
    images, _ = two_images(tmp_path)
    with pytest.raises(UsageError) as caught:
        require_images([plan("cpu", "org/engine:1")], (images[0], images[0]))
    assert caught.value.details == ("two images are called org/engine:1",)


def test_shared_layers_are_packed_once_and_names_have_their_host(tmp_path: Path) -> None:
    images, cache = two_images(tmp_path)
    members = list(image_members(images, cache))
    paths = [member.path for member in members]
    assert len(paths) == len(set(paths)) == 3 + 2 + 2 + 3  # layers, configurations, manifests, documents
    documents = {m.path: json.loads(m.content) for m in members if isinstance(m.content, bytes)}
    assert [image["RepoTags"] for image in documents["images/manifest.json"]] == [
        ["docker.io/org/engine:1"],
        ["nvcr.io/org/gateway:2"],
    ]
    entries = documents["images/index.json"]["manifests"]
    assert [entry["annotations"]["io.containerd.image.name"] for entry in entries] == [
        "docker.io/org/engine:1",
        "nvcr.io/org/gateway:2",
    ]
    assert entries[0]["platform"] == {"os": "linux", "architecture": "amd64"}


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("debian:12", "docker.io/library/debian:12"),
        ("vllm/vllm-openai:v1", "docker.io/vllm/vllm-openai:v1"),
        ("localhost/x:1", "localhost/x:1"),
        ("nvcr.io/nvidia/cuda:13", "nvcr.io/nvidia/cuda:13"),
        ("10.0.0.1:5000/x:1", "10.0.0.1:5000/x:1"),
    ],
)
def test_qualified_names(name: str, whole: str) -> None:
    assert qualified(name) == qualified(whole) == whole
    assert is_same(name, whole)
    assert not is_same(name, "other:1")
