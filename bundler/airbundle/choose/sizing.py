"""Finds the first way of spreading a model that fits the memory, with the context and requests asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from airbundle.choose.layouts import layouts
from airbundle.choose.limits import Candidate, kv_fp8
from airbundle.choose.request import Layout, Rejected, Request, Verdict
from airbundle.choose.situation import Target
from airbundle.memory.budget import GIB, Device, Load, MemoryPlan, plan_memory
from airbundle.memory.cure import Means, cure_text, find_cures
from airbundle.memory.kv import KvDtype
from airbundle.memory.parallel import Parallel
from airbundle.memory.shape import ModelShape
from airbundle.memory.weights import WeightPlan
from airbundle_onsite.contract.record import record

_ORDER: dict[Verdict, int] = {"runnable": 0, "tight": 1, "impossible": 2}
SMALL_STEP = 2048
LEAST, MOST = 0.85, 0.94  # shares of the GPU: small cards need more beside the budget, large ones less
_UNBOUNDED = 1 << 42  # bytes: of a host without GPUs the plan says what is needed, and the site what there is
_ROUND = 8  # sequences: CUDA graphs are captured for multiples of it


@record
class Model:
    """A model as the sizes need it: its shape, its weights, and bytes of files beyond what the shape implies."""

    shape: ModelShape
    weights: WeightPlan
    surplus: int = 0


@record
class Way:
    """One thing to try: how the model is spread, the cache's type, tokens of a step, share of the GPU's memory."""

    layout: Layout
    kv_dtype: KvDtype
    batched: int
    utilization: float


@record
class Size:
    """A way of serving, and its memory.

    Attributes:
        load: what was planned for; full: its plan, with requests of full length; usual: with those of usual length.
        needed: bytes of each GPU that suffice.
        sequences: per copy.
    """

    way: Way
    load: Load
    full: MemoryPlan
    usual: MemoryPlan
    verdict: Verdict
    reason: str
    needed: int
    sequences: int

    @property
    def layout(self) -> Layout:
        return self.way.layout


def settle_size(
    candidate: Candidate, model: Model, target: Target, request: Request, workload: str
) -> tuple[Size, tuple[Rejected, ...]]:
    """The first size that is runnable; else the one that comes nearest. With it, what was passed over and why."""
    options, out = layouts(model.shape, target, candidate.facts, workload)
    tried: list[Size] = []
    for way in _ways(options, candidate, target, request, workload):
        size = _size(candidate, model, target, request, way)
        tried.append(size)
        if size.verdict == "runnable":
            break
    best = min(tried, key=lambda size: _rank(size, target))
    passed = {_name(size.layout): size for size in tried if size.layout != best.layout}
    return best, (*out, *(Rejected(name, f"{size.verdict}: {size.reason}") for name, size in passed.items()))


def _rank(size: Size, target: Target) -> tuple[int, float]:
    """Runnable before tight before impossible; then by how many requests fit, or by how little is missing."""
    if size.verdict == "impossible":
        return _ORDER[size.verdict], size.needed
    slow = size.layout.tensor > 1 and target.link != "nvlink"  # sharing layers over PCIe has to be worth it
    return _ORDER[size.verdict], -size.usual.requests.low * (0.5 if slow else 1)


def _ways(
    options: tuple[Layout, ...], candidate: Candidate, target: Target, request: Request, workload: str
) -> Iterator[Way]:
    """Every layout as one would like it; then with small steps, with more of the GPU, and with an 8-bit cache."""
    smaller: KvDtype = "q8_0" if "layers" in candidate.facts.parallel else "fp8"
    types: list[KvDtype] = ["bf16"]
    if smaller == "q8_0" or kv_fp8(candidate.facts, candidate.version, target):
        types.append(smaller)
    usual, share = batched_tokens(workload, target.gib), request.utilization or candidate.facts.utilization
    sizes = [(usual, share)]
    if usual > SMALL_STEP:
        sizes.append((SMALL_STEP, share))
    if LEAST < share < MOST and not request.utilization:
        sizes += [(SMALL_STEP, LEAST), (SMALL_STEP, MOST)]
    for kv_dtype in types:
        for batched, utilization in sizes:
            for layout in options:
                yield Way(layout, kv_dtype, batched, utilization)


def _name(layout: Layout) -> str:
    parts = {"tensor parallel": layout.tensor, "pipeline stages": layout.pipeline, "copies": layout.copies}
    return ", ".join(f"{name} {count}" for name, count in parts.items() if count > 1) or "one GPU"


def batched_tokens(workload: str, gib: float) -> int:
    """Tokens of one step: large steps for throughput, small ones where running answers must not wait for prompts.

    2048 is the engines' default on smaller GPUs, 8192 from 70 GiB on.
    """
    if gib < 70 or workload == "interactive":
        return SMALL_STEP
    return 16384 if workload == "batch" else 8192


def _size(candidate: Candidate, model: Model, target: Target, request: Request, way: Way) -> Size:
    layout = way.layout
    wanted = math.ceil(request.concurrency / layout.copies)
    sequences = math.ceil(wanted / _ROUND) * _ROUND if target.gpus else wanted
    parallel = Parallel(layout.tensor, layout.pipeline, layout.experts)
    load = Load(
        context=request.context,
        concurrency=1 if request.typical else wanted,
        parallel=parallel,
        kv_dtype=way.kv_dtype,
        sequences=sequences,
        batched_tokens=max(way.batched, sequences),
        utilization=way.utilization,
        extra=model.surplus // parallel.gpus,
    )
    usual = min(request.typical or request.context, request.context)
    one = plan_load(candidate, model, target, load)
    many = plan_load(candidate, model, target, replace(load, context=usual, concurrency=wanted))
    verdict = max(one.verdict, many.verdict, key=lambda name: _ORDER[name])
    cache = max(one.sequence * load.concurrency, many.sequence * wanted)
    reason = (one if _ORDER[one.verdict] >= _ORDER[many.verdict] else many).reason
    return Size(way, load, one, many, verdict, reason, needed_memory(one, cache), sequences)


def plan_load(candidate: Candidate, model: Model, target: Target, load: Load) -> MemoryPlan:
    """The memory plan of one load."""
    device = Device(target.memory if target.gpus else _UNBOUNDED, target.capability)
    return plan_memory(candidate.facts.budget, known_version(candidate), model.shape, model.weights, device, load)


def cures(candidate: Candidate, model: Model, target: Target, size: Size) -> str:
    """What would make it fit, each planned again; empty when nothing was found."""
    smaller: tuple[KvDtype, ...] = ("fp8",) if kv_fp8(candidate.facts, candidate.version, target) else ()
    means = Means(smaller, target.gpus, bool(model.shape.quantization))
    found = find_cures(
        candidate.facts.budget,
        known_version(candidate),
        model.shape,
        model.weights,
        Device(target.memory, target.capability),
        size.load,
        means,
    )
    return cure_text(found) if found else ""


def known_version(candidate: Candidate) -> str:
    """Builds without versions that compare (``b11669``) are planned as the newest."""
    return candidate.version if candidate.version[:1].isdigit() else ""


def needed_memory(plan: MemoryPlan, cache: float) -> int:
    """Bytes of a GPU that suffice for a plan with that much cache, by the pessimistic bounds."""
    spent = plan.weights + plan.activation.high + plan.graphs.high + plan.runtime.high + cache
    share = min(max(plan.budget.low / plan.total if plan.total else 0, 0.5), 1.0)
    beside = plan.beside.high / (1 - share) if share < 1 else spent + plan.beside.high
    return math.ceil(min(max(spent / share, beside), max(plan.total, spent / share)))


def gib_text(count: float) -> str:
    """``12.3 GiB``."""
    return f"{count / GIB:.1f} GiB"
