"""Rehearsals for real: the bundle's own installer in rooms without a way out, and in a real engine's sealed network."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import runtime_samples as samples
from airbundle.rehearse.report import RehearsalReport
from airbundle_onsite.contract.artifacts import ModelEntry
from airbundle_onsite.contract.launch import LaunchPlan, PlanNeeds, Readiness, SmokeTest
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import decode
from parts import docker, journeys, store
from parts.bundles import make_bundle
from parts.docker import DockerEngine
from parts.engine import SCRIPT
from parts.images import Config, ImageArchive, write_archive
from parts.process import free_port, wait_until
from parts.registry import Registry
from parts.sites import release_bundle

pytestmark = [pytest.mark.real("netns"), pytest.mark.timeout(900)]

HOST = "telemetry.example.com"
GPU = PlanNeeds(gpus=1, gpu_memory=40_000_000_000, capability="9.0")

PROBE = """
import http.client, runpy, socket, ssl, subprocess, sys

def attempt(action):
    try:
        action()
    except OSError as error:
        print("refused", error, file=sys.stderr)

def https():
    with socket.create_connection(("hub.example", 443), 5) as plain:
        ssl.create_default_context().wrap_socket(plain, server_hostname="hub.example")

def datagram(address, port, data):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(data, (address, port))

