"""The memory plan against real architectures and against what engines themselves reported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airbundle.estimate import Model, from_config
from airbundle.memory.budget import GIB, Device, Load, MemoryPlan, plan_memory
from airbundle.memory.kv import KvLayout, growing_bytes, state_bytes
from airbundle.memory.paging import pool_of, requests_held, sequence_bytes
from airbundle.memory.parallel import Parallel
from airbundle.memory.shape import read_shape

CHECKOUT = Path(__file__).resolve().parents[3]
GOLDEN = CHECKOUT / "tests" / "golden"
PUBLISHED = json.loads((GOLDEN / "configs.published.json").read_text())["models"]
ALLOCATED = json.loads((GOLDEN / "torch-h200.json").read_text())["runs"]
LOGGED = json.loads((GOLDEN / "vllm-h200.json").read_text())
NAMES = sorted(path.stem for path in (GOLDEN / "configs").glob("*.json"))


def model(name: str) -> Model:
    return from_config(name, json.loads((GOLDEN / "configs" / f"{name}.json").read_text()))


def test_every_configuration_has_its_provenance() -> None:
    assert set(NAMES) == set(PUBLISHED)
    assert len(NAMES) >= 15
    assert all(PUBLISHED[name]["config"] for name in NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if "parameters" in PUBLISHED[name]])
def test_weights_agree_with_the_published_parameter_count(name: str) -> None:
    share = 0.01 if "note" in PUBLISHED[name] else 0.001  # a note says that a vision tower is in the count
    assert model(name).weights.total / 2 == pytest.approx(PUBLISHED[name]["parameters"], rel=share)


@pytest.mark.parametrize("name", [name for name in NAMES if "bytes" in PUBLISHED[name]])
def test_weights_agree_with_the_published_size(name: str) -> None:
    assert model(name).weights.total == pytest.approx(PUBLISHED[name]["bytes"], rel=0.0005)


def test_table_and_page_are_as_computed_now() -> None:
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "scripts" / "memory-table"), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"run scripts/memory-table: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("run", ALLOCATED, ids=lambda run: run["config"])
def test_planned_weights_take_what_was_measured_when_allocated(run: dict[str, Any]) -> None:
    planned = model(run["config"]).weights.per_rank(Parallel(run["tensor"]), allocated=True)
    assert planned / GIB == pytest.approx(run["used"], rel=0.0015)


def run_plan(run: dict[str, Any]) -> MemoryPlan:
    found = model(run["config"])
    load = Load(
        context=run["context"],
        concurrency=4,
        parallel=Parallel(run["tensor"]),
        kv_dtype=run["kv_dtype"],
        sequences=run.get("sequences", LOGGED["sequences"]),
        batched_tokens=run.get("batched_tokens", LOGGED["batched_tokens"]),
        utilization=LOGGED["utilization"],
    )
    device = Device(LOGGED["memory_mib"] * 2**20, LOGGED["capability"])
    return plan_memory(LOGGED["engine"], LOGGED["version"], found.shape, found.weights, device, load)


@pytest.mark.parametrize("run", LOGGED["runs"], ids=lambda run: f"{run['config']}-{run['kv_dtype']}")
def test_plan_agrees_with_what_vllm_logged(run: dict[str, Any]) -> None:
    plan = run_plan(run)
    assert plan.weights / GIB == pytest.approx(run["weights"], rel=0.005, abs=0.01)  # logged with two decimals
    assert plan.kv.middle / GIB == pytest.approx(run["kv"], rel=0.01)
    assert plan.tokens.middle == pytest.approx(run["kv_tokens"], rel=0.01)
    assert plan.requests.middle == pytest.approx(run["concurrency"], rel=0.01)


@pytest.mark.parametrize("run", LOGGED["runs"], ids=lambda run: f"{run['config']}-{run['kv_dtype']}")
def test_interval_holds_what_vllm_logged(run: dict[str, Any]) -> None:
    plan = run_plan(run)
    assert plan.kv.low <= run["kv"] * GIB <= plan.kv.high
    assert plan.tokens.low <= run["kv_tokens"] <= plan.tokens.high
    assert plan.verdict == "runnable"


@pytest.mark.parametrize("run", LOGGED["runs"], ids=lambda run: f"{run['config']}-{run['kv_dtype']}")
def test_logged_cache_is_tokens_times_bytes_of_a_token(run: dict[str, Any]) -> None:
    layout = KvLayout(run["kv_dtype"], Parallel(run["tensor"]))
    token = growing_bytes(model(run["config"]).shape, layout)
    assert run["kv_tokens"] * token / GIB == pytest.approx(run["kv"], abs=0.01)


@pytest.mark.parametrize("case", LOGGED["pages"], ids=lambda case: case["what"])
def test_attention_pages_grow_to_the_size_of_a_state_as_vllm_reported(case: dict[str, Any]) -> None:
    shape = read_shape(case["config"])
    pool = pool_of(shape, KvLayout(parallel=Parallel(case["tensor"]), state_bytes=case["state_bytes"]))
    assert {group.block for group in pool.groups} - {0} == {case["tokens"]}


@pytest.mark.parametrize("case", LOGGED["requests"], ids=lambda case: case["config"])
def test_pages_of_a_hybrid_agree_with_what_vllm_logged(case: dict[str, Any]) -> None:
    shape, layout = model(case["config"]).shape, KvLayout(batched_tokens=16384)
    pool = pool_of(shape, layout)
    (block,) = {group.block for group in pool.groups} - {0}
    tables = sum(group.tables for group in pool.groups)
    pages = round(case["logged_requests"] * pool.pages(case["context"], layout))
    assert pages // tables * block == case["logged_tokens"]
    held = requests_held(shape, pages * pool.page, case["context"], layout)
    assert held == pytest.approx(case["logged_requests"], abs=0.01)


def test_state_of_a_hybrid_agrees_with_what_llama_cpp_reported() -> None:
    """16,384 MiB of cache at 262,144 tokens, and 598.5 MiB of state for four slots."""
    layout = KvLayout(paging="slots", conv_bytes=4, state_bytes=4)
    shape = model("qwen3.5-27b").shape
    assert growing_bytes(shape, layout) * 262144 / 2**20 == 16384
    assert state_bytes(shape, layout) * 4 / 2**20 == pytest.approx(598.5, abs=0.01)


def test_llama_3_70b_takes_1_25_gib_for_4096_tokens() -> None:
    """Not the 10 GiB of the rule that multiplies by hidden size."""
    shape = model("llama-3-70b").shape
    assert sequence_bytes(shape, 4096, KvLayout()) == 1.25 * GIB
    assert shape.layers * 2 * shape.hidden * 2 * 4096 == 10 * GIB
    page = (CHECKOUT / "docs" / "memory.md").read_text()
    assert "**1.25 GiB**" in page and "key-value head" in page


def test_deepseek_v3_caches_one_latent_whatever_the_ranks() -> None:
    shape = model("deepseek-v3").shape
    assert {growing_bytes(shape, KvLayout(parallel=Parallel(ranks))) for ranks in (1, 2, 8, 16)} == {70272}
