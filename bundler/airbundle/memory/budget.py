"""What is left for the KV cache on the fullest GPU, and what that allows, as each engine computes it.

Everything that is not known exactly is an interval. A plan is `runnable` only if it holds by the pessimistic bound.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from airbundle.memory.activation import latent_bytes, micro_batch_bytes, padding_bytes, peak_bytes
from airbundle.memory.adapters import with_draft_layers
from airbundle.memory.config import DATA
from airbundle.memory.kv import KvDtype, KvLayout, growing_bytes, state_bytes
from airbundle.memory.paging import requests_held, sequence_bytes
from airbundle.memory.parallel import Parallel, check_parallel
from airbundle.memory.shape import ModelShape
from airbundle.memory.weights import WeightPlan
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

GIB = 1024**3
_MIB = 1024**2

Verdict = Literal["runnable", "tight", "impossible"]


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

    def scaled(self, factor: float) -> Interval:
        """Both bounds times `factor`, which is not negative."""
        return Interval(self.low * factor, self.high * factor)


@record
class Device:
    """One GPU, or a host without one.

    Attributes:
        memory: bytes that it reports in total.
        capability: compute capability, e.g. ``9.0``; empty for a host.
    """

    memory: int
    capability: str = ""


@record
class Load:
    """What is to be served, and with which settings; 0 stands for the engine's default.

    Attributes:
        context: tokens of the longest request, prompt and answer together.
        concurrency: requests at once.
        parallel: how the model is spread.
        kv_dtype: of the cache.
        sequences, batched_tokens: that one step takes at most.
        utilization: share of the GPU's memory that the engine may use.
        graphs: whether CUDA graphs are captured.
        drafted: tokens predicted ahead by the model's own extra layers, which are then loaded.
        extra: bytes per GPU for adapters, a draft model or a projector.
        extra_token: bytes per token and GPU for a draft model's own cache.
    """

    context: int
    concurrency: int
    parallel: Parallel = Parallel()
    kv_dtype: KvDtype = "bf16"
    sequences: int = 0
    batched_tokens: int = 0
    utilization: float = 0.0
    graphs: bool = True
    drafted: int = 0
    extra: int = 0
    extra_token: float = 0.0


@record
class MemoryPlan:
    """Bytes on the fullest GPU.

    Attributes:
        total: of the GPU.
        budget: that the engine takes for itself.
        weights: as allocated, with what kernels keep besides the checkpoint.
        activation, graphs, runtime: taken within the budget before the cache; runtime with what kernels may pad.
        beside: taken outside the budget.
        kv: left for the cache; below 0 when there is not even room for the rest.
        token: bytes per cached token in layers that grow.
        state: bytes of recurrent state per request.
        sequence: bytes of one request of full length, paging included.
        tokens: how many tokens the cache holds, as vLLM reports it.
        requests: of full length that fit at once.
        max_context: longest context for the wanted concurrency, by the pessimistic bound; 0 when none fits.
        sequences, batched_tokens, utilization: settings that were counted with.
        verdict: ``runnable``, ``tight`` or ``impossible``; `reason` says why.
        reason: one sentence.
    """

    total: int
    budget: Interval
    weights: float
    activation: Interval
    graphs: Interval
    runtime: Interval
    beside: Interval
    kv: Interval
    token: float
    state: float
    sequence: float
    tokens: Interval
    requests: Interval
    max_context: int
    sequences: int
    batched_tokens: int
    utilization: float
    verdict: Verdict
    reason: str


def plan_memory(
    engine: str, version: str, shape: ModelShape, weights: WeightPlan, device: Device, load: Load
) -> MemoryPlan:
    """Compute the plan.

    Args:
        engine, version: e.g. ``vllm``, ``0.24.0``; an empty version stands for the newest.
        shape, weights: of the model.
        device: one of the GPUs, which are all alike.
        load: what is to be served.

    Raises:
        UsageError: nothing is known of that engine or version, or the model cannot be spread so.
    """
    facts = overheads(engine, version)
    if load.drafted:
        shape = with_draft_layers(shape)
    slots = facts["paging"] == "slots"
    if not slots:  # whole layers go to each GPU there, which always works
        check_parallel(shape, load.parallel)
    settings = _Settings(facts, shape, device, load)
    layout = settings.layout
    held = settings.weights(weights) + load.extra
    experts = sum(parameter.experts for parameter in weights.parameters)
    padding = Interval(0, padding_bytes(shape, load.parallel, experts))
    activation, graphs, runtime = settings.activation(), settings.graphs(), settings.interval("runtime") + padding
    budget = settings.budget(activation + runtime, held)
    counted = settings.counted_graphs()
    if facts["paging"] == "pooled":
        kv = Interval(budget.low - held - padding.high, budget.high - held)
    else:
        spent = activation + counted + runtime
        kv = Interval(budget.low - held - spent.high, budget.high - held - spent.low)
    sequence = sequence_bytes(shape, load.context, layout) + load.extra_token * load.context
    share = sequence / (sequence - load.extra_token * load.context) if sequence else 1.0
    requests = Interval(*(requests_held(shape, bound / share, load.context, layout) for bound in (kv.low, kv.high)))
    fits = settings.fits_beside()
    verdict, reason = _verdict(requests, kv, load, slots, fits)
    return MemoryPlan(
        total=device.memory,
        budget=budget,
        weights=held,
        activation=activation,
        graphs=graphs,
        runtime=runtime,
        beside=settings.beside(),
        kv=kv,
        token=growing_bytes(shape, layout) + load.extra_token,
        state=state_bytes(shape, layout),
        sequence=sequence,
        tokens=requests.scaled(load.context),
        requests=requests,
        max_context=longest_context(shape, load, layout, kv.low),
        sequences=settings.sequences,
        batched_tokens=settings.batched_tokens,
        utilization=settings.share(),
        verdict=verdict,
        reason=reason,
    )


@cache
def _table() -> tuple[Mapping[str, Any], ...]:
    return tuple(tomllib.loads((DATA / "overheads.toml").read_text(encoding="utf-8"))["engine"])


def engines() -> tuple[str, ...]:
    """Names of the engines whose memory can be planned."""
    return tuple(dict.fromkeys(row["name"] for row in _table()))


def overheads(engine: str, version: str) -> Mapping[str, Any]:
    """The row of data/overheads.toml for an engine's version.

    Raises:
        UsageError: there is none.
    """
    for row in _table():
        if row["name"] == engine and SpecifierSet(row["versions"]).contains(version or "9999", prereleases=True):
            return row
    raise UsageError(f"no memory figures for {engine} {version}", remedy=f"known engines: {', '.join(engines())}")


class _Settings:
    """An engine's settings for a load: defaults filled in."""

    def __init__(self, facts: Mapping[str, Any], shape: ModelShape, device: Device, load: Load) -> None:
        self._facts, self._shape, self._device, self._load = facts, shape, device, load
        self.batched_tokens, self.sequences = self._batches()
        self.layout = KvLayout(
            dtype=load.kv_dtype,
            parallel=self._parallel(),
            batched_tokens=self.batched_tokens,
            paging=facts["paging"],
            window_share=facts.get("window_share", 0.0),
            state_share=facts.get("state_share", 0.0),
            conv_bytes=facts.get("conv_bytes", 2),
            state_bytes=facts.get("state_bytes", 2),
            drafted=load.drafted,
        )

    def _parallel(self) -> Parallel:
        """llama.cpp puts whole layers on each GPU, as pipeline stages do."""
        given = self._load.parallel
        return Parallel(1, given.gpus) if self._facts["paging"] == "slots" else given

    def _batches(self) -> tuple[int, int]:
        facts, load, gib = self._facts, self._load, self._device.memory / GIB
        if "classes" in facts:
            chunk, graph = self._class()
            return load.batched_tokens or chunk, load.sequences or graph
        rows = facts["batches"]
        small = self._device.capability in facts["small_batches"]
        _, tokens, sequences = rows[-1] if small else next(row for row in rows if gib >= row[0])
        return load.batched_tokens or tokens, load.sequences or sequences or load.concurrency

    def _class(self) -> tuple[int, int]:
        """SGLang's tokens per step and largest graph, by the GPU's memory."""
        gib, wide = self._device.memory / GIB, self._load.parallel.tensor >= 4
        _, chunk, narrow, broad = next(row for row in self._facts["classes"] if gib < row[0] or not row[0])
        return chunk, broad if wide else narrow

    def interval(self, name: str) -> Interval:
        several = f"{name}_tp"
        bounds = self._facts[several if self._load.parallel.gpus > 1 and several in self._facts else name]
        return Interval(bounds[0] * GIB, bounds[1] * GIB)

    def weights(self, weights: WeightPlan) -> float:
        load, parallel = self._load, self.layout.parallel
        if self._facts["paging"] == "slots":
            return weights.per_rank(parallel) - self._on_host(weights)
        held = weights.per_rank(parallel, draft=bool(load.drafted), allocated=True)
        return held + latent_bytes(self._shape, parallel, load.context, self.sequences, self.layout.block)

    def _on_host(self, weights: WeightPlan) -> int:
        """llama.cpp leaves the embedding in the host's memory; tied to the output layer, it has a copy on the GPU."""
        if weights.tied or not self._device.capability or self.layout.parallel.pipeline > 1:
            return 0
        return sum(parameter.total for parameter in weights.parameters if parameter.role == "vocab")

    def activation(self) -> Interval:
        low, high = self._facts["activation"]
        vision = self.interval("vision") if self._shape.vision else Interval(0, 0)
        if self._facts["paging"] == "slots":
            peak = micro_batch_bytes(self._shape, self.batched_tokens)
        else:
            parallel, logits = self._load.parallel, self._facts["logits"]
            peak = peak_bytes(self._shape, parallel, self.batched_tokens, self.sequences, logits)
        return Interval(peak * low, peak * high) + vision

    def graphs(self) -> Interval:
        return self.interval("graphs") if self._load.graphs else Interval(0, 0)

    def counted_graphs(self) -> Interval:
        counted = self._facts["graphs_counted"] and self._shape.architecture not in self._facts.get("uncounted", ())
        return self.graphs() if counted else Interval(0, 0)

    def beside(self) -> Interval:
        """What lies outside the budget: context, communication, and graphs that it does not count."""
        counted = self._facts["graphs_counted"] and self._shape.architecture not in self._facts.get("uncounted", ())
        if counted or not self._load.graphs or "outside_graphs" not in self._facts:
            return self.interval("beside")
        return self.interval("beside") + self.interval("outside_graphs")

    def fits_beside(self) -> bool:
        """Whether that finds room on the GPU, by the pessimistic bound."""
        free = self._device.memory * (1 - self.share())
        return self._facts["paging"] != "grouped" or free >= self.beside().high

    def share(self) -> float:
        if self._load.utilization or "classes" not in self._facts:
            return self._load.utilization or float(self._facts["utilization"])
        return round(self._static_share(self._facts["prefill_graphs"][0]), 3)

    def budget(self, spent: Interval, weights: float) -> Interval:
        """Bytes for everything (vLLM, llama.cpp), or for weights and cache (SGLang, TensorRT-LLM)."""
        memory = self._device.memory
        if "classes" in self._facts:
            low, high = self._sglang_shares()
            runtime = self.interval("runtime")  # found taken when the engine looks what is free
            return Interval(memory * low - runtime.high, memory * high - runtime.low)
        if self._facts["paging"] == "pooled":
            share = self.share()
            free = Interval(memory - weights - spent.high, memory - weights - spent.low)
            return Interval(weights + share * max(free.low, 0), weights + share * max(free.high, 0))
        return Interval(memory * self.share(), memory * self.share())

    def _sglang_shares(self) -> tuple[float, float]:
        if self._load.utilization:
            return self._load.utilization, self._load.utilization
        graphs = self._facts["prefill_graphs_latent" if self._shape.latent else "prefill_graphs"]
        low, high = (self._static_share(extra) for extra in reversed(graphs))
        if self._shape.vision:
            less, more = self._facts["vision_share"]
            low, high = low * less, high * more
        return low, high

    def _static_share(self, prefill_graphs: float) -> float:
        """SGLang's default for ``--mem-fraction-static``: all but what it reserves, in MiB."""
        memory, load = self._device.memory / _MIB, self._load
        graph = self._class()[1]
        reserved = 512 + 1.5 * max(self.batched_tokens, 2048) + 2 * graph * load.graphs
        reserved += 1024 * load.parallel.gpus / 8 + prefill_graphs * 1024
        if memory > 60 * 1024:
            reserved = max(reserved, 10 * 1024)
        return max(0.0, (memory - reserved) / memory)


