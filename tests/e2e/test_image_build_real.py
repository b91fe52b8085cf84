"""A base image built at the office by a real docker engine, from a real base and real packages."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airbundle.cache import Cache
from airbundle.contract.lock import LockedImage
from airbundle.contract.spec import ImageBuildTable, ImageTable
from airbundle.fetch import fetch_all
from airbundle.oci.engine import archive_chunks
from airbundle.sources import build as source_module
from airbundle.sources.base import SourceContext
from airbundle_onsite.errors import FetchError
from airbundle_onsite.system import SystemRunner
from parts.docker import DockerEngine
from parts.images import ARCHITECTURES, ImageArchive, small_image
from parts.sources import Heard, context

PLATFORM = f"linux/{ARCHITECTURES['x86_64']}"
SETTLED = "a-proxy-name-that-must-not-travel.example"

pytestmark = pytest.mark.real("docker", "images")


def given(directory: Path, engine: DockerEngine) -> SourceContext:
    environ = {**os.environ, "DOCKER_HOST": engine.host}
    environ["no_proxy"] = f"{environ.get('no_proxy', '')},{SETTLED}".lstrip(",")
    return SourceContext(Cache(directory / "cache"), Heard(), SystemRunner(), directory, environ.get)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, docker_engine: DockerEngine) -> SourceContext:
    return given(tmp_path_factory.mktemp("build"), docker_engine)


@pytest.fixture(scope="module")
def table(base_archive: ImageArchive) -> ImageTable:
    build = ImageBuildTable(
        base=f"docker-archive:{base_archive.path}",
        packages=("netbase",),
        env={"GREETING": 'it costs $5, "truly"'},
        user="1000:1000",
    )
    return ImageTable(build=build)


@pytest.fixture(scope="module")
def built(place: SourceContext, table: ImageTable) -> LockedImage:
    return source_module.create(place).lock_image(table, PLATFORM)


@pytest.fixture
def loaded(docker_engine: DockerEngine, place: SourceContext, built: LockedImage, tmp_path: Path) -> Iterator[str]:
    """The image as the bundle has it, in the engine."""
    path = tmp_path / "archive.tar"
    with path.open("wb") as handle:
        handle.writelines(archive_chunks(built, "docker.io/airbundle-test/built:1", place.cache))
    docker_engine.run("load", "-i", str(path))
    yield "airbundle-test/built:1"
    docker_engine.run("rmi", "-f", "airbundle-test/built:1", check=False)


def test_built_image_runs(docker_engine: DockerEngine, loaded: str, built: LockedImage) -> None:
    words = ("run", "--rm", "--network", "none", loaded, "/bin/sh", "-c")
    script = 'id -u; echo "$GREETING"; test -s /etc/protocols && ls -d /airbundle-build /var/lib/apt/lists/*'
    done = docker_engine.run(*words, script, check=False)
    assert done.stdout.splitlines() == ["1000", 'it costs $5, "truly"'], done.stderr
    inspected = docker_engine.run("image", "inspect", "--format", "{{.Id}}", loaded).stdout.strip()
    assert inspected == built.config.path == built.source_digest
    assert built.user == "1000:1000"


def test_nothing_of_the_build_travels(place: SourceContext, built: LockedImage, base_archive: ImageArchive) -> None:
    config = place.cache.path(built.config.sha256).read_text()
    assert SETTLED not in config + built.dockerfile
    assert "container_config" not in config
    document = json.loads(config)
    steps = [step for step in document["history"] if not step.get("empty_layer")]
    assert len(steps) == len(built.layers) == 2
    with tarfile.open(base_archive.path) as archive:
        stored = {Path(name).name for name in archive.getnames() if name.startswith("blobs/")}
    assert built.layers[0].digest[7:] in stored  # packed as it came, not as the engine unpacked it
    for layer in built.layers[1:]:
        with tarfile.open(place.cache.path(layer.digest[7:])) as archive:
            names = archive.getnames()
        assert not [name for name in names if name.endswith(("ca.pem", ".deb")) or "_Packages" in name]
        assert any("netbase" in name for name in names)


def test_the_same_recipe_is_not_built_twice(place: SourceContext, table: ImageTable, built: LockedImage) -> None:
    talk = Heard()
    again = source_module.create(SourceContext(place.cache, talk, place.runner, place.base, place.environ))
    assert again.lock_image(table, PLATFORM) == built
    assert "taken from the cache" in talk.said[0]
    items = (built.manifest, built.config, *built.blobs)
    place.cache.drop(built.config.sha256)
    place.cache.drop(built.manifest.sha256)
    fetch_all(items[:2], lambda scheme: again, place.cache, talk)
    assert all(place.cache.has(item.sha256, item.size) for item in items)


def test_the_engine_keeps_nothing(docker_engine: DockerEngine, built: LockedImage) -> None:
    names = docker_engine.run("images", "--format", "{{.Repository}}").stdout.split()
    assert not {"airbundle-base", "airbundle-build"} & set(names)


def test_a_lost_layer_is_not_invented(built: LockedImage, tmp_path: Path) -> None:
    source = source_module.create(context(tmp_path))
    with pytest.raises(FetchError, match="built on the machine that made the lock") as caught:
        source.fetch(built.blobs[-1], lambda count: None)
    assert "may come out different" in caught.value.remedy


def test_package_that_does_not_exist(docker_engine: DockerEngine, table: ImageTable, tmp_path: Path) -> None:
    assert table.build is not None
    wrong = ImageTable(build=ImageBuildTable(table.build.base, packages=("airbundle-no-such-package",)))
    with pytest.raises(FetchError, match="the build failed") as caught:
        source_module.create(given(tmp_path, docker_engine)).lock_image(wrong, PLATFORM)
    assert any("airbundle-no-such-package" in line for line in caught.value.details)
    assert SETTLED not in "".join(caught.value.lines())
    assert not docker_engine.run("images", "-q", "airbundle-base").stdout


def test_base_without_a_shell(docker_engine: DockerEngine, tmp_path: Path) -> None:
    archive = small_image(tmp_path, "nothing", {"data": b"x"})
    wrong = ImageTable(build=ImageBuildTable(f"docker-archive:{archive.path}", pip=True))
    with pytest.raises(FetchError, match="the build failed"):
        source_module.create(given(tmp_path, docker_engine)).lock_image(wrong, PLATFORM)
