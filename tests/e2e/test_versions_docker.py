"""Going back to a version whose image is another one, on a real engine: it was pruned, or removed by force."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from parts import journeys
from parts.docker import DockerEngine
from parts.process import free_port

pytestmark = [pytest.mark.real("docker", "registry", "images"), pytest.mark.timeout(900)]

_OTHER = "airbundle-test/llama-of-r2:1"


@pytest.fixture
def site(tmp_path: Path, docker_engine: DockerEngine) -> Iterator[journeys.Site]:
    made = journeys.Site(tmp_path / "site", free_port(), {"DOCKER_HOST": docker_engine.host})
    yield made
    if (made.root / "bin").exists():
        made.control("--uninstall", "--yes").check()


def _another_image(engine: DockerEngine, reference: str, folder: Path) -> None:
    """The same engine in an image that shares nothing with the first."""
    engine.run("pull", reference)
    container = engine.run("create", reference).stdout.strip()
    engine.run("export", "-o", str(folder / "root.tar"), container)
    engine.run("rm", container)
    entry = 'ENTRYPOINT ["/usr/bin/llama-server"]'
    engine.run("import", "--change", entry, str(folder / "root.tar"), _OTHER)
    (folder / "root.tar").unlink()


def test_no_way_back_is_lost_to_a_prune_and_none_is_pulled(
    tmp_path: Path, site: journeys.Site, docker_engine: DockerEngine, llama_image: str
) -> None:
    office = journeys.Office(tmp_path, {"DOCKER_HOST": docker_engine.host})
    _another_image(docker_engine, llama_image, tmp_path)
    manifest, name = "smollm2-docker.toml", "image.name=airbundle/llama.cpp:r"
    first = office.build(manifest, "r1", f"image.source=registry:{llama_image}", f"{name}1")
    second = office.build(manifest, "r2", f"image.source=daemon:{_OTHER}", f"{name}2")
    site.install(first, "--yes").check()
    of_first = docker_engine.run("inspect", "-f", "{{.Image}}", *_containers(docker_engine)).stdout.strip()
    site.install(second, "--yes").check()

    docker_engine.run("image", "prune", "-af")  # the container of r1, though stopped, holds its image
    site.control("--rollback", "--yes").check()
    assert (site.version(), _images_in_use(docker_engine)) == ("r1", {of_first})
    site.control("--rollback", "--yes").check()
    assert site.version() == "r2"

    running = _containers(docker_engine)
    stopped = [each for each in _containers(docker_engine, "-a") if each not in running]
    docker_engine.run("rm", "-f", *stopped)
    docker_engine.run("rmi", "-f", of_first)
    refused = site.control("--rollback", "--yes").check(5)
    assert "airbundle/llama.cpp:r1" in refused.err
    assert "what runs was not touched" in refused.err
    assert "from its bundle with --reinstall" in refused.err
    assert site.version() == "r2"
    assert _containers(docker_engine) == running
    # The registry still serves it and can be reached from here: whatever pulls would have found it.
    assert of_first not in docker_engine.run("images", "-q", "--no-trunc").stdout
    docker_engine.run("pull", llama_image)
    docker_engine.run("rmi", "-f", of_first)

    site.install(first, "--yes", "--reinstall").check()  # the cure that was named
    assert (site.version(), _images_in_use(docker_engine)) == ("r1", {of_first})


def _containers(engine: DockerEngine, *words: str) -> list[str]:
    """Those that run, or all with ``-a``, of this tool."""
    return engine.run("ps", "-q", "--no-trunc", "--filter", "label=airbundle.version", *words).stdout.split()


def _images_in_use(engine: DockerEngine) -> set[str]:
    return set(engine.run("inspect", "-f", "{{.Image}}", *_containers(engine)).stdout.split())
