"""The docker bundles, end to end on a real engine and a real registry."""

import json

import pytest

from parts import journeys
from parts.process import free_port

pytestmark = [pytest.mark.real("docker", "registry", "images"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def office(tmp_path_factory, docker_engine):
    return journeys.Office(tmp_path_factory.mktemp("office"), {"DOCKER_HOST": docker_engine.host})


@pytest.fixture
def site(tmp_path, docker_engine):
    made = journeys.Site(tmp_path / "site", free_port(), {"DOCKER_HOST": docker_engine.host})
    yield made
    if (made.root / "bin").exists():
        made.control("--uninstall", "--yes").check()


def test_an_engine_image_is_loaded_isolated_and_answers(office, site, docker_engine, llama_image):
    bundle = office.build(
        "smollm2-docker.toml", "v1", f"image.source=registry:{llama_image}", "image.name=airbundle/llama.cpp:test"
    )
    docker_engine.forget_images()
    site.install(bundle, "--verify").check()
    site.install(bundle, "--yes").check()
    assert "Paris" in site.ask()
    assert site.version() == "v1"

    container = json.loads(docker_engine.run("inspect", *docker_engine.run("ps", "-q").stdout.split()).stdout)[0]
    host = container["HostConfig"]
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    assert all(binding["HostIp"] == "127.0.0.1" for bindings in host["PortBindings"].values() for binding in bindings)
    assert all(not mount["RW"] for mount in container["Mounts"] if mount["Destination"].startswith("/models"))
    assert container["Config"]["Labels"]["airbundle.version"] == "v1"
    assert "HF_HUB_OFFLINE=1" in container["Config"]["Env"]
    outside = docker_engine.run(
        "exec", container["Id"], "curl", "-sS", "--max-time", "5", "http://192.0.2.1/", check=False
    )
    assert outside.returncode != 0


def test_wheels_are_resolved_in_the_base_image_and_installed_without_network(office, site, docker_engine, base_image):
    bundle = office.build(
        "smollm2-base-wheels.toml", "v1", f"image.source=registry:{base_image}", "image.name=airbundle/base:test"
    )
    docker_engine.forget_images()
    site.install(bundle, "--yes").check()
    assert "Paris" in site.ask()


def test_rollback_with_containers_survives_an_image_prune(office, site, docker_engine, llama_image):
    source = (f"image.source=registry:{llama_image}", "image.name=airbundle/llama.cpp:test")
    first = office.build("smollm2-docker.toml", "r1", *source)
    second = office.build("smollm2-docker.toml", "r2", *source, "serving.context=1024")
    site.install(first, "--yes").check()
    site.install(second, "--yes").check()
    docker_engine.run("image", "prune", "-af")
    site.control("--rollback", "--yes").check()
    assert site.version() == "r1"
    assert "Paris" in site.ask()
