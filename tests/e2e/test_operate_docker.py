"""A release in a container that stops answering: shown, restarted with the reason said, and removed without a trace."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import runtime_samples as samples
from airbundle_onsite.contract.artifacts import ImageEntry
from airbundle_onsite.contract.launch import Readiness
from airbundle_onsite.contract.layout import StoreLayout
from airbundle_onsite.contract.record import encode
from airbundle_onsite.contract.release import ReleaseRecord
from airbundle_onsite.deploy.status import status, status_text
from airbundle_onsite.deploy.world import Site, real_world
from airbundle_onsite.runtimes.docker import DockerRuntime
from parts import podman
from parts.docker import DockerEngine
from parts.images import ImageArchive, small_image
from parts.process import free_port
from parts.sites import Site as Commands

pytestmark = pytest.mark.real("docker", "images")


@dataclass
class Said:
    """What was said meanwhile."""

    lines: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def progress(self, what: str, done: int, total: int) -> None:
        pass


@pytest.fixture
def image(docker_engine: DockerEngine, base_archive: ImageArchive, tmp_path: Path) -> ImageEntry:
    """The base image, in the engine."""
    entry = samples.image_entry(base_archive)
    runtime = DockerRuntime(samples.environment(tmp_path / "load", docker_engine.host))
    made = samples.manifest(samples.plan("docker"), images=[entry])
    if runtime.has_images(made):
        runtime.load_images(made, samples.image_blobs(base_archive))
    return entry


@pytest.fixture
def commands(docker_engine: DockerEngine, image: ImageEntry, tmp_path: Path) -> Iterator[Commands]:
    """A root with the active release ``demo 1``, not started, as an installation leaves it."""
    made = Commands(tmp_path / "root 中文")
    install(made, image, "1")
    (made.root / "releases/demo/current").symlink_to("1")
    yield made
    docker_engine.run("rm", "-f", "airbundle-demo-1-service", check=False)


def install(made: Commands, image: ImageEntry, version: str) -> samples.ReleaseFiles:
    where = StoreLayout(str(made.root))
    directory = where.release("demo", version)
    plan = samples.plan("docker", image=image.name, readiness=Readiness(load_seconds=60, request_seconds=5))
    manifest = samples.manifest(plan, version=version, images=[image])
    release = samples.release(directory, manifest, plan)
    (release.directory / "state").mkdir()
    data = encode(manifest)
    where.manifest("demo", version).write_bytes(data)
    digest = samples.hashlib.sha256(data).hexdigest()
    record = ReleaseRecord("demo", version, int(version), digest, 1, "cpu", "docker", "127.0.0.1", made.port)
    where.record("demo", version).write_bytes(encode(record))
    return release


def run(made: Commands, engine: DockerEngine, *words: str, code: int = 0) -> dict[str, Any]:
    done = made.run(*words, "--json", env={"DOCKER_HOST": engine.host})
    assert done.code == code, done
    found = json.loads(done.out)
    return found[0] if isinstance(found, list) else found


def pid(engine: DockerEngine) -> int:
    inspected = engine.run("inspect", "-f", "{{.State.Pid}}", "airbundle-demo-1-service")
    return int(inspected.stdout)


def engine_pid(engine: DockerEngine) -> int:
    """The engine itself, which may be a child of the container's init."""
    children = Path(f"/proc/{pid(engine)}/task/{pid(engine)}/children").read_text().split()
    return int(children[0]) if children else pid(engine)


def test_a_frozen_engine_is_restarted(commands: Commands, docker_engine: DockerEngine) -> None:
    assert run(commands, docker_engine, "start")["restarted"] == ""
    first = pid(docker_engine)
    assert run(commands, docker_engine, "start")["restarted"] == ""
    assert pid(docker_engine) == first
    os.kill(engine_pid(docker_engine), signal.SIGSTOP)
    assert run(commands, docker_engine, "status", code=8)["state"] == "running"
    restarted = str(run(commands, docker_engine, "start")["restarted"])
    assert restarted.startswith("the engine was not ready within"), restarted
    assert pid(docker_engine) != first and commands.answer() == "The capital of France is Paris."
    assert list((commands.root / "logs").glob("*-engine-demo-1.log"))


def test_a_paused_container_is_shown_as_paused_and_started_afresh(
    commands: Commands, docker_engine: DockerEngine
) -> None:
    run(commands, docker_engine, "start")
    docker_engine.run("pause", "airbundle-demo-1-service")
    shown = run(commands, docker_engine, "status", code=8)
    assert (shown["state"], shown.get("answers", False)) == ("paused", False)
    site = Site(commands.root, real_world({"DOCKER_HOST": docker_engine.host}), talk=Said())
    assert "paused, and answers nothing; --start restarts it" in status_text(status(site, "demo"))
    assert run(commands, docker_engine, "smoke", code=8)["summary"] == "demo 1 is paused"
    assert run(commands, docker_engine, "start")["restarted"] == "it is paused"
    assert commands.answer() == "The capital of France is Paris."
    docker_engine.run("pause", "airbundle-demo-1-service")
    run(commands, docker_engine, "stop")
    assert run(commands, docker_engine, "status", code=8)["state"] == "exited"


# --- what is left behind ----------------------------------------------------------------------------------


def load(made: Commands, engine: DockerEngine, release: samples.ReleaseFiles, archive: ImageArchive) -> None:
    """As an installation under that root does it."""
    runtime = DockerRuntime(samples.environment(made.root, engine.host))
    runtime.load_images(release.manifest, samples.image_blobs(archive))


