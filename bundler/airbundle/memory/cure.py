"""What would make a load fit: every change named here was planned again, and is runnable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from airbundle.memory.budget import GIB, Device, Load, MemoryPlan, plan_memory
from airbundle.memory.kv import KvDtype
from airbundle.memory.parallel import Parallel, parallel_problems
from airbundle.memory.shape import ModelShape
from airbundle.memory.weights import Parameter, WeightPlan
from airbundle_onsite.contract.record import record

Replan = Callable[[Load, WeightPlan], MemoryPlan]

_SEQUENCES, _BATCHES = (256, 64, 16), (8192, 4096, 2048)
_BITS = (8, 4)
# Bits per weight of a usual quantised model, scales included.
_STORED_BITS = {8: 8.25, 4: 4.5}


@record
class Cure:
    """One change that makes the load runnable.

    Attributes:
        text: for people, as "with …".
        load: what to serve then.
        bits: of the weights, when it takes a quantised model; 0 for the same one.
        plan: what was planned with it.
    """

    text: str
    load: Load
    bits: int
    plan: MemoryPlan


@record
class Means:
    """What may be changed.

    Attributes:
        kv_dtypes: other types for the cache, which the engine and the GPU have.
        gpus: how many GPUs there are.
        quantized: whether the model is quantised already.
    """

    kv_dtypes: tuple[KvDtype, ...] = ("fp8",)
    gpus: int = 1
    quantized: bool = False


def find_cures(
    engine: str, version: str, shape: ModelShape, weights: WeightPlan, device: Device, load: Load, means: Means
) -> tuple[Cure, ...]:
    """Single changes first, from the least to the most intrusive; then pairs, if no single one suffices.

    Raises:
        UsageError: see `plan_memory`.
    """

    def replan(changed: Load, held: WeightPlan) -> MemoryPlan:
        return plan_memory(engine, version, shape, held, device, changed)

    given = replan(load, weights)
    if given.verdict == "runnable":
        return ()
    slots = given.sequences == load.concurrency and not load.sequences
    settings = tuple(_settings(load, given, slots))
    single = [*settings, *_caches(load, means)]
    found = [cure for text, changed in single if (cure := _tried(replan, text, changed, weights, 0)) is not None]
    more = (_tried(replan, text, changed, weights, 0) for text, changed in _spread(shape, load, means))
    found += [cure for cure in more if cure is not None][:1]
    found += [cure for cure in (_fewer(replan, load, given, weights), _shorter(replan, load, given, weights)) if cure]
    if not means.quantized:
        found += _quantised(replan, load, weights)
    return tuple(found) or tuple(_pairs(replan, shape, load, weights, means))


def _tried(replan: Replan, text: str, load: Load, weights: WeightPlan, bits: int) -> Cure | None:
    plan = replan(load, weights)
    if plan.verdict == "runnable":
        return Cure(text, load, bits, plan)
    share = _share(plan)
    if not share or load.utilization:
        return None
    smaller = replace(load, utilization=share)
    plan = replan(smaller, weights)
    text = f"{text} and a share of {share} of each GPU's memory"
    return Cure(text, smaller, bits, plan) if plan.verdict == "runnable" else None


def _share(plan: MemoryPlan) -> float:
    """The share of the GPU's memory that leaves enough beside the budget; 0 when the given one does."""
    free = plan.total * (1 - plan.utilization)
    if not 0 < free < plan.beside.high:
        return 0.0
    return int((1 - plan.beside.high / plan.total) * 100) / 100


def _settings(load: Load, given: MemoryPlan, slots: bool) -> Iterator[tuple[str, Load]]:
    """Smaller steps leave more for the cache, a smaller share more beside it."""
    if slots:
        return
    share = _share(given)
    if share:
        yield f"a share of {share} of each GPU's memory", replace(load, utilization=share)
    lower = next((size for size in _BATCHES if size < given.batched_tokens), 0)
    if lower:
        yield f"{lower} batched tokens a step instead of {given.batched_tokens}", replace(load, batched_tokens=lower)
    fewer = next((size for size in _SEQUENCES if size < given.sequences and size >= load.concurrency), 0)
    if fewer:
        yield f"{fewer} sequences a step instead of {given.sequences}", replace(load, sequences=fewer)
    if lower and fewer:
        both = replace(load, batched_tokens=_BATCHES[-1], sequences=fewer)
        yield f"{_BATCHES[-1]} batched tokens and {fewer} sequences a step", both