def longest_context(shape: ModelShape, load: Load, layout: KvLayout, available: float) -> int:
    """Longest context for the wanted concurrency, in whole blocks, by bisection: the cost grows with the length."""
    low, high = 0, (shape.max_context or 1 << 20) // layout.block
    while low < high:
        middle = (low + high + 1) // 2
        tokens = middle * layout.block
        needed = sequence_bytes(shape, tokens, layout)
        room = available - load.extra_token * tokens * load.concurrency
        if needed and requests_held(shape, room, tokens, layout) >= load.concurrency:
            low = middle
        else:
            high = middle - 1
    return low * layout.block


def _verdict(requests: Interval, kv: Interval, load: Load, slots: bool, beside: bool) -> tuple[Verdict, str]:
    """`slots`: the engine sets the full length aside for each request, so that all must fit for it to start."""
    wanted = load.concurrency
    needed = wanted if slots else 1
    if kv.high <= 0:
        return "impossible", f"weights and overheads exceed the budget by {-kv.high / GIB:.1f} GiB"
    if requests.high < needed:
        what = f"{wanted} requests" if slots else "one request"
        return (
            "impossible",
            f"the cache of at most {kv.high / GIB:.1f} GiB does not hold {what} of {load.context} tokens",
        )
    if requests.low < needed:
        return "tight", "it starts only if the overheads turn out small"
    if requests.low < wanted:
        return (
            "tight",
            f"{requests.low:.1f} of {wanted} requests of {load.context} tokens fit at once; the others wait",
        )
    if not beside:
        return "tight", "what is left outside the budget may not do for the CUDA context, communication and graphs"
    return "runnable", f"{requests.low:.1f} requests of {load.context} tokens fit, by the pessimistic bound"
