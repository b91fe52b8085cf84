"""Budgets of the engines, verdicts, and changes that make a load fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airbundle.estimate import Model, from_config
from airbundle.memory.budget import GIB, Device, Load, MemoryPlan, overheads, plan_memory
from airbundle.memory.cure import Means, find_cures, scaled
from airbundle.memory.kv import KvLayout
from airbundle.memory.paging import pool_of, requests_held
from airbundle.memory.parallel import Parallel
from airbundle_onsite.errors import UsageError

CONFIGS = Path(__file__).resolve().parents[2] / "golden" / "configs"
H100 = Device(int(79.1 * GIB), "9.0")
A100 = Device(int(79.1 * GIB), "8.0")
SMALL = Device(24 * GIB, "8.9")


def model(name: str) -> Model:
    return from_config(name, json.loads((CONFIGS / f"{name}.json").read_text()))


def plan(name: str, load: Load, device: Device = H100, engine: str = "vllm", version: str = "0.24.0") -> MemoryPlan:
    found = model(name)
    return plan_memory(engine, version, found.shape, found.weights, device, load)


@pytest.mark.parametrize(
    ("version", "share", "counted"),
    [("0.20.1", 0.90, False), ("0.21.0", 0.90, True), ("0.22.0", 0.92, True), ("0.24.0", 0.92, True), ("", 0.92, True)],
)
def test_vllm_by_version(version: str, share: float, counted: bool) -> None:
    facts = overheads("vllm", version)
    assert (facts["utilization"], facts["graphs_counted"]) == (share, counted)
    given = plan("qwen2.5-7b", Load(4096, 8), version=version)
    assert given.budget.low == pytest.approx(share * H100.memory)
    without = plan("qwen2.5-7b", Load(4096, 8, graphs=False), version=version)
    assert (without.kv.low > given.kv.low) == counted


def test_graphs_of_the_second_model_runner_are_not_counted() -> None:
    load, bare = Load(4096, 8), Load(4096, 8, graphs=False)
    assert plan("llama-3-8b", load).kv == plan("llama-3-8b", bare).kv
    assert plan("qwen2.5-7b", load).kv.low < plan("qwen2.5-7b", bare).kv.low


def test_server_defaults_by_gpu() -> None:
    load = Load(4096, 8)
    sizes = [
        (found.batched_tokens, found.sequences)
        for found in (plan("llama-3-8b", load, device) for device in (H100, A100, SMALL))
    ]
    assert sizes == [(8192, 1024), (2048, 256), (2048, 256)]
    newer = plan("llama-3-8b", load, Device(180 * GIB, "10.0"), version="0.33.0")
    assert newer.batched_tokens == 16384


def test_sglang_reserves_by_class() -> None:
    big = plan("llama-3-8b", Load(4096, 8), H100, "sglang", "0.5.23")
    # 512 + 1.5 · 8192 + 2 · 256 + 128 MiB is more than the floor of 10 GiB.
    reserved = (512 + 1.5 * 8192 + 512 + 128) * 2**20
    assert big.utilization == pytest.approx(1 - reserved / H100.memory, abs=0.001)
    assert (big.batched_tokens, big.sequences) == (8192, 256)
    small = plan("llama-3-8b", Load(4096, 8), SMALL, "sglang", "0.5.23")
    assert (small.batched_tokens, small.sequences) == (4096, 48)
    older = plan("llama-3-8b", Load(4096, 8), SMALL, "sglang", "0.4.6")
    assert (older.batched_tokens, older.sequences) == (2048, 24)
    pinned = plan("llama-3-8b", Load(4096, 8, utilization=0.8), H100, "sglang", "0.5.23")
    assert pinned.kv.high == pytest.approx(0.8 * H100.memory - pinned.weights - 0.3 * GIB)


def test_sglang_floor_on_large_gpus() -> None:
    given = plan("llama-3-8b", Load(4096, 8, batched_tokens=2048, sequences=8), H100, "sglang", "0.5.23")
    assert given.utilization == pytest.approx(1 - 10 * GIB / H100.memory, abs=0.001)


def test_tensorrt_llm_takes_a_share_of_what_is_free() -> None:
    given = plan("llama-3-8b", Load(4096, 8), H100, "tensorrt-llm", "1.2.0")
    spent = given.weights + given.activation.low + given.runtime.low
    assert given.kv.high == pytest.approx(0.9 * (H100.memory - spent))


def test_llama_cpp_sets_the_whole_length_aside() -> None:
    found = model("llama-3-8b")
    load = Load(8192, 8)
    short = plan_memory("llama.cpp", "", found.shape, found.weights, Device(23 * GIB), load)
    assert short.verdict == "impossible"  # 15 GiB of weights and 8 GiB of cache
    gpu = plan_memory("llama.cpp", "", found.shape, found.weights, Device(23 * GIB, "8.9"), load)
    assert short.weights - gpu.weights == 128256 * 4096 * 2  # the embedding stays on the host
    assert plan_memory("llama.cpp", "", found.shape, found.weights, Device(26 * GIB), load).verdict == "runnable"
    spread = replace(load, parallel=Parallel(3))  # whole layers: heads need not divide
    assert plan_memory("llama.cpp", "", found.shape, found.weights, Device(10 * GIB), spread).verdict == "runnable"


def test_unknown_engine_is_named() -> None:
    with pytest.raises(UsageError, match="no memory figures for triton"):
        overheads("triton", "1")


def test_cannot_be_spread() -> None:
    with pytest.raises(UsageError, match="cannot be spread over 3"):
        plan("llama-3-8b", Load(4096, 8, Parallel(3)))


def test_verdicts() -> None:
    assert plan("llama-3-70b", Load(4096, 8)).verdict == "impossible"
    assert plan("llama-3-70b", Load(4096, 8, Parallel(4))).verdict == "runnable"
    waiting = plan("llama-3-70b", Load(8192, 1000, Parallel(4)))
    assert waiting.verdict == "tight"
    assert "the others wait" in waiting.reason
    assert waiting.requests.low < 1000


def test_never_runnable_by_the_optimistic_bound_alone() -> None:
    """Just enough memory at the lower bounds of all overheads: that is no more than tight."""
    load = Load(8192, 4, batched_tokens=2048, sequences=64)
    seen = set()
    for mib in range(17_000, 24_000, 100):
        given = plan("llama-3-8b", load, Device(mib * 2**20, "8.9"))
        seen.add(given.verdict)
        if given.verdict == "runnable":
            assert given.requests.low >= 4
        if given.verdict == "impossible":
            assert given.requests.high < 1
    assert seen == {"impossible", "tight", "runnable"}


def test_draft_layers_take_weights_and_cache() -> None:
    load = Load(4096, 8, Parallel(16))
    plain, drafting = plan("deepseek-v3", load), plan("deepseek-v3", replace(load, drafted=1))
    assert drafting.weights > plain.weights
    assert drafting.token == pytest.approx(plain.token * 62 / 61)
    with pytest.raises(UsageError, match="no layers of its own"):
        plan("llama-3-8b", Load(4096, 8, drafted=1))


def test_extra_bytes_and_a_draft_models_cache() -> None:
    plain = plan("llama-3-8b", Load(4096, 8))
    beside = plan("llama-3-8b", Load(4096, 8, extra=3 * GIB, extra_token=65536))
    assert plain.kv.low - beside.kv.low == pytest.approx(3 * GIB)
    assert beside.requests.low == pytest.approx(
        plain.requests.low * (plain.kv.low - 3 * GIB) / plain.kv.low / 1.5, rel=0.01
    )


def test_padding_of_4_bit_experts_only_widens_the_interval() -> None:
    given = plan("gpt-oss-20b", Load(8192, 8))
    assert given.runtime.high - given.runtime.low > 1 * GIB
    assert given.weights == pytest.approx(model("gpt-oss-20b").weights.total, rel=0.01)


@pytest.mark.parametrize(
    ("name", "load", "device", "means"),
    [
        ("llama-3-70b", Load(8192, 8), H100, Means(gpus=4)),
        ("llama-3-70b", Load(8192, 64, Parallel(2)), H100, Means(gpus=2)),
        ("qwen2.5-72b", Load(32768, 8, Parallel(2)), A100, Means((), 2)),
        ("llama-3-8b", Load(8192, 64), SMALL, Means()),
        ("gpt-oss-120b", Load(131072, 8), H100, Means(gpus=1)),
        ("granite-4.0-h-small", Load(131072, 64), H100, Means(gpus=1)),
        ("deepseek-v3", Load(8192, 8, Parallel(8)), H100, Means((), 8, quantized=True)),
        ("qwen3-next-80b-a3b", Load(32768, 8), H100, Means()),
    ],
)
def test_every_cure_really_fits(name: str, load: Load, device: Device, means: Means) -> None:
    found = model(name)
    assert plan(name, load, device).verdict != "runnable"
    cures = find_cures("vllm", "0.24.0", found.shape, found.weights, device, load, means)
    assert cures
    for cure in cures:
        weights = scaled(found.weights, {8: 8.25, 4: 4.5}[cure.bits] / 16) if cure.bits else found.weights
        again = plan_memory("vllm", "0.24.0", found.shape, weights, device, cure.load)
        assert again.verdict == "runnable", cure.text
        assert cure.load != load or cure.bits
        assert cure.plan == again
    assert means.quantized <= all(not cure.bits for cure in cures)


def test_runnable_needs_no_cure() -> None:
    found = model("llama-3-8b")
    assert find_cures("vllm", "0.24.0", found.shape, found.weights, H100, Load(4096, 8), Means()) == ()


def test_cures_name_only_what_helps() -> None:
    found = model("llama-3-8b")
    cures = find_cures("vllm", "0.24.0", found.shape, found.weights, SMALL, Load(8192, 8), Means(gpus=2))
    texts = " | ".join(cure.text for cure in cures)
    assert "a key-value cache in fp8" in texts
    assert "requests of 8192 tokens at once" in texts
    assert "tensor parallel 2 (2 GPUs)" in texts
    assert "a model quantised to 8 bits" in texts


def test_pages_of_a_model_that_mixes_windows() -> None:
    """Gemma 3 27B: 10 full layers and 52 windowed ones make groups of 10, one and six."""
    shape = model("gemma-3-27b").shape
    layout = KvLayout(batched_tokens=8192)
    pool = pool_of(shape, layout)
    assert pool.page == 10 * 16 * 16 * 256 * 2
    assert sorted((group.block, group.tables) for group in pool.groups) == [(16, 1), (16, 6)]
    assert pool.pages(131072, layout) == 131072 // 16 + 6 * (-(-(1024 - 1 + 8192) // 16) + 1)


def test_pages_of_equally_many_windowed_and_full_layers() -> None:
    pool = pool_of(model("gpt-oss-20b").shape, KvLayout())
    assert pool.page == 12 * 16 * 8 * 128 * 2
    assert [group.tables for group in pool.groups] == [1, 1]


def test_a_hybrid_pins_pages_for_every_request() -> None:
    """Granite 4: one page of attention and nine of states, however short the request."""
    shape, layout = model("granite-4.0-h-small").shape, KvLayout()
    pool = pool_of(shape, layout)
    assert pool.pages(1, layout) == 10
    assert {group.block for group in pool.groups} == {0, 528}
    assert requests_held(shape, 20 * pool.page, 1, layout) == 2


def test_sglang_limits_requests_by_the_pool_of_states() -> None:
    shape = model("nemotron-h-56b").shape
    layout = KvLayout(paging="pooled", state_share=0.9, state_bytes=4)
    held = requests_held(shape, 10 * GIB, 16, layout)
    assert held == pytest.approx(10 * GIB * 0.9 / 1.9 / (870.3 * 2**20), rel=0.01)
