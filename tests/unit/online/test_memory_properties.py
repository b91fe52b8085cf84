"""What holds for every shape: properties, over shapes that no real model has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from airbundle.memory.budget import GIB, Device, Load, MemoryPlan, plan_memory
from airbundle.memory.inventory import infer_tensors
from airbundle.memory.kv import KvLayout, growing_bytes, state_bytes
from airbundle.memory.paging import requests_held, sequence_bytes
from airbundle.memory.parallel import Parallel, parallel_problems, stages
from airbundle.memory.shape import ModelShape, read_shape
from airbundle.memory.weights import WeightPlan, plan_weights

FEW = settings(max_examples=60, deadline=None)


@some.composite
def configurations(draw: some.DrawFn) -> dict[str, Any]:
    kv_heads, groups = draw(some.sampled_from((1, 2, 3, 4, 8))), draw(some.sampled_from((1, 2, 4, 8)))
    layers, head_dim = draw(some.integers(1, 24)), draw(some.sampled_from((64, 80, 96, 128, 256)))
    config: dict[str, Any] = {
        "model_type": "unknown",
        "hidden_size": draw(some.integers(1, 32)) * 128,
        "intermediate_size": draw(some.integers(1, 64)) * 128,
        "num_hidden_layers": layers,
        "num_attention_heads": kv_heads * groups,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "v_head_dim": draw(some.sampled_from((head_dim, 64, 128))),
        "vocab_size": draw(some.integers(100, 200_000)),
        "tie_word_embeddings": draw(some.booleans()),
        "sliding_window": draw(some.sampled_from((128, 1024, 4096))),
    }
    kinds = ["full_attention", "sliding_attention"]
    if draw(some.booleans()):
        kinds.append("mamba")
        config |= {"mamba_d_state": 64, "mamba_d_conv": 4, "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_expand": 1}
    config["layer_types"] = draw(some.lists(some.sampled_from(kinds), min_size=layers, max_size=layers))
    if draw(some.booleans()):
        config |= {"num_experts": draw(some.integers(2, 40)), "num_experts_per_tok": 2, "moe_intermediate_size": 256}
    return config


def both(config: dict[str, Any]) -> tuple[ModelShape, WeightPlan]:
    shape = read_shape(config)
    return shape, plan_weights(infer_tensors(config), shape, tied=config["tie_word_embeddings"])


def planned(config: dict[str, Any], memory: int, load: Load) -> MemoryPlan:
    shape, weights = both(config)
    return plan_memory("vllm", "0.24.0", shape, weights, Device(memory, "9.0"), load)


layouts = some.builds(
    KvLayout,
    dtype=some.sampled_from(("bf16", "fp8", "nvfp4", "fp8_token")),
    batched_tokens=some.sampled_from((512, 2048, 16384)),
    paging=some.sampled_from(("grouped", "pooled", "slots")),
)


@FEW
@given(configurations(), layouts, some.integers(1, 50_000), some.integers(0, 50_000))
def test_longer_requests_take_no_less(config: dict[str, Any], layout: KvLayout, tokens: int, more: int) -> None:
    shape = read_shape(config)
    assert sequence_bytes(shape, tokens, layout) <= sequence_bytes(shape, tokens + more, layout)
    assert requests_held(shape, 8 * GIB, tokens, layout) >= requests_held(shape, 8 * GIB, tokens + more, layout)


@FEW
@given(configurations(), layouts, some.integers(1, 20_000))
def test_a_request_takes_at_least_its_tokens_and_states(config: dict[str, Any], layout: KvLayout, tokens: int) -> None:
    shape = read_shape(config)
    least = growing_bytes(shape, layout) * tokens + state_bytes(shape, layout)
    assert sequence_bytes(shape, tokens, layout) >= least * (1 - 1e-9)


@FEW
@given(configurations(), some.integers(1, 20_000))
def test_with_slots_a_model_takes_what_its_layers_take(config: dict[str, Any], tokens: int) -> None:
    shape, layout = read_shape(config), KvLayout(paging="slots")
    parts = [replace(shape, layers=1, caches=(caches,)) for caches in shape.caches]
    total = sum(sequence_bytes(part, tokens, layout) for part in parts)
    assert sequence_bytes(shape, tokens, layout) == total


@FEW
@given(configurations(), some.sampled_from((1, 2, 4, 8)), some.integers(1, 4), some.booleans())
def test_all_ranks_together_hold_the_model(config: dict[str, Any], tensor: int, pipeline: int, experts: bool) -> None:
    shape, weights = both(config)
    parallel = Parallel(tensor, pipeline, experts)
    if parallel_problems(shape, parallel):
        return
    assert sum(weights.per_stage(parallel)) * tensor >= weights.total
    assert weights.per_rank(parallel) <= weights.per_rank(parallel, allocated=True)
    assert weights.per_rank(parallel) * parallel.gpus >= weights.total


@FEW
@given(configurations(), some.sampled_from((2, 4, 8)))
def test_more_ranks_hold_no_more_each(config: dict[str, Any], tensor: int) -> None:
    shape, weights = both(config)
    if not parallel_problems(shape, Parallel(tensor)):
        assert weights.per_rank(Parallel(tensor)) <= weights.per_rank(Parallel())
        layout = KvLayout(parallel=Parallel(tensor))
        assert growing_bytes(shape, layout) <= growing_bytes(shape, KvLayout())
        assert growing_bytes(shape, layout) * tensor >= growing_bytes(shape, KvLayout()) * (1 - 1e-9)


@FEW
@given(configurations(), some.integers(8, 200), some.integers(0, 100), some.integers(64, 30_000), some.integers(1, 64))
def test_more_memory_is_never_worse(config: dict[str, Any], gib: int, more: int, context: int, many: int) -> None:
    # The same settings: a larger GPU also gets larger steps by default.
    load = Load(context, many, batched_tokens=2048, sequences=128)
    less, larger = planned(config, gib * GIB, load), planned(config, (gib + more) * GIB, load)
    order = ("impossible", "tight", "runnable")
    assert order.index(less.verdict) <= order.index(larger.verdict)
    assert less.max_context <= larger.max_context
    assert less.requests.low <= larger.requests.low


@FEW
@given(configurations(), some.integers(8, 100), some.integers(64, 30_000), some.integers(1, 64), some.integers(0, 64))
def test_more_is_never_easier(config: dict[str, Any], gib: int, context: int, many: int, more: int) -> None:
    load = Load(context, many, batched_tokens=2048, sequences=128)
    order = ("impossible", "tight", "runnable")
    base = order.index(planned(config, gib * GIB, load).verdict)
    assert order.index(planned(config, gib * GIB, replace(load, concurrency=many + more)).verdict) <= base
    assert order.index(planned(config, gib * GIB, replace(load, context=context * 2)).verdict) <= base


@FEW
@given(configurations(), some.integers(8, 100), some.integers(1, 64))
def test_longest_context_is_the_longest_that_fits(config: dict[str, Any], gib: int, many: int) -> None:
    found = planned(config, gib * GIB, Load(64, many, batched_tokens=2048, sequences=128))
    shape, layout = read_shape(config), KvLayout(batched_tokens=2048)
    if found.max_context:
        assert requests_held(shape, found.kv.low, found.max_context, layout) >= many
    if found.max_context < 1 << 20 and growing_bytes(shape, layout):
        assert requests_held(shape, found.kv.low, found.max_context + layout.block, layout) < many


@FEW
@given(configurations(), some.integers(8, 200), some.integers(64, 30_000), some.integers(1, 64))
def test_intervals_are_in_order(config: dict[str, Any], gib: int, context: int, many: int) -> None:
    plan = planned(config, gib * GIB, Load(context, many))
    for interval in (plan.budget, plan.activation, plan.graphs, plan.runtime, plan.kv, plan.requests, plan.tokens):
        assert interval.low <= interval.high
    assert (plan.verdict == "runnable") <= (plan.requests.low >= many)


@FEW
@given(some.integers(1, 200), some.integers(1, 16))
def test_stages_are_whole(layers: int, count: int) -> None:
    if count > layers:
        return
    spans = stages(layers, count)
    assert [first for first, _ in spans] == [0, *(after for _, after in spans[:-1])]
    assert spans[-1][1] == layers
    sizes = [after - first for first, after in spans]
    assert max(sizes) - min(sizes) <= 1