def _caches(load: Load, means: Means) -> Iterator[tuple[str, Load]]:
    if load.kv_dtype == "bf16":
        for dtype in means.kv_dtypes:
            yield f"a key-value cache in {dtype}", replace(load, kv_dtype=dtype)


def _spread(shape: ModelShape, load: Load, means: Means) -> Iterator[tuple[str, Load]]:
    """More of the GPUs there are, then more than there are."""
    tensor, pipeline = load.parallel.tensor, load.parallel.pipeline
    for factor in (2, 4, 8, 16):
        parallel = Parallel(tensor * factor, pipeline, load.parallel.experts)
        if parallel.tensor > 16 or parallel_problems(shape, parallel):
            continue
        count = parallel.gpus
        where = "" if count <= means.gpus else f", {count - means.gpus} more than there are"
        yield f"tensor parallel {parallel.tensor} ({count} GPUs{where})", replace(load, parallel=parallel)


def _fewer(replan: Replan, load: Load, given: MemoryPlan, weights: WeightPlan) -> Cure | None:
    """As many requests at once as fit at full length."""
    number = min(int(given.requests.low), load.concurrency - 1)
    while number >= 1:
        many = f"{number} requests" if number > 1 else "one request"
        cure = _tried(replan, f"{many} of {load.context} tokens at once", _with(load, number), weights, 0)
        if cure:
            return cure
        number -= max(1, number // 10)
    return None


def _with(load: Load, concurrency: int) -> Load:
    return replace(load, concurrency=concurrency)


def _shorter(replan: Replan, load: Load, given: MemoryPlan, weights: WeightPlan) -> Cure | None:
    """As long a context as fits for all requests; rounded down where it is long enough for that not to matter."""
    tokens = given.max_context
    for step in (1024, 256, 1):
        rounded = tokens // step * step
        if 0 < rounded < load.context:
            text = f"a context of {rounded} tokens for {load.concurrency} requests"
            cure = _tried(replan, text, replace(load, context=rounded), weights, 0)
            if cure:
                return cure
    return None


def _quantised(replan: Replan, load: Load, weights: WeightPlan) -> list[Cure]:
    for bits in _BITS:
        smaller = scaled(weights, _STORED_BITS[bits] / 16)
        size = smaller.total / GIB
        cure = _tried(replan, f"a model quantised to {bits} bits ({size:.1f} GiB of weights)", load, smaller, bits)
        if cure:
            return [cure]
    return []


def scaled(weights: WeightPlan, factor: float) -> WeightPlan:
    """The weights with all layers' matrices `factor` times as large; embeddings and copied parts stay as they are."""

    def smaller(parameter: Parameter) -> Parameter:
        if parameter.role != "divided":
            return parameter
        return replace(
            parameter,
            divided=round(parameter.divided * factor),
            by_kv_head=round(parameter.by_kv_head * factor),
            experts=round(parameter.experts * factor),
        )

    return replace(weights, parameters=tuple(smaller(parameter) for parameter in weights.parameters))


def _pairs(replan: Replan, shape: ModelShape, load: Load, weights: WeightPlan, means: Means) -> Iterator[Cure]:
    """A quantised model or more GPUs, each with as long a context or as many requests as then fit."""
    bases: list[tuple[str, Load, WeightPlan, int]] = []
    for bits in () if means.quantized else _BITS:
        bases.append((f"a model quantised to {bits} bits", load, scaled(weights, _STORED_BITS[bits] / 16), bits))
    bases += [(text, changed, weights, 0) for text, changed in _spread(shape, load, means)]
    for text, changed, held, bits in bases:
        plan = replan(changed, held)
        for second in (_fewer, _shorter):
            cure = second(replan, changed, plan, held)
            if cure:
                yield replace(cure, text=f"{text}, and {cure.text}", bits=bits)
        if plan.requests.low >= 1:
            return


def cure_text(cures: Sequence[Cure]) -> str:
    """One sentence for people."""
    if not cures:
        return "nothing that was tried would make it fit: it needs GPUs with more memory, or a smaller model"
    return "it would run with " + "; or with ".join(cure.text for cure in cures)
