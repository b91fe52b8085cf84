"""Bundles for GPUs, rehearsed where there is none: wheels installed, the engine asked, its network a sinkhole."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

import runtime_samples as samples
from airbundle.rehearse.report import RehearsalReport, Step
from airbundle_onsite.contract.artifacts import ModelEntry, WheelEntry
from airbundle_onsite.contract.launch import LaunchPlan, PlanNeeds, Readiness
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import decode
from parts import docker, journeys, standin_vllm
from parts.bundles import make_bundle
from parts.docker import DockerEngine
from parts.engine import SCRIPT
from parts.images import ImageArchive
from parts.models import write_tiny_model
from parts.wheels import make_wheel

pytestmark = [pytest.mark.real("netns"), pytest.mark.timeout(600)]

GPU = PlanNeeds(gpus=1, gpu_memory=40_000_000_000, capability="9.0")
SERVER = "vllm/entrypoints/openai/api_server.py"
PHONES_HOME = (
    "import socket\ntry:\n    socket.create_connection(('stats.example', 443), 5)\nexcept OSError:\n    pass\n"
)


def image_files(archive: ImageArchive) -> dict[str, bytes]:
    files = {blob.path: b"".join(blob.chunks) for blob in samples.image_blobs(archive)}
    with tarfile.open(archive.path) as tar:
        handle = tar.extractfile("manifest.json")
        assert handle is not None
        files["images/manifest.json"] = handle.read()
    return files


def vllm_bundle(
    folder: Path, *flags: str, archive: ImageArchive | None = None, changes: Mapping[str, str] | None = None
) -> Path:
    """A bundle whose engine is the stand-in for vLLM, installed from its wheel.

    Args:
        flags: of its second launch plan; the first is sound.
        archive: the image for docker; without one the runtime is venv.
        changes: other content of the stand-in's modules.
    """
    runtime: Literal["docker", "venv"] = "docker" if archive else "venv"
    wheel = make_wheel(folder / "made", "vllm", "0.24.0", files=standin_vllm.sources(changes))
    samples.add_pip(folder / "made")
    wheels = {path.name: path.read_bytes() for path in sorted((folder / "made").glob("*.whl"))}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in wheels.items()}
    files = image_files(archive) if archive else {}
    files |= {f"wheels/{name}": data for name, data in wheels.items()}
    files["wheels/requirements.txt"] = f"vllm==0.24.0 --hash=sha256:{digests[wheel.name]}\n".encode()
    model = write_tiny_model(folder / "model", hidden=16)
    held = {path.name: path.read_bytes() for path in sorted(model.iterdir()) if "safetensors" not in path.name}
    files |= {f"models/demo/{name}": data for name, data in held.items()}
    words = ("{python}", "-m", "vllm.entrypoints.cli.main", "serve", "{model}", "--host", "{host}", "--port", "{port}")
    first = LaunchPlan(
        id="gpu1",
        engine="vllm",
        engine_version="0.24.0",
        runtime=runtime,
        argv=words,
        model="demo",
        image=samples.image_entry(archive).name if archive else None,
        wheels=True,
        env={"HOME": "{state}"},
        gpus="1",
        needs=replace(GPU, python="" if archive else ">=3.9"),
    )
    entry = ModelEntry("demo", "safetensors", "test", "1", tuple(f"models/demo/{name}" for name in held), 1)

    def edit(manifest: BundleManifest) -> BundleManifest:
        listed = tuple(
            WheelEntry(name.partition("-")[0], name.split("-")[1], f"wheels/{name}", digest)
            for name, digest in digests.items()
        )
        needs = replace(manifest.needs, runtime=runtime, disk=2000)
        images = (samples.image_entry(archive),) if archive else ()
        plans = (first, replace(first, id="other", argv=(*words, *flags)))
        return replace(manifest, needs=needs, launch=plans, models=(entry,), wheels=listed, images=images)

    return make_bundle(folder / "demo-1", files, edit=edit)


def rehearse(bundle: Path, env: dict[str, str] | None = None) -> tuple[journeys.Said, RehearsalReport, dict[str, Step]]:
    said = journeys.airbundle("rehearse", bundle, "--json", "--watch", "0.2", env=env)
    assert '"report_version"' in said.out, said
    report = decode(RehearsalReport, said.json, "the report")
    return said, report, {step.id: step for step in report.steps}


@pytest.fixture
def engine() -> Iterator[DockerEngine]:
    with docker.running() as running:
        yield running


def check_shown(report: RehearsalReport, steps: dict[str, Step]) -> None:
    assert [name for name in steps if name.startswith("try.")] == [
        "try.imports",
        "try.flags.gpu1",
        "try.model.demo",
        "try.flags.other",
    ]
    shown = {
        check.id.removeprefix("rehearsal.")
        for step in steps.values()
        for check in step.checks
        if check.status == "pass"
    }
    assert shown >= {"import.vllm", f"import.{SERVER[:-3].replace('/', '.')}", "flags", "model-config", "architecture"}
    assert any("engine-config" in line and "Found no NVIDIA driver" in line for line in report.not_rehearsed)
    assert report.not_rehearsed[-1].startswith("kernels, loading into GPU memory and generation")


# --- wheels without containers -----------------------------------------------------------------------------


def test_the_engine_in_the_bundle_reads_every_plan_s_flags(tmp_path: Path) -> None:
    said, report, steps = rehearse(vllm_bundle(tmp_path, "--max-model-len", "64"))
    said.check()
    check_shown(report, steps)
    assert report.attempts == ()
    assert "not rehearsed: kernels" in said.err


def test_a_flag_that_it_does_not_know_keeps_the_bundle_from_leaving(tmp_path: Path) -> None:
    said, report, steps = rehearse(vllm_bundle(tmp_path, "--max-modl-len", "64"))
    said.check(10)
    assert steps["try.flags.gpu1"].status == "pass"
    assert [step.id for step in report.failed] == ["try.flags.other"]
    assert "unrecognized arguments: --max-modl-len 64" in said.err


def test_what_its_import_asks_of_the_network_is_caught(tmp_path: Path) -> None:
    said, report, _ = rehearse(vllm_bundle(tmp_path, changes={SERVER: PHONES_HOME}))
    said.check(10)
    (attempt,) = report.attempts
    assert (attempt.target, attempt.ports, attempt.step) == ("stats.example", ("443/tcp",), "try.imports")


# --- in containers -----------------------------------------------------------------------------------------


@pytest.mark.real("docker", "images")
def test_in_a_container_the_same_is_asked_and_heard(
    engine: DockerEngine, base_archive: ImageArchive, tmp_path: Path
) -> None:
    env = {"DOCKER_HOST": engine.host}
    before = engine.run("network", "ls", "-q").stdout
    bundle = vllm_bundle(tmp_path / "good", "--max-model-len", "64", archive=base_archive)
    said, report, steps = rehearse(bundle, env)
    said.check()
    check_shown(report, steps)
    assert report.attempts == ()
    bundle = vllm_bundle(tmp_path / "bad", "--max-modl-len", "64", archive=base_archive, changes={SERVER: PHONES_HOME})
    said, report, steps = rehearse(bundle, env)
    said.check(10)
    assert [(attempt.target, attempt.step) for attempt in report.attempts] == [("stats.example", "try.imports")]
    assert "airbundle_probe.py" in " ".join(report.attempts[0].argv)
    assert [step.id for step in report.failed] == ["try.flags.other"]
    assert engine.run("network", "ls", "-q").stdout == before
    assert engine.run("ps", "-aq").stdout == ""


@pytest.mark.real("docker", "images")
def test_llama_cpp_s_plan_for_a_gpu_is_really_started_on_the_cpu(
    engine: DockerEngine, base_archive: ImageArchive, tmp_path: Path
) -> None:
    weights = b"GGUF" + bytes(1000)
    files = {**image_files(base_archive), "models/demo/model.gguf": weights}
    files["config/fake_engine.py"] = SCRIPT.read_bytes()
    image = samples.image_entry(base_archive)
    plan = LaunchPlan(
        id="gpu1",
        engine="llama.cpp",
        engine_version="b1",
        runtime="docker",
        argv=("{python}", "{config}/fake_engine.py", "--host", "{host}", "--port", "{port}", "--answer", "Paris."),
        model="demo",
        image=image.name,
        gpus="1",
        needs=GPU,
        readiness=Readiness(request_seconds=20),
    )
    model = ModelEntry("demo", "gguf", "test", "1", ("models/demo/model.gguf",), len(weights), "model.gguf")

    def edit(manifest: BundleManifest) -> BundleManifest:
        needs = replace(manifest.needs, runtime="docker", disk=2000)
        return replace(manifest, launch=(plan,), models=(model,), images=(image,), needs=needs)

    said, report, steps = rehearse(make_bundle(tmp_path / "demo-1", files, edit=edit), {"DOCKER_HOST": engine.host})
    said.check()
    assert steps["try.start.gpu1"].status == "pass"
    assert "Paris" in steps["try.start.gpu1"].summary
    assert [line.partition(",")[0] for line in report.not_rehearsed] == ["start and generation"]