def images(engine: DockerEngine) -> set[str]:
    return set(engine.run("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split())


@pytest.fixture
def small(tmp_path: Path) -> dict[str, ImageArchive]:
    """Images that are never started, each with a content of its own."""
    return {name: small_image(tmp_path, f"sweep-{name}", {"f": name.encode()}) for name in ("one", "two", "three")}


def test_prune_and_uninstall_remove_images_that_nothing_else_needs(
    docker_engine: DockerEngine, small: dict[str, ImageArchive], tmp_path: Path
) -> None:
    made = Commands(tmp_path / "root")
    entries = {name: samples.image_entry(archive, archive.reference) for name, archive in small.items()}
    for version, name in (("1", "one"), ("2", "two"), ("3", "three")):
        load(made, docker_engine, install(made, entries[name], version), small[name])
    (made.root / "releases/demo/current").symlink_to("3")
    assert {archive.reference for archive in small.values()} <= images(docker_engine)

    pruned = run(made, docker_engine, "prune", "--yes", "--keep", "1")
    assert f"image {small['one'].reference}" in pruned["outside"]
    assert small["one"].reference not in images(docker_engine)
    assert {small["two"].reference, small["three"].reference} <= images(docker_engine)

    docker_engine.run("create", "--name", "somebody-s", small["two"].reference, "x")
    docker_engine.run("tag", small["three"].reference, "somebody/three:1")
    try:
        done = made.run("uninstall", "--yes", "--json", env={"DOCKER_HOST": docker_engine.host})
        assert done.code == 0, done
        assert f"image {small['two'].reference} stays in the container engine" in done.err
        left = images(docker_engine)
        assert small["two"].reference in left and "somebody/three:1" in left
        assert small["three"].reference not in left
    finally:
        docker_engine.run("rm", "somebody-s")
        docker_engine.run("rmi", "somebody/three:1", small["two"].reference)


def test_an_image_that_was_there_before_is_never_removed(
    docker_engine: DockerEngine, small: dict[str, ImageArchive], tmp_path: Path
) -> None:
    made, archive = Commands(tmp_path / "root"), small["one"]
    docker_engine.run("load", "-i", str(archive.path))
    load(made, docker_engine, install(made, samples.image_entry(archive, archive.reference), "1"), archive)
    try:
        assert run(made, docker_engine, "uninstall", "--yes").get("outside", []) == []
        assert archive.reference in images(docker_engine)
    finally:
        docker_engine.run("rmi", archive.reference)


def test_the_last_uninstall_takes_the_network_away(commands: Commands, docker_engine: DockerEngine) -> None:
    run(commands, docker_engine, "start")
    assert "airbundle" in docker_engine.run("network", "ls", "--format", "{{.Name}}").stdout.split()
    others = docker_engine.run("ps", "-aq", "--filter", "label=airbundle.root").stdout.split()
    assert len(others) == 1, "another test left a container"
    done = run(commands, docker_engine, "uninstall", "--yes")
    assert done["outside"] == ["network airbundle"]
    assert "airbundle" not in docker_engine.run("network", "ls", "--format", "{{.Name}}").stdout.split()


def test_names_that_are_one_when_joined_by_dashes(
    docker_engine: DockerEngine, image: ImageEntry, tmp_path: Path
) -> None:
    """demo v2-x and demo-v2 x: each is found by its labels, and neither takes the other's container away."""
    runtime = DockerRuntime(samples.environment(tmp_path / "root", docker_engine.host))
    plan, instances = samples.plan("docker"), []
    for name, version in (("demo", "v2-x"), ("demo-v2", "x")):
        manifest = samples.manifest(plan, name=name, version=version, images=[image])
        release = samples.release(tmp_path / name, manifest, plan)
        runtime.prepare(release)
        instances.append(runtime.start(release, slot="service", host="127.0.0.1", port=free_port()))
    try:
        assert instances[0].details["container"] == "airbundle-demo-v2-x-service"
        assert instances[1].details["container"] != instances[0].details["container"]
        for instance in instances:
            found = runtime.find(instance.name, instance.version, "service")
            assert found is not None and found.port == instance.port
            assert runtime.state(found).status == "running"
        runtime.remove(dataclasses.replace(instances[0], details={}))
        assert runtime.find("demo", "v2-x", "service") is None
        assert runtime.state(dataclasses.replace(instances[1], details={})).status == "running"
    finally:
        for instance in instances:
            runtime.remove(instance)


@pytest.mark.real("podman")
def test_podman_gives_up_images_too(small: dict[str, ImageArchive], tmp_path: Path) -> None:
    """It knows them under a registry's name, localhost."""
    with podman.running() as engine:
        runtime = DockerRuntime(samples.environment(tmp_path / "root", engine.host))
        made = {}
        for name, archive in small.items():
            plan = samples.plan("docker", image=archive.reference)
            made[name] = samples.manifest(plan, images=[samples.image_entry(archive, archive.reference)])
            runtime.load_images(made[name], samples.image_blobs(archive))
        engine.run("create", "--name", "somebody-s", small["two"].reference, "x")
        assert runtime.sweep([made["one"]]) == [f"image {small['three'].reference}"]
        assert [runtime.has_images(made[name]) for name in small] == [[], [], [small["three"].reference]]
        engine.run("rm", "somebody-s")
        assert set(runtime.sweep([])) == {f"image {small[name].reference}" for name in ("one", "two")}
        assert engine.run("images", "-q").strip() == ""
