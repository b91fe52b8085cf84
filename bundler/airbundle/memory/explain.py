"""The computation behind a plan, with its numbers, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from airbundle.memory.budget import GIB, Interval, Load, MemoryPlan
from airbundle.memory.kv import KvLayout, layer_state_bytes, token_bytes
from airbundle.memory.shape import Attention, ModelShape, State
from airbundle.memory.weights import WeightPlan


def span(interval: Interval) -> str:
    """An interval in GiB."""
    low, high = (f"{bound / GIB:.2f}" for bound in (interval.low, interval.high))
    return f"{low} GiB" if low == high else f"{low} to {high} GiB"


def explanation(shape: ModelShape, weights: WeightPlan, load: Load, plan: MemoryPlan) -> list[str]:
    """Lines, one step each."""
    layout = KvLayout(load.kv_dtype, load.parallel, batched_tokens=plan.batched_tokens)
    return [*_weights(weights, load, plan), *_caches(shape, layout, load), *_budget(load, plan)]


def _weights(weights: WeightPlan, load: Load, plan: MemoryPlan) -> Iterator[str]:
    parts = {
        "divided": sum(item.divided for item in weights.parameters),
        "by key-value head": sum(item.by_kv_head for item in weights.parameters),
        "of experts": sum(item.experts for item in weights.parameters),
        "copied to each": sum(item.copied for item in weights.parameters),
    }
    listed = ", ".join(f"{size / GIB:.2f} GiB {name}" for name, size in parts.items() if size)
    yield f"weights: {weights.total:,} bytes in {weights.counted} tensors: {listed}"
    if weights.draft or weights.skipped:
        yield f"  not loaded: {weights.draft / GIB:.2f} GiB of draft layers, {weights.skipped / GIB:.2f} GiB of others"
    spread = f"{load.parallel.tensor} ranks, {load.parallel.pipeline} stages"
    yield f"  on the fullest of {spread}, as allocated and with what kernels keep: {plan.weights / GIB:.2f} GiB"


def _caches(shape: ModelShape, layout: KvLayout, load: Load) -> Iterator[str]:
    ranks = layout.parallel.tensor
    for cache, count in Counter(cache for layer in shape.caches for cache in layer).items():
        if isinstance(cache, State):
            yield f"state: {count} layers · {layer_state_bytes(cache, layout):,.0f} bytes for each request"
            continue
        yield f"cache: {attention_formula(cache, count, ranks, layout)}"


def attention_formula(cache: Attention, count: int, ranks: int, layout: KvLayout) -> str:
    """How the bytes of a token come about."""
    each = token_bytes(cache, layout)
    if cache.kind == "mla":
        what = f"latent of {cache.key_dim} values, not divided among ranks,"
    else:
        heads = f"{cache.kv_heads} heads" if ranks == 1 else f"⌈{cache.kv_heads} heads / {ranks}⌉"
        what = f"{heads} · ({cache.key_dim} + {cache.value_dim}) values"
    window = f", at most {cache.window} tokens and those of one step" if cache.window else ""
    window += f", {cache.fixed} of them a layer for its index" if cache.fixed else ""
    return f"{count} {cache.kind} layers · {what} in {layout.dtype} = {count * each:,.0f} bytes a token{window}"


def _budget(load: Load, plan: MemoryPlan) -> Iterator[str]:
    share = f" = {plan.utilization:.3g} of {plan.total / GIB:.2f} GiB" if plan.budget.low == plan.budget.high else ""
    yield f"budget: {span(plan.budget)}{share}"
    yield (
        f"  less weights {plan.weights / GIB:.2f} GiB, activation {span(plan.activation)} "
        f"({plan.batched_tokens} tokens and {plan.sequences} sequences a step), runtime {span(plan.runtime)}, "
        f"graphs {span(plan.graphs)} where they count"
    )
    yield f"  = {span(plan.kv)} for the cache"
    yield (
        f"one request of {load.context} tokens: {plan.sequence / GIB:.3f} GiB with whole pages; "
        f"{plan.requests.low:.1f} to {plan.requests.high:.1f} fit, "
        f"{plan.tokens.low:,.0f} to {plan.tokens.high:,.0f} tokens"
    )
