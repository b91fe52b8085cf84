"""A bundle's images/ by hand into docker, podman and containerd: loaded, named, the same image everywhere."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from airbundle.contents import image_members
from airbundle.contract.lock import LockedImage
from airbundle.contract.spec import ImageTable
from airbundle.fetch import fetch_all
from airbundle.sources import dockerarchive, oci, registry
from parts import need
from parts import podman as podman_part
from parts.docker import DockerEngine
from parts.images import ARCHITECTURES, ImageArchive, small_image
from parts.registry import Registry, skopeo
from parts.sources import Heard, context

PLATFORM = f"linux/{ARCHITECTURES['x86_64']}"


@pytest.fixture(scope="module")
def zstd_archive(tmp_path_factory: pytest.TempPathFactory) -> ImageArchive:
    return small_image(tmp_path_factory.mktemp("zstd"), "zstd", {"bin/app": b"#!/bin/sh\n", "data": bytes(400_000)})


@pytest.fixture(scope="module")
def images_tar(
    registry_server: Registry, zstd_archive: ImageArchive, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, LockedImage]:
    """What ``tar -C images -cf - .`` gives of a bundle whose image a registry has with zstd layers."""
    directory = tmp_path_factory.mktemp("images")
    registry_server.push(zstd_archive, "airbundle-test/zstd:1", "--dest-compress-format", "zstd")
    talk = Heard()
    given = context(directory, talk=talk)
    source = registry.create(given)
    locked = source.lock_image(ImageTable(f"registry:{registry_server.host}/airbundle-test/zstd:1"), PLATFORM)
    assert "1 zstd layers" in talk.said[0]
    fetch_all((locked.manifest, locked.config, *locked.blobs), lambda scheme: source, given.cache, given.talk)
    path = directory / "images.tar"
    with tarfile.open(path, "w") as tar:
        for member in image_members((locked,), given.cache):
            entry = tarfile.TarInfo(f"./{member.path.partition('/')[2]}")
            entry.size = member.size
            data = member.content if isinstance(member.content, bytes) else member.content.read_bytes()
            tar.addfile(entry, io.BytesIO(data))
    return path, locked


@pytest.mark.real("registry")
def test_zstd_image_keeps_its_id(images_tar: tuple[Path, LockedImage], zstd_archive: ImageArchive) -> None:
    _, locked = images_tar
    assert locked.config.path == zstd_archive.config_digest
    assert locked.layers[0].digest == locked.layers[0].diff_id
    assert locked.source_digest not in (locked.manifest.path, zstd_archive.manifest_digest)


@pytest.mark.real("docker", "registry")
def test_docker_loads_it(docker_engine: DockerEngine, images_tar: tuple[Path, LockedImage]) -> None:
    path, locked = images_tar
    try:
        assert "Loaded image: airbundle-test/zstd:1" in docker_engine.run("load", "-i", str(path)).stdout
        for name in ("airbundle-test/zstd:1", "docker.io/airbundle-test/zstd:1"):
            found = docker_engine.run("image", "inspect", "--format", "{{.Id}}", name).stdout.strip()
            assert found == locked.config.path
    finally:
        docker_engine.run("rmi", "-f", "airbundle-test/zstd:1", check=False)


@pytest.mark.real("docker", "registry", "ctr")
def test_containerd_imports_it(docker_engine: DockerEngine, images_tar: tuple[Path, LockedImage]) -> None:
    path, locked = images_tar
    socket = docker_engine.socket.parent / "exec" / "containerd" / "containerd.sock"
    ctr = [need.program("ctr"), "--address", str(socket), "--namespace", "airbundle-test"]
    name = "docker.io/airbundle-test/zstd:1"

    def run(*words: str) -> str:
        done = subprocess.run([*ctr, *words], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("images", "import", str(path))
    try:
        (line,) = [line for line in run("images", "ls").splitlines() if line.startswith(f"{name} ")]
        assert locked.manifest.path in line
    finally:
        run("images", "rm", "--sync", name)


@pytest.fixture
def podman() -> Iterator[podman_part.Podman]:
    with podman_part.running() as running:
        yield running


@pytest.mark.real("podman", "registry")
def test_podman_loads_it_under_the_same_name(podman: podman_part.Podman, images_tar: tuple[Path, LockedImage]) -> None:
    path, locked = images_tar
    assert "docker.io/airbundle-test/zstd:1" in podman.run("load", "-i", str(path))
    (image,) = json.loads(podman.run("images", "--format", "json"))
    assert image["Names"] == ["docker.io/airbundle-test/zstd:1"]
    assert image["Id"] == locked.config.sha256
    podman.run("rmi", "-f", image["Id"])


@pytest.mark.real("podman", "registry")
def test_podman_loads_it_through_dockers_api(podman: podman_part.Podman, images_tar: tuple[Path, LockedImage]) -> None:
    path, locked = images_tar
    client = docker.DockerClient(base_url=podman.host)
    try:
        with path.open("rb") as handle:
            client.images.load(handle)
        for name in ("airbundle-test/zstd:1", "docker.io/airbundle-test/zstd:1", locked.config.path):
            assert client.images.get(name).id == locked.config.path
    finally:
        client.close()


@pytest.mark.real("registry")
@pytest.mark.parametrize("form", ["oci", "oci-archive"])
def test_layouts_that_skopeo_writes(zstd_archive: ImageArchive, tmp_path: Path, form: str) -> None:
    """A layout that skopeo wrote, with zstd layers, as a directory and as a tar."""
    target = f"{form}:{tmp_path}/out:airbundle-test/again:2"
    done = skopeo("copy", "--dest-compress-format", "zstd", f"oci-archive:{zstd_archive.path}", target)
    assert done.returncode == 0, done.stderr
    given = context(tmp_path)
    source = oci.create(given)
    locked = source.lock_image(ImageTable("oci:out"), PLATFORM)
    fetch_all((locked.manifest, locked.config, *locked.blobs), lambda scheme: source, given.cache, given.talk)
    assert locked.name == "airbundle-test/again:2"
    assert locked.config.path == zstd_archive.config_digest
    assert all(given.cache.path(blob.sha256).exists() for blob in locked.blobs)


@pytest.mark.real("docker")
@pytest.mark.parametrize("by", ["name", "id", "both"])
def test_archives_that_docker_saves(docker_engine: DockerEngine, tmp_path: Path, by: str) -> None:
    """Saved by its id an image has no name; two images of one base share its layer."""
    one = small_image(tmp_path, "saved-one", {"data": os.urandom(50_000)})
    two = small_image(tmp_path, "saved-two", {"data": os.urandom(50_000)})
    for archive in (one, two):
        docker_engine.run("load", "-i", str(archive.path))
    words = {"name": [one.reference], "id": [one.config_digest], "both": [one.reference, two.reference]}[by]
    docker_engine.run("save", "-o", str(tmp_path / "saved.tar"), *words)
    docker_engine.run("rmi", "-f", one.reference, two.reference)
    talk = Heard()
    source = dockerarchive.create(context(tmp_path, talk=talk))
    wanted = f":{one.reference}" if by == "both" else ""
    locked = source.lock_image(ImageTable(f"docker-archive:saved.tar{wanted}"), PLATFORM)
    assert locked.config.path == one.config_digest
    assert locked.name == (f"saved:{one.config_digest[7:19]}" if by == "id" else one.reference)
    assert ("<none>" in "".join(talk.said)) == (by == "id")
