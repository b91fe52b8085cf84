"""Bundles by difference, end to end: the real installer; sites that have the base, have it not, have spoilt it."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import runtime_samples as samples
from airbundle.cache import Cache
from airbundle.delta.base import Known, read_base
from airbundle.delta.rebase import rebase
from airbundle.delta.thin import Difference
from airbundle_onsite import probes
from airbundle_onsite.contract.artifacts import ImageEntry, Layer
from airbundle_onsite.contract.base import BaseRelease, Rollback
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.runtimes import docker
from airbundle_onsite.runtimes.base import Environment
from airbundle_onsite.system import Silent, SystemClock, SystemRunner
from airbundle_onsite.verify.bundle import trust
from parts import journeys, podman, sites, tuned, wheels
from parts.bundles import snapshot
from parts.docker import DockerEngine
from parts.images import Config, ImageArchive, write_archive
from parts.journeys import airbundle
from parts.process import free_port
from parts.registry import Registry
from parts.sites import Site, release_bundle
from parts.specs import write_spec

pytestmark = pytest.mark.timeout(300)

COUNT = 160
CHANGED = frozenset(range(3, COUNT, 20))  # 8 of 160: 5 %
SHARDS = 4


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with sites.site(tmp_path / "site") as made:
        yield made


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Full bundles: v1, and v2 with a fine-tune of its model, each in a folder of its own."""
    folder = tmp_path_factory.mktemp("full")
    first, second = tuned.tensors(COUNT), tuned.tensors(COUNT, changed=CHANGED)
    return {
        "v1": release_bundle(folder, "v1", more=tuned.shards(first, SHARDS)),
        "v2": release_bundle(folder, "v2", more=tuned.shards(second, SHARDS, note="a header that grew")),
    }


def thin(bundle: Path, known: tuple[Known, ...], folder: Path, rollback: Rollback | None = None) -> Path:
    """The bundle again, without what is known."""
    cache = Cache(folder / "cache")
    made = rebase(
        bundle, Difference(known, rollback=rollback), cache, folder / "thin", part_size=1_000_000, talk=Silent()
    )
    return made.directory


def on(base: Path, folder: Path) -> tuple[Known, ...]:
    return read_base(base, Cache(folder / "cache"))


def manifest_of(bundle: Path) -> BundleManifest:
    return trust(bundle).manifest


def require_whole(site: Site, bundle: Path) -> None:
    """Every file of the installed release has the SHA-256 of its manifest."""
    manifest = manifest_of(bundle)
    release = site.root / "releases/demo" / manifest.version
    found = {e.path: hashlib.sha256((release / e.path).read_bytes()).hexdigest() for e in manifest.files}
    assert found == {entry.path: entry.sha256 for entry in manifest.files}


def stored(site: Site, bundle: Path, path: str) -> Path:
    """Where the site keeps a model's file of that bundle."""
    (sha256,) = [entry.sha256 for entry in manifest_of(bundle).files if entry.path == path]
    return site.root / "weights/sha256" / sha256[:2] / sha256


def answers(site: Site, version: str) -> bool:
    return site.answer() == f"Paris, says {version}" and site.current() == version


def test_a_fine_tune_ships_what_it_changed(site: Site, full: Mapping[str, Path], tmp_path: Path) -> None:
    delta = thin(full["v2"], on(full["v1"], tmp_path), tmp_path)
    whole, left = manifest_of(full["v2"]).payload.size, manifest_of(delta).payload.size
    assert left <= 0.06 * whole, f"{left / whole:.1%}"
    assert site.install(full["v1"]).code == 0
    done = site.install(delta)
    assert done.code == 0, done
    assert answers(site, "v2")
    require_whole(site, full["v2"])
    assert site.leftovers() == []
    assert site.run("--rollback", "--yes").code == 0
    assert answers(site, "v1")


def test_without_the_base_nothing_changes(site: Site, full: Mapping[str, Path], tmp_path: Path) -> None:
    delta = thin(full["v2"], on(full["v1"], tmp_path), tmp_path)
    before = snapshot(delta)
    done = site.install(delta)
    assert done.code == 3, done
    assert "builds on demo v1" in done.err
    assert "demo v1 is not installed under" in done.err
    assert "install demo v1, then this bundle; or carry the full bundle" in done.err
    assert not (site.root / "releases").exists()
    assert not (site.root / "staging").exists()
    assert snapshot(delta) == before
    assert site.run("--bundle", delta, "--verify").code == 3
    assert site.run("--bundle", full["v2"], "--verify").code == 0


