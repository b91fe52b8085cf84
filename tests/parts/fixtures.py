"""The fixtures: each part started at most once per run, ended by process id, and removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parts import disks, docker, engine, hub, images, models, modelscope_hub, need, network, registry, wheels


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Insist on the parts named by ``@pytest.mark.real(…)`` before any fixture starts."""
    for marker in item.iter_markers("real"):
        need.need(*marker.args)


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[docker.DockerEngine]:
    """A private Docker Engine, shared by the session: remove what you start in it."""
    with docker.running() as running:
        yield running


@pytest.fixture(scope="session")
def registry_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[registry.Registry]:
    """The session's registry; most tests use the name `registry`."""
    with registry.running(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="session", name="registry")
def registry_fixture(registry_server: registry.Registry) -> registry.Registry:
    """A real registry on loopback, shared by the session."""
    return registry_server


@pytest.fixture(scope="session")
def base_archive() -> images.ImageArchive:
    """A small Debian image with python3 and what llama.cpp's wheel needs of a system, as an archive."""
    return images.debian_image("base", *images.BASE)


@pytest.fixture(scope="session")
def llama_archive() -> images.ImageArchive:
    """An image whose entry point is llama.cpp's server, as an archive."""
    return images.debian_image("llama", *images.LLAMA)


@pytest.fixture(scope="session")
def base_image(registry_server: registry.Registry, base_archive: images.ImageArchive) -> str:
    """Reference by digest, ``host/airbundle-test/base@sha256:…``; the tag ``:1`` is there too."""
    return registry_server.push(base_archive, base_archive.reference)


@pytest.fixture(scope="session")
def llama_image(registry_server: registry.Registry, llama_archive: images.ImageArchive) -> str:
    """Reference by digest, ``host/airbundle-test/llama@sha256:…``; the tag ``:1`` is there too."""
    return registry_server.push(llama_archive, llama_archive.reference)


@pytest.fixture
def model_hub() -> Iterator[hub.ModelHub]:
    """An empty model hub."""
    with hub.running() as running:
        yield running


@pytest.fixture
def modelscope() -> Iterator[modelscope_hub.ModelScopeHub]:
    """An empty hub of the other kind."""
    with modelscope_hub.running() as running:
        yield running


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tiny safetensors model in two shards; leave it as it is."""
    return models.write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """A real language model of 93 MB; leave it as it is."""
    return models.smollm2_gguf()


@pytest.fixture
def wheel_index(tmp_path: Path) -> Iterator[wheels.WheelIndex]:
    """A package index over an empty directory, to be filled with `wheels.make_wheel`."""
    with wheels.index(tmp_path / "wheel-index") as running:
        yield running


@pytest.fixture
def _disks() -> Iterator[disks.Disks]:
    with disks.Disks() as made:
        yield made


@pytest.fixture
def small_disk(_disks: disks.Disks) -> Callable[[int], Path]:
    """``small_disk(size_mb)``: mount point of a fresh ext4 filesystem."""
    return _disks.ext4


@pytest.fixture
def fat_disk(_disks: disks.Disks) -> Callable[[int], Path]:
    """``fat_disk(size_mb)``: mount point of a fresh FAT32 filesystem."""
    return _disks.fat


@pytest.fixture
def no_network() -> Callable[..., object]:
    """``no_network(argv, env=…, cwd=…, timeout=…)``: run a command with loopback as its only network."""
    return network.no_network


@pytest.fixture
def fake_engine(tmp_path: Path) -> Iterator[engine.FakeEngines]:
    """``fake_engine.start(fault)``: a small HTTP engine that goes wrong on request."""
    with engine.running(tmp_path) as engines:
        yield engines