question = bytes.fromhex("123401000001000000000000") + b"\\x06hidden\\x07example\\x00" + bytes.fromhex("00010001")
attempt(https)
attempt(lambda: http.client.HTTPConnection("stats.example", 8080, timeout=5).request("POST", "/collect?key=1"))
attempt(lambda: socket.create_connection(("203.0.113.7", 8443), 5).recv(1))
attempt(lambda: socket.create_connection(("2001:db8:77::1", 443), 5).close())
attempt(lambda: datagram("203.0.113.8", 123, b"what time is it?"))
attempt(lambda: datagram("203.0.113.53", 53, question))
attempt(lambda: socket.getaddrinfo(socket.gethostname(), 80))
attempt(lambda: socket.create_connection(("127.0.0.1", 9), 5).close())
subprocess.run([sys.executable, "-c", "import socket; socket.getaddrinfo('child.example', 80)"])
runpy.run_path(__file__.replace("probe.py", "fake_engine.py"), run_name="__main__")
"""


def rehearse(bundle: Path, *words: str, env: dict[str, str] | None = None) -> tuple[journeys.Said, RehearsalReport]:
    """``airbundle rehearse --json``: what it said, and its report."""
    said = journeys.airbundle("rehearse", bundle, "--json", "--watch", "0.2", *words, env=env)
    assert '"report_version"' in said.out, said
    return said, decode(RehearsalReport, said.json, "the report")


def leftovers(place: Path) -> list[str]:
    """Directories and processes of rehearsals beside a bundle."""
    found = [path.name for path in place.glob("*rehearsal*")]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            except OSError:
                continue
            if f"{place}/airbundle-rehearsal" in words:
                found.append(words)
    return found


def fake_bundle(folder: Path, version: str, archive: ImageArchive, *words: str, needs: PlanNeeds | None = None) -> Path:
    """A bundle of the docker runtime, whose engine is the fake one in an image of the tests."""
    entry = samples.image_entry(archive)
    files = {blob.path: b"".join(blob.chunks) for blob in samples.image_blobs(archive)}
    with tarfile.open(archive.path) as tar:
        handle = tar.extractfile("manifest.json")
        assert handle is not None
        files["images/manifest.json"] = handle.read()
    weights = b"GGUF" + bytes(1000)
    files |= {"models/demo/model.gguf": weights, "config/fake_engine.py": SCRIPT.read_bytes()}
    plan = LaunchPlan(
        id="only",
        engine="fake",
        engine_version="1",
        runtime="docker",
        argv=("{python}", "{config}/fake_engine.py", "--host", "{host}", "--port", "{port}", *words),
        model="demo",
        image=entry.name,
        gpus="1" if needs else "none",
        needs=needs or PlanNeeds(),
        readiness=Readiness(load_seconds=60, request_seconds=20),
    )
    chat = {"model": "{served_name}", "messages": [{"role": "user", "content": "Capital of France?"}], "max_tokens": 9}
    test = SmokeTest(id="capital", path="/v1/chat/completions", body=chat, expect=("Paris",), seconds=20)
    model = ModelEntry("demo", "gguf", "test", "1", ("models/demo/model.gguf",), len(weights), "model.gguf")

    def edit(manifest: BundleManifest) -> BundleManifest:
        host = replace(manifest.needs, runtime="docker", disk=2000)
        return replace(manifest, launch=(plan,), smoke=(test,), models=(model,), images=(entry,), needs=host)

    return make_bundle(folder / f"demo-{version}", files, version=version, edit=edit)


# --- without containers -----------------------------------------------------------------------------------


def test_a_phone_home_is_caught_by_name_with_process_and_time(tmp_path: Path) -> None:
    bundle = release_bundle(tmp_path, "v1", fault="phone-home")
    before = sorted(path.name for path in tmp_path.iterdir())
    said, report = rehearse(bundle)
    said.check(10)
    (attempt,) = report.attempts
    assert (attempt.target, attempt.kind, attempt.ports, attempt.allowed) == (HOST, "name", ("443/tcp",), "")
    assert "root/releases/demo/v1/config/fake_engine.py" in attempt.argv
    assert attempt.step == "install" and attempt.pid > 0 and attempt.at.endswith("Z")
    assert not report.passed
    assert {step.id: step.status for step in report.steps}["generate"] == "pass", "it went on, to see everything"
    assert HOST in said.err and "fake_engine.py" in said.err and "[rehearsal] allow" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert leftovers(tmp_path) == []


def test_what_is_allowed_by_name_passes(tmp_path: Path) -> None:
    said, report = rehearse(release_bundle(tmp_path, "v1", fault="phone-home"), "--allow", "*.example.com")
    said.check()
    assert report.passed
    assert [attempt.allowed for attempt in report.attempts] == ["allowed by '*.example.com'"]


def test_every_way_out_is_seen(tmp_path: Path) -> None:
    weights = b"GGUF" + bytes(100)
    files = {
        "models/demo/model.gguf": weights,
        "config/fake_engine.py": SCRIPT.read_bytes(),
        "config/probe.py": PROBE.encode(),
    }
    sample = release_bundle(tmp_path / "sample", "v1")
    manifest = json.loads((sample / "bundle.json").read_text())
    plan = decode(LaunchPlan, manifest["launch"][0], "a plan")
    test = decode(SmokeTest, manifest["smoke"][0], "a test")
    argv = ("{python}", "{config}/probe.py", "--host", "{host}", "--port", "{port}")
    patient = replace(plan, argv=argv, readiness=Readiness(load_seconds=60, request_seconds=20))
    model = ModelEntry("demo", "gguf", "test", "1", ("models/demo/model.gguf",), len(weights), "model.gguf")
    bundle = make_bundle(
        tmp_path / "demo-1",
        files,
        edit=lambda made: replace(made, launch=(patient,), smoke=(test,), models=(model,)),
    )
    said, report = rehearse(bundle)
    said.check(10)
    found = {attempt.target: attempt for attempt in report.attempts}
    seen = {target: (attempt.ports, attempt.details) for target, attempt in found.items() if not attempt.allowed}
    assert seen == {
        "hub.example": (("443/tcp",), ("A", "AAAA", "TLS")),
        "stats.example": (("8080/tcp",), ("A", "AAAA", "POST /collect")),
        "203.0.113.7": (("8443/tcp",), ()),
        "2001:db8:77::1": (("443/tcp",), ()),
        "203.0.113.8": (("123/udp",), ()),
        "hidden.example": ((), ("A",)),
        "child.example": ((), ("A", "AAAA")),
    }
    assert "-c" in found["child.example"].argv
    assert all(
        any("probe.py" in word for word in attempt.argv)
        for target, attempt in found.items()
        if target != "child.example" and attempt.kind == "name" and not attempt.allowed and target != "hidden.example"
    )


def test_an_engine_that_dies_offline_fails_with_what_it_said(tmp_path: Path) -> None:
    said, report = rehearse(release_bundle(tmp_path, "v1", fault="exit-at-start"))
    said.check(8)
    assert [step.id for step in report.failed] == ["install"]
    assert "cannot load the model" in said.err
    assert report.attempts == ()


def test_a_damaged_bundle_is_not_started(tmp_path: Path) -> None:
    bundle = release_bundle(tmp_path, "v1")
    part = bundle / "payload.tar.000"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    said, report = rehearse(bundle)
    said.check(5)
    assert [step.id for step in report.steps] == ["verify"]
    assert "payload.tar.000" in said.err


def test_where_it_cannot_start_the_engine_is_tried_and_that_is_said(tmp_path: Path) -> None:
    def needs_a_gpu(manifest: BundleManifest) -> BundleManifest:
        return replace(manifest, launch=tuple(replace(plan, needs=GPU, gpus="1") for plan in manifest.launch))

    said, report = rehearse(release_bundle(tmp_path, "v1", edit=needs_a_gpu))
    said.check()
    assert [step.id for step in report.steps] == ["verify", "preflight", "wheels", "try.help"]
    assert "start and generation" in report.not_rehearsed[0] and "GPU" in report.not_rehearsed[0]
    assert report.steps[-1].status == "pass"


def test_a_build_carries_its_rehearsal(tmp_path: Path) -> None:
    words = ["build", journeys.MANIFESTS / "demo-smollm2.toml", "--output", tmp_path, "--rehearse", "--json"]
    words += ["--lock", tmp_path / "lock.json", "--cache", store.root() / "airbundle", "--set", "bundle.version=r1"]
    bundle = Path(journeys.airbundle(*words).check().json["bundle"])
    report = decode(RehearsalReport, json.loads((bundle / "rehearsal.json").read_bytes()), "rehearsal.json")
    assert report.passed and report.attempts == () and report.not_rehearsed == ()
    assert {"verify", "install", "generate", "status", "log", "uninstall"} <= {step.id for step in report.steps}
    journeys.airbundle("verify", bundle).check()
    manifest = json.loads((bundle / "bundle.json").read_bytes())
    assert report.parts == {part["name"]: part["sha256"] for part in manifest["payload"]["parts"]}
    sums = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=bundle, capture_output=True, text=True)
    assert sums.returncode == 0 and "rehearsal.json: OK" in sums.stdout
    assert leftovers(tmp_path) == []


def interrupted(bundle: Path, env: dict[str, str], *, when: str) -> tuple[int, str]:
    """Rehearse, send SIGINT once it says that; returns exit code and what it said."""
    log = bundle.parent / "said.txt"
    with log.open("wb") as handle:
        process = subprocess.Popen(
            [sys.executable, "-m", "airbundle", "rehearse", str(bundle), "--watch", "600"],
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            env={**os.environ, **env},
        )
    try:
        wait_until(lambda: when in log.read_text() or process.poll() is not None, 120, when)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        code = process.wait(120)
    finally:
        process.kill()
    said = log.read_text()
    log.unlink()
    return code, said


def test_an_interrupted_rehearsal_leaves_nothing(tmp_path: Path) -> None:
    bundle = release_bundle(tmp_path, "v1")
    for when in ("listen for", "install, start"):
        code, said = interrupted(bundle, {}, when=when)
        assert code == 1, said
        wait_until(lambda: leftovers(tmp_path) == [], 20, "the end of the room")
        assert [path.name for path in tmp_path.iterdir()] == [bundle.name]


def test_a_killed_rehearsal_takes_its_engine_along(tmp_path: Path) -> None:
    bundle = release_bundle(tmp_path, "v1")
    log = tmp_path / "said.txt"
    with log.open("wb") as handle:
        argv = [sys.executable, "-m", "airbundle", "rehearse", str(bundle), "--watch", "600"]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=handle, stderr=handle)
    wait_until(lambda: "listen for" in log.read_text(), 120, "listening")
    assert any("fake_engine" in words for words in leftovers(tmp_path))
    process.kill()
    process.wait()
    wait_until(lambda: not any("fake_engine" in words for words in leftovers(tmp_path)), 20, "the end of the engine")


# --- in a real engine -------------------------------------------------------------------------------------


@pytest.fixture
def engine() -> Iterator[DockerEngine]:
    """An engine of its own: what is in it is what these tests put there."""
    with docker.running() as running:
        yield running


def inventory(engine: DockerEngine) -> dict[str, list[str]]:
    """Everything that an engine has, and the interfaces of this machine that come and go with it."""
    listed = {
        "images": engine.run("images", "-a", "--no-trunc", "--format", "{{.ID}} {{.Repository}}:{{.Tag}}"),
        "containers": engine.run("ps", "-a", "--format", "{{.Names}} {{.State}}"),
        "networks": engine.run("network", "ls", "--format", "{{.ID}} {{.Name}}"),
        "volumes": engine.run("volume", "ls", "-q"),
    }
    made = {name: sorted(done.stdout.splitlines()) for name, done in listed.items()}
    made["interfaces"] = [name for _, name in socket.if_nameindex() if name.startswith("abr")]
    return made


@pytest.mark.real("docker", "images")
def test_a_container_that_phones_home_is_caught_and_the_engine_is_as_before(
    engine: DockerEngine, base_archive: ImageArchive, tmp_path: Path
) -> None:
    bundle = fake_bundle(tmp_path, "v1", base_archive, "--fault", "phone-home", "--api-key", "secret")
    before, environment = inventory(engine), {"DOCKER_HOST": engine.host}
    said, report = rehearse(bundle, env=environment)
    said.check(10)
    (attempt,) = report.attempts
    assert (attempt.target, attempt.ports) == (HOST, ("443/tcp",))
    assert attempt.argv[1] == "/airbundle/config/fake_engine.py"
    assert "secret" not in said.out + said.err
    assert {step.id: step.status for step in report.steps}["tidy"] == "pass"
    assert inventory(engine) == before
    said, report = rehearse(bundle, "--allow", HOST, env=environment)
    said.check()
    assert leftovers(tmp_path) == []


@pytest.mark.real("docker", "images")
def test_what_an_engine_had_before_stays_and_is_none_of_the_rehearsal_s_business(
    engine: DockerEngine, base_archive: ImageArchive, tmp_path: Path
) -> None:
    environment = {"DOCKER_HOST": engine.host}
    site = journeys.Site(tmp_path / "site", free_port(), environment)
    older = fake_bundle(tmp_path / "older", "v0", base_archive)
    site.install(older, "--yes").check()
    name = engine.run("ps", "--format", "{{.Names}}").stdout.strip()
    asking = "while true; do python3 -c \"import socket; socket.getaddrinfo('neighbour.example', 1)\"; sleep 0.1; done"
    engine.run("exec", "-d", name, "sh", "-c", asking)
    before = inventory(engine)
    bundle = fake_bundle(tmp_path / "new", "v1", base_archive)
    said, report = rehearse(bundle, env=environment)
    said.check()
    assert report.attempts == ()
    assert inventory(engine) == before
    assert site.control("--status", "--json").check().json[0]["answers"]
    site.control("--uninstall", "--yes").check()


@pytest.mark.real("docker", "images")
def test_in_an_engine_without_gpus_the_images_are_loaded_and_tried(
    engine: DockerEngine, base_archive: ImageArchive, tmp_path: Path
) -> None:
    bundle = fake_bundle(tmp_path, "v1", base_archive, needs=GPU)
    before = inventory(engine)
    said, report = rehearse(bundle, env={"DOCKER_HOST": engine.host})
    said.check()
    assert [step.id for step in report.steps] == ["verify", "preflight", "images", "try.help", "tidy"]
    assert [step.status for step in report.steps[2:]] == ["pass", "pass", "pass"]
    assert any("start and generation" in sentence for sentence in report.not_rehearsed)
    assert report.attempts == ()
    assert inventory(engine) == before


@pytest.mark.real("docker", "images")
def test_an_interrupted_rehearsal_leaves_the_engine_as_it_was(
    engine: DockerEngine, base_archive: ImageArchive, tmp_path: Path
) -> None:
    bundle = fake_bundle(tmp_path, "v1", base_archive)
    before = inventory(engine)
    for when in ("install, start", "listen for"):
        code, said = interrupted(bundle, {"DOCKER_HOST": engine.host}, when=when)
        assert code == 1, said
        assert inventory(engine) == before
        assert [path.name for path in tmp_path.iterdir()] == [bundle.name]


def hub_image(directory: Path, base: ImageArchive) -> ImageArchive:
    """An engine image whose ``llama-server`` asks for the model hub when it starts, although the weights are there."""
    with tarfile.open(base.path) as tar:
        names = [name for name in tar.getnames() if name.startswith("blobs/")]
        largest = max(names, key=lambda name: tar.getmember(name).size)
        packed = tar.extractfile(largest)
        assert packed is not None
        plain = directory / "base-layer.tar"
        plain.write_bytes(gzip.decompress(packed.read()))
    code = SCRIPT.read_bytes().replace(b"telemetry.example.com", b"huggingface.co")
    extra = io.BytesIO()
    with tarfile.open(fileobj=extra, mode="w", format=tarfile.GNU_FORMAT) as tar:
        entry = tarfile.TarInfo("usr/bin/llama-server")
        entry.size, entry.mode = len(code) + 19, 0o755
        tar.addfile(entry, io.BytesIO(b"#!/usr/bin/python3\n" + code))
    extra.seek(0)
    env = (*Config().env, "FAKE_ENGINE_FAULT=phone-home")
    reference, path = "airbundle-test/asks-hub:1", directory / "asks-hub.tar"
    with plain.open("rb") as layer:
        facts = write_archive(path, reference, [layer, extra], Config(("/usr/bin/llama-server",), env=env))
    plain.unlink()
    return ImageArchive(path, reference, facts["manifest"], facts["config"])


def build_rehearsed(
    output: Path, engine: DockerEngine, image: str, version: str, *overrides: str
) -> tuple[journeys.Said, Path]:
    words = ["build", journeys.MANIFESTS / "smollm2-docker.toml", "--output", output, "--rehearse", "--json"]
    words += ["--lock", output / f"{version}.lock.json", "--cache", store.root() / "airbundle"]
    settings = (f"bundle.version={version}", f"image.source=registry:{image}", *overrides)
    for setting in settings:
        words += ["--set", setting]
    said = journeys.airbundle(*words, env={"DOCKER_HOST": engine.host})
    return said, output / f"smollm2-docker-{version}"


@pytest.mark.real("docker", "registry", "images")
def test_an_image_that_asks_for_the_hub_is_no_bundle_until_it_is_allowed(
    engine: DockerEngine, registry: Registry, base_archive: ImageArchive, tmp_path: Path
) -> None:
    archive = hub_image(tmp_path, base_archive)
    image = registry.push(archive, archive.reference)
    before = inventory(engine)
    said, bundle = build_rehearsed(tmp_path, engine, image, "h1", "image.name=airbundle/asks-hub:1")
    said.check(10)
    assert "huggingface.co" in said.err and "/usr/bin/llama-server" in said.err and "HF_HUB_OFFLINE=1" in said.err
    assert not bundle.exists()
    assert not list(tmp_path.glob(".*partial"))
    assert inventory(engine) == before
    allowed = 'rehearsal.allow=["huggingface.co"]'
    said, bundle = build_rehearsed(tmp_path, engine, image, "h2", "image.name=airbundle/asks-hub:1", allowed)
    said.check()
    report = decode(RehearsalReport, json.loads((bundle / "rehearsal.json").read_bytes()), "rehearsal.json")
    assert [attempt.allowed for attempt in report.attempts] == ["allowed by 'huggingface.co'"]


@pytest.mark.real("docker", "registry", "images")
def test_the_llama_cpp_image_rehearses_clean(engine: DockerEngine, llama_image: str, tmp_path: Path) -> None:
    before = inventory(engine)
    said, bundle = build_rehearsed(tmp_path, engine, llama_image, "l1", "image.name=airbundle/llama.cpp:test")
    said.check()
    report = decode(RehearsalReport, json.loads((bundle / "rehearsal.json").read_bytes()), "rehearsal.json")
    assert report.passed and report.attempts == () and report.not_rehearsed == ()
    assert report.machine["docker"]
    assert inventory(engine) == before
    journeys.airbundle("verify", bundle).check()
