"""The memory plan of one engine on one kind of GPU: what is left for the KV cache, and what that allows.

Each engine budgets in its own way, so each has its own function here; all give an interval, because activation and
graph memory are known only within one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from airbundle.memory.kv import KvLayout, growing_bytes, sequence_bytes
from airbundle.memory.shape import ModelShape
from airbundle.memory.weights import WeightPlan
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

GIB = 1024**3
_MIB = 1024**2
_TIGHT = 1.1


@record
class Interval:
    """A quantity known within bounds."""

    low: float
    high: float

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


@record
class Load:
    """What is to be served, and with which settings.

    Attributes:
        context: tokens of the longest request, prompt and answer together.
        concurrency: requests at once.
        sequences: the engine's limit of sequences per step.
        utilization: share of the GPU's memory the engine may use; 0 for the engine's default.
        graphs: whether CUDA graphs are captured.
        pipeline_parallel: stages.
        layout: of the KV cache, with the tensor parallel size.
        extra: bytes per GPU for adapters, a draft model or a projector.
    """

    context: int
    concurrency: int
    sequences: int = 256
    utilization: float = 0.0
    graphs: bool = True
    pipeline_parallel: int = 1
    layout: KvLayout = KvLayout()
    extra: int = 0


@record
class MemoryPlan:
    """Bytes on the fullest GPU.

    Attributes:
        total: of the GPU.
        budget: that the engine takes for itself.
        weights, activation, graphs, runtime: what is taken before the cache.
        kv: what is left for the cache.
        token: bytes per cached token in layers that grow.
        sequence: bytes of one request of full length.
        tokens: how many tokens the cache holds, as the engine reports it.
        concurrency: requests of full length that fit at once.
        max_context: longest context for the wanted concurrency.
        verdict: ``runnable``; ``tight``: fits only by the optimistic bound or without headroom; ``impossible``.
        cure: what would make it fit; empty when runnable.
    """

    total: int
    budget: float
    weights: float
    activation: Interval
    graphs: Interval
    runtime: Interval
    kv: Interval
    token: float
    sequence: float
    tokens: Interval
    concurrency: Interval
    max_context: int
    verdict: Literal["runnable", "tight", "impossible"]
    cure: str = ""


def plan_memory(
    engine: str, version: str, shape: ModelShape, weights: WeightPlan, memory: int, load: Load
) -> MemoryPlan:
    """Compute the plan.

    Args:
        engine, version: e.g. ``vllm``, ``0.24.0``.
        shape, weights: of the model.
        memory: bytes of one GPU as CUDA reports them in total.
        load: what is to be served.

    Raises:
        UsageError: nothing is known of that engine or version.
    """
    facts = overheads(engine, version)
    held = weights.per_rank(load.layout.tensor_parallel, load.pipeline_parallel) + load.extra
    activation, graphs = _activation(facts, shape, load), _graphs(facts, load)
    runtime = _gib(facts["runtime_tp" if load.layout.tensor_parallel > 1 else "runtime"])
    budget = _BUDGETS[engine](facts, memory, load)
    counted = graphs if facts["graphs_counted"] else Interval(0, 0)
    spent = activation + counted + runtime
    kv = _KV_LEFT[engine](facts, budget, held, spent, memory)
    token, sequence = growing_bytes(shape, load.layout), sequence_bytes(shape, load.context, load.layout)
    concurrency = Interval(max(0.0, kv.low / sequence), max(0.0, kv.high / sequence))
    tokens = Interval(concurrency.low * load.context, concurrency.high * load.context)
    longest = _longest(shape, load, kv.low)
    verdict = _verdict(concurrency, load)
    cure = "" if verdict == "runnable" else _cure(shape, load, kv, longest)
    return MemoryPlan(
        memory,
        budget,
        held,
        activation,
        graphs,
        runtime,
        kv,
        token,
        sequence,
        tokens,
        concurrency,
        longest,
        verdict,
        cure,
    )


@cache
def _table() -> tuple[Mapping[str, Any], ...]:
    path = Path(__file__).parent / "data" / "overheads.toml"
    return tuple(tomllib.loads(path.read_text(encoding="utf-8"))["engine"])


def overheads(engine: str, version: str) -> Mapping[str, Any]:
    """The row of data/overheads.toml for an engine's version.

    Raises:
        UsageError: there is none.
    """
    for row in _table():
        if row["name"] == engine and SpecifierSet(row["versions"]).contains(version or "9999", prereleases=True):
            return row
    known = sorted({row["name"] for row in _table()})
    raise UsageError(f"no memory figures for {engine} {version}", remedy=f"known engines: {', '.join(known)}")


def _activation(facts: Mapping[str, Any], shape: ModelShape, load: Load) -> Interval:
    per_token = facts["activation_width"] * shape.intermediate / load.layout.tensor_parallel
    per_token += facts["activation_residual"] * shape.hidden
    middle = load.layout.batched_tokens * per_token * 2 + load.sequences * shape.vocab * facts["logits_bytes"]
    return Interval(middle * (1 - facts["spread"]), middle * (1 + facts["spread"]))


def _graphs(facts: Mapping[str, Any], load: Load) -> Interval:
    return _gib(facts["graphs"]) if load.graphs else Interval(0, 0)


def _gib(bounds: list[float]) -> Interval:
    return Interval(bounds[0] * GIB, bounds[1] * GIB)


def _share(facts: Mapping[str, Any], memory: int, load: Load) -> float:
    return memory * (load.utilization or facts["default_utilization"])


def _sglang_share(facts: Mapping[str, Any], memory: int, load: Load) -> float:
    """SGLang's default for ``--mem-fraction-static``: what it reserves, by the chunk and graph sizes of its classes."""
    if load.utilization:
        return memory * load.utilization
    gib, ranks = memory / GIB, load.layout.tensor_parallel * load.pipeline_parallel
    wide = load.layout.tensor_parallel >= 4
    classes = ((20, 2048, 8), (35, 2048, 80 if wide else 24), (60, 4096, 160 if wide else 32))
    chunk, graph = next(
        ((chunk, graph) for limit, chunk, graph in classes if gib < limit),
        (8192, 512 if wide else 256) if gib < 160 else (16384, 512),
    )
    reserved = 512 + 1.5 * max(chunk, 2048) + 2 * graph + 1024 * ranks / 8
    if gib > 60:
        reserved = max(reserved, 10 * 1024)
    return memory - reserved * _MIB


