"""A lock, a manifest and an inventory with something of everything in them, for tests of what reviewers see."""

from __future__ import annotations

import dataclasses
from typing import Any

from airbundle.contract.lock import LOCK_VERSION, BundleLock, LockedFile, LockedImage, LockedModel, LockedWheel
from airbundle.contract.spec import (
    BundleSpec,
    BundleTable,
    EngineTable,
    ImageTable,
    ModelTable,
    RuntimeTable,
    TargetTable,
    WheelsTable,
)
from airbundle.sbom.inventory import ImageInventory, Inventory, Package
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.artifacts import ImageEntry, ModelEntry, WheelEntry
from airbundle_onsite.contract.launch import Flag, LaunchPlan, Mount, PlanNeeds, RuntimeKind, SmokeTest
from airbundle_onsite.contract.manifest import SCHEMA_VERSION, BundleManifest, HostNeeds, Serving
from airbundle_onsite.contract.payload import FileEntry, OuterFile, Part, Payload
from airbundle_onsite.contract.profile import GpuProfile, HardwareProfile

EPOCH = 1_700_000_000
ENGINE = "vllm/vllm-openai:v0.11"


def sha(digit: str) -> str:
    """A SHA-256 that can be told from others."""
    return digit * 64


def blob(digit: str, path: str = "blob", size: int = 7, **origin: str) -> LockedFile:
    """A file of a lock."""
    return LockedFile(path, sha(digit), size, origin)


PROFILE = HardwareProfile(
    id="h200-sxm",
    title="NVIDIA H200 SXM",
    gpu=GpuProfile(names=("H200",), capability="9.0", memory=141 * 10**9, count=2, min_driver="550.54.14"),
    min_memory=64 * 10**9,
    min_glibc="2.28",
)
MODEL = LockedModel(
    "qwen",
    "hf:Qwen/Qwen3-0.6B",
    "ABCDEF0123",
    "safetensors",
    (blob("a", "config.json", 700), blob("b", "model.safetensors", 1_234_567)),
    license="apache-2.0",
    skipped={"a second copy of the weights": 999},
    facts={"dtype": "bfloat16", "architectures": "Qwen3ForCausalLM"},
)
WHEELS = (
    LockedWheel(
        "app", "1.0", blob("1", "app-1.0-py3-none-any.whl", url="https://index.example/app.whl"), "pypi", ("spec",)
    ),
    LockedWheel(
        "lib", "2.0+cu130", blob("2", "lib-2.0-py3-none-any.whl"), "https://whl.example/cu130", ("app", "torch")
    ),
    LockedWheel(
        "made",
        "3.0",
        blob("3", "made-3.0-py3-none-any.whl"),
        requested_by=("lib",),
        built_from={"sdist": "made-3.0.tar.gz", "sha256": sha("9"), "url": "https://index.example/made-3.0.tar.gz"},
    ),
)
IMAGE = LockedImage(
    ENGINE,
    "registry:Registry.example:5000/vllm/vllm-openai:v0.11",
    f"sha256:{sha('c')}",
    blob("d", "manifest"),
    blob("e", "config"),
    (),
    (),
    "linux/amd64",
    user="2000",
)
INVENTORY = Inventory(
    licenses={WHEELS[0].file.path: ("MIT",), WHEELS[1].file.path: ("BSD License", "Apache-2.0")},
    images={
        ENGINE: ImageInventory(
            (
                Package("base-files", "12.4+deb12u5", "deb"),
                Package("libc6", "2.36-9", "deb"),
                Package("torch", "2.11.0+cu130", "python"),
            )
        )
    },
)


def lock(kind: RuntimeKind = "docker", **changes: Any) -> BundleLock:
    """A lock for this runtime; `changes` replace fields."""
    spec = BundleSpec(
        bundle=BundleTable("demo", "v1", "A demo"),
        target=TargetTable(profile=PROFILE.id),
        model=ModelTable(MODEL.source, MODEL.served_name),
        engine=EngineTable("vllm"),
        runtime=RuntimeTable(kind),
        image=ImageTable(IMAGE.source) if kind == "docker" else None,
        wheels=WheelsTable(("app",)),
    )
    images = (IMAGE,) if kind == "docker" else ()
    made = BundleLock(LOCK_VERSION, EPOCH, "airbundle 1.2", spec, sha("5"), PROFILE, (MODEL,), WHEELS, None, images)
    return dataclasses.replace(made, **changes)


def manifest(made: BundleLock, **changes: Any) -> BundleManifest:
    """The manifest that goes with a lock; `changes` replace fields."""
    kind = made.spec.runtime.kind
    models = tuple(
        ModelEntry(model.served_name, model.format, model.source, model.revision, (), 1, license=model.license)
        for model in made.models
    )
    found = BundleManifest(
        schema_version=SCHEMA_VERSION,
        name="demo",
        version="v1",
        sequence=EPOCH,
        created=EPOCH,
        tool="airbundle 1.2",
        payload=Payload(5, (Part(layout.part_name(0), 5, sha("6"), (sha("6"),)),)),
        outer=(OuterFile(layout.ONSITE, 4321, sha("7")), OuterFile(layout.README, 99, sha("8"))),
        files=(FileEntry("config/serve.py", "config", 0, sha("4")), FileEntry("licenses/x", "license", 0, sha("4"))),
        needs=HostNeeds(made.profile, kind, disk=10**9, image_disk=2 * 10**9 if kind == "docker" else 0),
        serving=Serving(),
        images=tuple(_image(image) for image in made.images),
        wheels=tuple(WheelEntry(wheel.name, wheel.version, "config/serve.py", sha("1")) for wheel in made.wheels),
        models=models,
        launch=(_plan(kind),),
        smoke=(SmokeTest("capital", "/v1/chat/completions", _body("What is the capital of France?"), ("Paris",)),),
        provenance={"locked_with": "airbundle 1.2"},
    )
    return dataclasses.replace(found, **changes)


def _image(image: LockedImage) -> ImageEntry:
    digests = f"sha256:{image.manifest.sha256}", image.source_digest, f"sha256:{image.config.sha256}"
    return ImageEntry(image.name, *digests, image.platform, (), 1)


def _plan(kind: RuntimeKind) -> LaunchPlan:
    return LaunchPlan(
        id="gpu",
        engine="vllm",
        engine_version="0.11",
        runtime=kind,
        argv=("{python}", "-m", "vllm", "--port", "{port}", "--hf-overrides", '{{"a": 1}}', "--quiet"),
        model=MODEL.served_name,
        image=ENGINE if kind == "docker" else None,
        wheels=True,
        env={"HF_HUB_OFFLINE": "1", "HOME": "{state}"},
        mounts=(Mount("cubins", "/cubins"), Mount("tmp", "/scratch", read_only=False)),
        gpus="2",
        shm_bytes=8 * 10**9,
        needs=PlanNeeds(gpus=2, gpu_memory=10**9, capability="9.0", python=">=3.10" if kind == "venv" else ""),
        flags=(Flag("--port", "{port}", "where the site wants it", "docs"), Flag("--quiet", "", "no chatter")),
    )


def _body(question: str) -> dict[str, Any]:
    return {"model": "{served_name}", "messages": [{"role": "user", "content": question}], "temperature": 0}
