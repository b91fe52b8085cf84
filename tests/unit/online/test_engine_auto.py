"""The engine `auto`: what the bundle holds, or what suits the workload."""

from __future__ import annotations

import pytest

from airbundle import engines
from airbundle.engines.auto import choose, held
from airbundle.engines.base import Chooses
from airbundle_onsite.errors import UsageError
from parts.plans import lock, wheel


def test_auto_is_what_the_bundle_holds() -> None:
    made = lock("auto", version="")
    assert (held(made), choose(made)) == (("vllm",), "vllm")
    found = engines.create("auto").plans(made)
    assert {plan.engine for plan in found} == {"vllm"}
    engine = engines.create("auto")
    assert isinstance(engine, Chooses)
    plan = engine.choice(made)
    assert plan is not None
    assert "in the bundle: vllm" in plan.path


def test_auto_chooses_by_workload_when_the_bundle_holds_several() -> None:
    several = (wheel("vllm", "0.24.0"), wheel("sglang", "0.5.23"))
    assert choose(lock("auto", runtime="venv", wheels=several, workload="agents")) == "sglang"
    assert choose(lock("auto", runtime="venv", wheels=several, workload="batch")) == "vllm"


def test_auto_needs_an_engine_it_recognises() -> None:
    with pytest.raises(UsageError, match="neither the image nor the wheels are recognised"):
        choose(lock("auto", image="company/inference:1"))
    assert held(lock("auto", image="ghcr.io/ggml-org/llama.cpp:server-cuda")) == ("llama.cpp",)
    assert held(lock("auto", image="nvcr.io/nvidia/tensorrt-llm/release:1.2.1")) == ("tensorrt-llm",)
