"""The plan for a person: what is packed, and what is left out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from airbundle import profiles
from airbundle.cache import Cache
from airbundle.contract.lock import LOCK_VERSION, BundleLock, LockedFile, LockedModel, LockedWheel, WheelSettings
from airbundle.data import data_dir
from airbundle.planview import plan_build, plan_text
from airbundle.spec import load_spec


def lock(cache: Cache) -> BundleLock:
    spec = load_spec(data_dir("manifests") / "demo-smollm2.toml")
    here = cache.add_bytes(b"x" * 2000)
    model = LockedModel(
        "smollm2",
        "hf:org/model",
        "r",
        "gguf",
        (LockedFile("m.gguf", here, 2000),),
        entry="m.gguf",
        quantization="gguf Q4_K_M",
        skipped={"another copy of the weights": 41_000_000_000, "not part of the model": 7},
    )
    draft = LockedModel("small", "hf:org/small", "r", "gguf", (LockedFile("s.gguf", "1" * 64, 9000),), "s.gguf")
    wheel = LockedWheel("xllamacpp", "1", LockedFile("xllamacpp-1-py3-none-any.whl", "2" * 64, 5))
    models = (model, dataclasses.replace(draft, role="draft"))
    target = profiles.load(spec.target.profile)
    return BundleLock(
        LOCK_VERSION, 0, "t", spec, "0" * 64, target, models, (wheel,), WheelSettings("3.11", "linux_x86_64")
    )


def test_models_with_their_remarks(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    plan = plan_build(lock(cache), cache, 0)
    assert [(row.kind, row.name, row.cached) for row in plan.rows] == [
        ("model", "smollm2", 2000),
        ("draft", "small", 0),
        ("wheel", "xllamacpp 1", 0),
    ]
    text = plan_text(plan)
    assert "left out: 41.0 GB, another copy of the weights" in text
    assert "weights: gguf Q4_K_M" in text
    assert plan.fetch == 9005
