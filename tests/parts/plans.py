"""Locks of bundles whose engines plan ahead: a Qwen2.5 7B of no bytes, on a profile's hardware."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airbundle import engines, profiles
from airbundle.contract.lock import (
    LOCK_VERSION,
    BundleLock,
    LockedFile,
    LockedImage,
    LockedModel,
    LockedWheel,
    WheelSettings,
)
from airbundle.contract.spec import (
    BundleSpec,
    BundleTable,
    EngineTable,
    ImageTable,
    ModelTable,
    RuntimeTable,
    ServingTable,
    TargetTable,
    WheelsTable,
)
from airbundle_onsite.contract.launch import LaunchPlan

GOLDEN = Path(__file__).parents[1] / "golden"
CONFIG = (GOLDEN / "configs" / "qwen2.5-7b.json").read_text()
BLOB = LockedFile("x", "0" * 64, 1)
WEIGHTS = 15_231_233_024
IMAGES = {
    "vllm": "vllm/vllm-openai:v0.24.0",
    "sglang": "lmsysorg/sglang:v0.5.23",
    "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
    "ollama": "ollama/ollama:0.33.0",
    "auto": "vllm/vllm-openai:v0.24.0",
}


def wheel(name: str, version: str) -> LockedWheel:
    """A wheel of one byte."""
    return LockedWheel(name, version, LockedFile(f"{name}-{version}-py3-none-any.whl", "0" * 64, 1))


def lock(
    engine: str = "vllm",
    *,
    profile: str = "h200-sxm",
    gpus: int = 0,
    runtime: str = "docker",
    image: str = "",
    facts: Mapping[str, str] | None = None,
    form: str = "safetensors",
    files: tuple[LockedFile, ...] = (LockedFile("model.safetensors", "1" * 64, WEIGHTS),),
    wheels: tuple[LockedWheel, ...] = (),
    extra: tuple[LockedModel, ...] = (),
    flags: Mapping[str, str] | None = None,
    version: str = "",
    **serving: Any,
) -> BundleLock:
    """A lock; `facts` and `files` are the model's, `extra` models stand beside it, `serving` is the spec's table."""
    docker = runtime == "docker"
    spec = BundleSpec(
        bundle=BundleTable("b", "1"),
        target=TargetTable(profile=profile, gpus=gpus),
        model=ModelTable("local:x", "m"),
        engine=EngineTable(engine, version, flags or {}),
        runtime=RuntimeTable(runtime),  # type: ignore[arg-type]
        image=ImageTable("daemon:x:1") if docker else None,
        wheels=WheelsTable(("x",)) if wheels or not docker else None,
        serving=ServingTable(**{"context": 8192, "concurrency": 16, **serving}),
    )
    model = LockedModel(
        "m", "local:x", "r", form, files, files[0].path, facts={"config": CONFIG} if facts is None else facts
    )  # type: ignore[call-arg]
    made = LockedImage(image or IMAGES[engine], "s", "d", BLOB, BLOB, (), (), "linux/amd64")
    settings = WheelSettings("3.12", "linux_x86_64") if wheels else None
    return BundleLock(
        LOCK_VERSION,
        0,
        "t",
        spec,
        "0" * 64,
        profiles.load(profile),
        (model, *extra),
        wheels,
        settings,
        (made,) if docker else (),
    )


def plans(engine: str = "vllm", **wishes: Any) -> tuple[LaunchPlan, ...]:
    """The launch plans of such a lock."""
    return engines.create(engine).plans(lock(engine, **wishes))


def value(made: LaunchPlan, flag: str) -> str:
    """The word after `flag` in the command."""
    return made.argv[made.argv.index(flag) + 1]