def _rest(facts: Mapping[str, Any], budget: float, weights: float, spent: Interval, memory: int) -> Interval:
    """The budget covers everything: vLLM, llama.cpp."""
    return Interval(budget - weights - spent.high, budget - weights - spent.low)


def _static_rest(facts: Mapping[str, Any], budget: float, weights: float, spent: Interval, memory: int) -> Interval:
    """The budget covers weights and cache only: SGLang. Activation lives in what was reserved beside it."""
    return Interval(budget - weights - 0.02 * memory, budget - weights)


def _free_share(facts: Mapping[str, Any], budget: float, weights: float, spent: Interval, memory: int) -> Interval:
    """A share of what is free after loading: TensorRT-LLM."""
    share = budget / memory
    return Interval((memory - weights - spent.high) * share, (memory - weights - spent.low) * share)


_Left = Callable[[Mapping[str, Any], float, float, Interval, int], Interval]
_BUDGETS: dict[str, Callable[[Mapping[str, Any], int, Load], float]] = {
    "vllm": _share,
    "sglang": _sglang_share,
    "tensorrt-llm": _share,
    "llama.cpp": _share,
}
_KV_LEFT: dict[str, _Left] = {
    "vllm": _rest,
    "sglang": _static_rest,
    "tensorrt-llm": _free_share,
    "llama.cpp": _rest,
}


def _longest(shape: ModelShape, load: Load, available: float) -> int:
    """Longest context for the wanted concurrency, in whole blocks, by bisection: the cost grows with the length."""
    low, high = 0, shape.max_context or 1 << 20
    while low < high:
        middle = (low + high + 1) // 2
        if sequence_bytes(shape, middle, load.layout) * load.concurrency <= available:
            low = middle
        else:
            high = middle - 1
    return low // load.layout.block * load.layout.block


def _verdict(concurrency: Interval, load: Load) -> Literal["runnable", "tight", "impossible"]:
    if concurrency.high < 1:
        return "impossible"
    if concurrency.low < 1 or concurrency.low < load.concurrency / _TIGHT:
        return "tight"
    return "runnable"


def _cure(shape: ModelShape, load: Load, kv: Interval, longest: int) -> str:
    needed = sequence_bytes(shape, load.context, load.layout)
    if kv.high <= 0:
        return f"the weights alone leave {kv.high / GIB:.1f} GiB: use more GPUs, or a quantised model"
    short = (needed - kv.low) / GIB
    if kv.low < needed and longest < load.layout.block:
        return f"{short:.1f} GiB are missing for one request: use more GPUs, a quantised model, or fewer batched tokens"
    fits = int(max(kv.low, 0) // needed)
    ways = [f"a context of {longest} tokens at {load.concurrency} requests"] if longest else []
    ways += [f"{fits} requests at {load.context} tokens"] if fits else []
    ways += ["an fp8 KV cache"] if load.layout.dtype == "bf16" else []
    return "would fit: " + ", or ".join(ways)