def test_a_base_that_was_changed_is_named(site: Site, full: Mapping[str, Path], tmp_path: Path) -> None:
    delta = thin(full["v2"], on(full["v1"], tmp_path), tmp_path)
    assert site.install(full["v1"]).code == 0
    path = stored(site, full["v1"], "models/demo/model-00002-of-00004.safetensors")
    path.chmod(0o644)
    with path.open("r+b") as handle:
        handle.seek(-1, os.SEEK_END)
        handle.write(b"\0")
    done = site.install(delta)
    assert done.code == 3, done
    assert str(path) in done.err
    assert "its content was changed since it was installed" in done.err
    assert "install demo v1 again from its own bundle, with --reinstall" in done.err
    assert answers(site, "v1")
    assert not (site.root / "releases/demo/v2").exists()
    assert site.install(full["v1"], "--reinstall").code == 0
    assert site.install(delta).code == 0
    require_whole(site, full["v2"])


def test_a_change_that_hides_is_found_while_rebuilding(site: Site, full: Mapping[str, Path], tmp_path: Path) -> None:
    """Same size, same time: the proof still vouches for it, the hash of what is rebuilt does not."""
    delta = thin(full["v2"], on(full["v1"], tmp_path), tmp_path)
    assert site.install(full["v1"]).code == 0
    path = stored(site, full["v1"], "models/demo/model-00003-of-00004.safetensors")
    status = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as handle:
        handle.seek(-1, os.SEEK_END)
        last = handle.read(1)
        handle.seek(-1, os.SEEK_END)
        handle.write(bytes([last[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = site.install(delta)
    assert done.code == 5, done
    assert f"{path}: its content was changed since it was installed" in done.err
    assert answers(site, "v1")
    assert site.leftovers() == []
    assert not (site.root / "releases/demo/v2").exists()
    assert site.install(delta, "--paranoid").code == 3


def test_gguf_ships_by_tensor(site: Site, tmp_path: Path) -> None:
    first = release_bundle(tmp_path / "full", "v1", weights=tuned.gguf(tuned.tensors(40)))
    changed = tuned.gguf(tuned.tensors(40, changed={7, 8}), note="longer metadata " * 20)
    second = release_bundle(tmp_path / "full", "v2", weights=changed)
    delta = thin(second, on(first, tmp_path), tmp_path)
    assert manifest_of(delta).payload.size <= 0.07 * manifest_of(second).payload.size
    (entry,) = [entry for entry in manifest_of(delta).files if entry.path == "models/demo/model.gguf"]
    assert [segment.base is None for segment in entry.segments] == [True, False, True, False]
    assert site.install(first).code == 0
    assert site.install(delta).code == 0
    require_whole(site, second)


def test_an_inventory_stands_for_the_base(site: Site, full: Mapping[str, Path], tmp_path: Path) -> None:
    """What the office lost, the site can tell: whole files always, tensors when they are asked for."""
    assert site.install(full["v1"]).code == 0
    plain, listed = tmp_path / "plain.json", tmp_path / "listed.json"
    assert site.run("--inventory", plain).code == 0
    assert site.run("--inventory", listed, "--with-tensors").code == 0
    whole = manifest_of(full["v2"]).payload.size
    by_file = thin(full["v2"], on(plain, tmp_path / "a"), tmp_path / "a")
    by_tensor = thin(full["v2"], on(listed, tmp_path / "b"), tmp_path / "b")
    assert manifest_of(by_tensor).payload.size <= 0.06 * whole
    assert 0.9 * whole < manifest_of(by_file).payload.size < whole
    assert site.install(by_tensor).code == 0
    require_whole(site, full["v2"])


def test_a_way_back_after_the_old_release_was_pruned(site: Site, full: Mapping[str, Path], tmp_path: Path) -> None:
    newer = manifest_of(full["v2"])
    back = thin(full["v1"], on(full["v2"], tmp_path), tmp_path, Rollback(newer.version, newer.sequence))
    assert back.name == "demo-v1-from-v2"
    assert manifest_of(back).payload.size <= 0.06 * manifest_of(full["v1"]).payload.size
    assert site.install(full["v1"]).code == 0
    assert site.install(full["v2"]).code == 0
    still = site.install(back)
    assert still.code == 3
    assert "--activate v1" in still.err
    assert site.run("--uninstall", "v1", "--yes").code == 0
    assert site.install(full["v1"]).code == 6, "a plain older bundle is a replay"
    done = site.install(back)
    assert done.code == 0, done
    assert answers(site, "v1")
    require_whole(site, full["v1"])
    assert site.run("--rollback", "--yes").code == 0
    assert answers(site, "v2")

    third = release_bundle(tmp_path / "later", "v3", more=tuned.shards(tuned.tensors(COUNT, changed=CHANGED), SHARDS))
    assert site.run("--uninstall", "v1", "--yes").code == 0
    assert site.install(third).code == 0
    replayed = site.install(back)
    assert replayed.code == 6
    assert "leads back from v2, sequence 2; sequence 3 was installed here since" in replayed.err
    assert answers(site, "v3")


# --- from the command line --------------------------------------------------------------------------------


@pytest.fixture
def office(tmp_path: Path, wheel_index: wheels.WheelIndex) -> Callable[..., dict[str, Any]]:
    """``office(version, model, *words)``: `airbundle build --json` of a GGUF model, with a stand-in for the engine."""

    def run(version: str, model: bytes, *words: str | Path, folder: str = "dist") -> dict[str, Any]:
        source = tmp_path / f"model-{version}"
        source.mkdir(exist_ok=True)
        (source / "model.gguf").write_bytes(model)
        spec = write_spec(tmp_path / f"{version}.toml", wheel_index, source, version=version, served_name="demo")
        argv = ("build", spec, "-o", tmp_path / folder, "--json", "--cache", tmp_path / "cache", *words)
        found: dict[str, Any] = (
            airbundle(*argv, env={"SOURCE_DATE_EPOCH": str(1_700_000_000 + int(version[1:]))}).check().json
        )
        return found

    return run


def test_build_diff_and_the_way_back_by_command(office: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    first, second = tuned.gguf(tuned.tensors(40)), tuned.gguf(tuned.tensors(40, changed={7, 30}))
    old = Path(office("v1", first)["bundle"])
    new = Path(office("v2", second)["bundle"])
    made = office("v2", second, "--base", old, folder="thin")
    thin_bundle = Path(made["bundle"])
    assert made["manifest"]["payload"]["size"] < 0.1 * manifest_of(new).payload.size
    again = Path(office("v2", second, "--base", old, folder="again")["bundle"])
    assert snapshot_of(again) == snapshot_of(thin_bundle)
    airbundle("verify", thin_bundle).check()
    shown = airbundle("inspect", thin_bundle).check().out
    assert "builds on tiny v1, which the site must have: takes from 1 file(s)" in shown

    cache = ("--cache", tmp_path / "cache")
    found = airbundle("diff", old, new, "--json", *cache).check().json
    (model,) = [file for file in found["files"] if file["path"] == "models/demo/model.gguf"]
    assert model["changed"] == ["layer.007.weight", "layer.030.weight"]
    assert model["tensors"] == 40
    assert 2 * tuned.TENSOR <= model["new_bytes"] < 2 * tuned.TENSOR + 10_000
    assert "of 40 tensors 2 changed" in airbundle("diff", old, thin_bundle, *cache).check().out
    assert "nothing differs" in airbundle("diff", old, old, *cache).check().out

    words = ("-o", tmp_path / "back", "--json", *cache)
    ways = [
        airbundle("build", "--rollback-to", to, "--from", new, "--force", *words, env={"SOURCE_DATE_EPOCH": ""}).check()
        for to in (old, tmp_path / "v1.lock.json")
    ]
    for said in ways:
        back = said.json["manifest"]
        assert (back["version"], back["rollback"]["version"]) == ("v1", "v2")
        assert back["payload"]["size"] < 0.1 * manifest_of(old).payload.size
    refused = airbundle("build", "--rollback-to", new, "--from", old, *words).check(2)
    assert "that is no way back" in refused.err
    assert "belong together" in airbundle("build", "--rollback-to", old, *words).check(2).err
    spoilt = tmp_path / "inventory.json"
    spoilt.write_text("{}")
    assert "is no inventory" in airbundle("build", tmp_path / "v2.toml", "--base", spoilt, *words).check(2).err


def snapshot_of(bundle: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in bundle.iterdir()}


# --- image layers -----------------------------------------------------------------------------------------
def layered(folder: Path, name: str, base: ImageArchive, files: Mapping[str, bytes]) -> ImageArchive:
    """An image of another one's layers and one more."""
    top = io.BytesIO()
    with tarfile.open(fileobj=top, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    top.seek(0)
    with contextlib.ExitStack() as stack:
        archive = stack.enter_context(tarfile.open(base.path))
        (document,) = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        below = [gzip.GzipFile(fileobj=archive.extractfile(path)) for path in document["Layers"]]
        config = json.load(archive.extractfile(document["Config"]))["config"]  # type: ignore[arg-type]
        path = folder / f"{name}.tar"
        started = Config(tuple(config["Entrypoint"] or ()), tuple(config["Cmd"] or ()), tuple(config["Env"]))
        facts = write_archive(path, f"airbundle-test/{name}:1", [*below, top], started)  # type: ignore[list-item]
    return ImageArchive(path, f"airbundle-test/{name}:1", facts["manifest"], facts["config"])


@pytest.mark.real("docker", "registry", "images")
@pytest.mark.timeout(900)
def test_layers_that_the_engine_has_do_not_travel(
    docker_engine: DockerEngine, registry: Registry, llama_archive: ImageArchive, llama_image: str, tmp_path: Path
) -> None:
    env = {"DOCKER_HOST": docker_engine.host}
    made = journeys.Office(tmp_path, env)
    site = journeys.Site(tmp_path / "site", free_port(), env)
    newer = layered(tmp_path, "llama-next", llama_archive, {"etc/airbundle-test": b"next"})
    pushed = registry.push(newer, newer.reference)
    name = "image.name=airbundle/llama.cpp:test"
    first = made.build("smollm2-docker.toml", "d1", f"image.source=registry:{llama_image}", name)
    words = ("smollm2-docker.toml", "d2", f"image.source=registry:{pushed}", name)
    second = made.build(*words, words=("--base", first))
    thin_size, full_size = manifest_of(second).payload.size, manifest_of(first).payload.size
    assert thin_size < 0.01 * full_size, (thin_size, full_size)
    assert len(manifest_of(second).absent_layers) == len(manifest_of(first).images[0].layers)

    docker_engine.forget_images()
    refused = site.install(second, "--yes").check(3)
    assert "which the container engine lacks" in refused.err
    assert "builds on" in refused.err
    assert not (site.root / "releases").exists()
    try:
        site.install(first, "--yes").check()
        site.install(second, "--yes").check()
        assert "Paris" in site.ask()
        assert site.version() == "d2"
        layers = docker_engine.run(
            "image", "inspect", "--format", "{{json .RootFS.Layers}}", "airbundle/llama.cpp:test"
        )
        assert json.loads(layers.stdout) == [layer.diff_id for layer in manifest_of(second).images[0].layers]
    finally:
        if (site.root / "bin").exists():
            site.control("--uninstall", "--yes").check()


@pytest.mark.real("podman")
def test_podman_is_refused_before_anything_changes(tmp_path: Path) -> None:
    """It wants every layer of an archive; that is said at once, and how to have a bundle that it takes."""
    digest = f"sha256:{'a' * 64}"
    image = ImageEntry("i:1", digest, "", digest, "linux/amd64", (Layer(digest, 1, digest, "layer"),), 1)
    base = BaseRelease("demo", "v1", "0" * 64, (), (digest,))
    plan = samples.plan("docker")
    manifest = dataclasses.replace(samples.manifest(plan), images=(image,), bases=(base,))
    with podman.running() as running:
        environ = {"DOCKER_HOST": running.host}
        host = probes.take({"root": tmp_path}, runner=SystemRunner(), clock=SystemClock(), environ=environ)
        made = Environment(tmp_path, SystemRunner(), SystemClock(), Silent(), running.host)
        checks = docker.create(made).preflight(manifest, plan, host)
    (check,) = [check for check in checks if check.id == "docker.layers"]
    assert check.status == "fail"
    assert check.summary.startswith("podman takes only whole images, and i:1 came without the layers of demo v1")
    assert "--base-skip images" in check.remedy
