"""An estimate as text and as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airbundle.estimate import Estimate, gib
from airbundle.memory.budget import Interval
from airbundle.memory.cure import cure_text
from airbundle.memory.explain import explanation, span
from airbundle_onsite.contract.record import to_plain


def estimate_text(found: Estimate, *, explain: bool = False) -> str:
    """For people: a table for the fullest GPU, the verdict, and what would make it fit."""
    return "\n".join(_lines(found, explain))


def _lines(found: Estimate, explain: bool) -> Iterator[str]:
    plan, load = found.plan, found.load
    parallel = load.parallel
    spread = f"{parallel.gpus} × " if parallel.gpus > 1 else ""
    yield f"{found.model.name} with {found.engine} {found.version or '(newest)'} on {spread}{found.profile}"
    yield f"weights counted from {found.model.seen}"
    if found.model.assumed:
        yield f"assumed, since config.json does not say: {', '.join(found.model.assumed)}"
    yield ""
    rows = [
        ("memory of the GPU", gib(plan.total)),
        ("the engine's budget", span(plan.budget)),
        ("weights", gib(plan.weights)),
        ("activation", span(plan.activation)),
        ("CUDA graphs", span(plan.graphs)),
        ("runtime", span(plan.runtime)),
        ("left for the cache", span(plan.kv)),
        (f"one request, {load.context} tokens", gib(plan.sequence)),
        ("requests of that length", _number(plan.requests)),
        ("tokens in the cache", _number(plan.tokens, 0)),
        (f"context for {load.concurrency} requests", f"{plan.max_context} tokens at most" if plan.max_context else "-"),
    ]
    width = max(len(name) for name, _ in rows)
    yield from (f"  {name:<{width}}  {value}" for name, value in rows)
    yield ""
    yield f"{plan.verdict}: {plan.reason}"
    if plan.verdict != "runnable":
        yield cure_text(found.cures)
    if found.offload:
        offload = found.offload
        yield f"with --gpu-layers {offload.layers} of {offload.most}, {gib(offload.on_host)} stay on the host"
    if explain:
        yield ""
        yield from explanation(found.model.shape, found.model.weights, load, plan)
        yield f"overheads: {found.source}"


def _number(interval: Interval, digits: int = 1) -> str:
    low, high = (f"{max(bound, 0):,.{digits}f}" for bound in (interval.low, interval.high))
    return low if low == high else f"{low} to {high}"


def estimate_value(found: Estimate) -> dict[str, Any]:
    """For ``--json``: the estimate without the list of parameters."""
    weights = found.model.weights
    return {
        "model": found.model.name,
        "seen": found.model.seen,
        "assumed": list(found.model.assumed),
        "weights": {"total": weights.total, "draft": weights.draft, "skipped": weights.skipped},
        "profile": found.profile,
        "engine": found.engine,
        "engine_version": found.version,
        "load": to_plain(found.load),
        "plan": to_plain(found.plan),
        "cures": [{"text": cure.text, "bits": cure.bits, "load": to_plain(cure.load)} for cure in found.cures],
        "offload": to_plain(found.offload) if found.offload else None,
        "source": found.source,
    }
