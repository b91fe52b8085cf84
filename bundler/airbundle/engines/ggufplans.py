"""Memory of a GGUF model on llama.cpp, and the cases of it that launch plans are made for: all asked for, and less.

A model that is larger than the profile's GPUs is divided between them and the processor, unless the spec's policy is
that a downgrade fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airbundle.contract.lock import BundleLock, LockedModel
from airbundle.memory.budget import Device, Load, MemoryPlan, plan_memory
from airbundle.memory.ggufshape import shape_of_gguf
from airbundle.memory.kv import KvDtype, KvLayout
from airbundle.memory.offload import Offload, fill_gpu, sizes_from, speed_text, token_rate
from airbundle.memory.shape import ModelShape
from airbundle.memory.weights import Tensor, plan_weights
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError
from airbundle_onsite.units import human_bytes

MIB = 1 << 20
PROGRAM = 64 * MIB  # the interpreter or server itself, measured at 40 to 60 MiB
DRIVER = 512 * MIB  # what CUDA keeps for each process and GPU
_UNBOUNDED = 1 << 42  # bytes: the plan says what is needed, and the site what there is
_UBATCH = 512  # llama-server's own --ubatch-size
_MOST_PROMPTS = 8192 * MIB  # llama-server's own --cache-ram
_SHORTEST = 1024  # tokens of context below which no plan goes
_ENOUGH = 3  # plans, where the request can be cut down so far
_MOST_GPUS = 8
_SHARES: Mapping[KvDtype, float] = {"q8_0": 34 / 64, "q4_0": 18 / 64}  # of a 16-bit cache, where the shape is unknown
_ROOM = 0.95  # share of the GPU's memory that is planned with


@record
class Memory:
    """Bytes an engine needs, by what for. `exact` tells whether the weights' header was at hand."""

    weights: int
    kv_cache: int
    compute: int
    prompt_cache: int
    exact: bool

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.compute + self.prompt_cache + PROGRAM

    def on_each(self, gpus: int) -> int:
        """Bytes of each GPU: weights and cache are divided by layers, and every GPU has a compute buffer."""
        return -(-(self.weights + self.kv_cache) // gpus) + self.compute + DRIVER

    @property
    def beside_gpus(self) -> int:
        """Bytes of the host where the rest is on GPUs."""
        return self.prompt_cache + self.compute + PROGRAM


@record
class Case:
    """What a launch plan is for.

    Attributes:
        id: of the plan.
        context: tokens of each request; concurrency: requests at once.
        kv_dtype: of the cache; ``bf16`` for 16 bits of either kind.
        gpus: 0 for the CPU.
        memory: that it takes.
        given_up: of what was asked for; empty for nothing.
        offload: layers on the GPUs when not all of them fit; None for all.
    """

    id: str
    context: int
    concurrency: int
    kv_dtype: KvDtype
    gpus: int
    memory: Memory
    given_up: str = ""
    offload: Offload | None = None

    def reason(self, text: str) -> str:
        """A flag's reason, with what was given up."""
        return f"{text}; here {self.given_up}" if self.given_up else text

    @property
    def demand(self) -> tuple[int, int, int]:
        """What it asks of a host: GPUs, bytes of each, bytes of the host."""
        if not self.gpus:
            return 0, 0, self.memory.total
        if self.offload is not None:
            each = -(-self.offload.on_gpu // self.gpus) + self.memory.compute + DRIVER
            return self.gpus, each, self.memory.beside_gpus + self.offload.on_host
        return self.gpus, self.memory.on_each(self.gpus), self.memory.beside_gpus


def gpus_of(lock: BundleLock) -> int:
    """GPUs that are planned with; 0 for a profile without."""
    return (lock.spec.target.gpus or lock.profile.gpu.count) if lock.profile.gpu else 0


def estimate(
    lock: BundleLock, model: LockedModel, context: int = 0, concurrency: int = 0, kv_dtype: KvDtype = "bf16"
) -> Memory:
    """What serving takes, by the memory plan where the weights' header is at hand.

    Args:
        context, concurrency: 0 for what the spec asks for.
        kv_dtype: of the cache.
    """
    serving = lock.spec.serving
    load = Load(context or serving.context, concurrency or serving.concurrency, kv_dtype=kv_dtype)
    beside = [each for each in lock.models if each.role in ("draft", "adapter", "projector")]
    weights = _size(model)
    planned = _planned(model, load)
    if planned is not None:
        kv_cache, compute = int(planned.sequence * load.concurrency), int(planned.activation.high)
    else:
        # With no header at hand: a quarter of the weights for 4096 tokens, more than the usual models of grouped heads.
        kv_cache = int(weights * load.context * load.concurrency // (4 * 4096) * _SHARES.get(kv_dtype, 1))
        compute = weights // 4
    for draft in (each for each in beside if each.role == "draft"):
        own = _planned(draft, load)
        kv_cache += int(own.sequence * load.concurrency) if own else 0
        compute += int(own.activation.high) if own else 0
    prompts = min(kv_cache, _MOST_PROMPTS) // MIB * MIB
    return Memory(weights + sum(map(_size, beside)), kv_cache, compute, prompts, exact=planned is not None)


def _size(model: LockedModel) -> int:
    return sum(file.size for file in model.files if file.path.endswith(".gguf"))


def _planned(model: LockedModel, load: Load) -> MemoryPlan | None:
    """The memory plan of a model on a CPU; None when its header was not at hand."""
    shape = shape_of(model.facts)
    if shape is None:
        return None
    weights = plan_weights([Tensor("weights", _size(model))], shape, tied=True)
    return plan_memory("llama.cpp", "", shape, weights, Device(_UNBOUNDED), load)


def shape_of(facts: Mapping[str, str]) -> ModelShape | None:
    """The shape that a lock's facts of a GGUF header tell; None when they do not tell enough."""
    architecture = facts.get("architecture", "") or "model"
    metadata: dict[str, Any] = {
        f"{architecture}.{key}": _parsed(text) for key, text in facts.items() if key not in ("architecture", "config")
    }
    metadata |= {
        "general.architecture": architecture,
        "tokenizer.ggml.tokens": _parsed(facts.get("vocabulary", "0")),
    }
    try:
        return shape_of_gguf(metadata) if facts.get("attention.head_count") else None
    except (UsageError, ValueError, TypeError, IndexError):  # a header of a kind that the formulas do not know
        return None


def _parsed(text: str) -> Any:
    """A number, several, or the text itself."""
    words = [_number(word) for word in text.split(",")]
    if any(word is None for word in words):
        return text
    return words[0] if len(words) == 1 else tuple(words)


def _number(word: str) -> int | float | None:
    if word in ("True", "False"):
        return int(word == "True")
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return None


def cases(lock: BundleLock, model: LockedModel, smaller: tuple[KvDtype, ...], shortens: bool) -> tuple[Case, ...]:
    """All that was asked for, and less for hosts with less, in order of preference.

    On GPUs twice as many come second, as they give up nothing; half as many come last.

    Args:
        smaller: types of cache that may take the place of 16 bits.
        shortens: whether the context may be cut where nothing else is left.
    """
    gpus = gpus_of(lock)
    ladder = list(_ladder(lock, model, gpus, smaller, shortens))
    found = ladder
    if gpus and not lock.spec.target.gpus and 2 * gpus <= _MOST_GPUS:
        found[1:1] = _ladder(lock, model, 2 * gpus, smaller, shortens=False)[:1]
    if gpus > 1 and lock.profile.gpu is not None:
        room = int(lock.profile.gpu.memory * _ROOM)
        fewer = _ladder(lock, model, gpus // 2, smaller, shortens)
        found += [case for case in fewer if case.demand[1] <= room][:1]
    found += _divided(lock, model, gpus, ladder, smaller)
    return tuple(_distinct(found))


def _divided(
    lock: BundleLock, model: LockedModel, gpus: int, whole: Sequence[Case], smaller: tuple[KvDtype, ...]
) -> list[Case]:
    """Cases with some layers on the host, where the profile's GPUs hold no case with all of them.

    Raises:
        UsageError: the spec's policy refuses that, or the GPUs are of no use at all.
    """
    gpu, shape = lock.profile.gpu, shape_of(model.facts)
    if gpu is None or not gpus or shape is None:
        return []
    room = int(gpu.memory * _ROOM)
    if any(case.demand[1] <= room for case in whole):
        return []
    least = min(case.demand[1] for case in whole)
    against = (
        f"model {model.served_name} does not fit {gpus} GPU{'s' if gpus > 1 else ''} of profile {lock.profile.id}: "
        f"{human_bytes(least)} are needed of each at least, and {human_bytes(room)} can be had"
    )
    if lock.spec.serving.downgrade == "fail":
        raise UsageError(
            f'{against}; layers on the host are a downgrade, and serving.downgrade is "fail"',
            remedy='a smaller quantisation, more or larger GPUs, or serving.downgrade = "warn" for a slower service',
        )
    serving = lock.spec.serving
    steps: list[tuple[int, KvDtype]] = [(serving.concurrency, "bf16"), (1, (smaller or ("bf16",))[0])]
    found = [_part(lock, model, shape, gpus, room, slots, kv_dtype) for slots, kv_dtype in dict.fromkeys(steps)]
    useful = [case for case in found if case.offload is not None and case.offload.layers]
    if not useful:
        raise UsageError(
            f"{against}; not even one layer fits beside the compute buffers",
            remedy="name a profile without GPUs, larger GPUs, or a shorter serving.context",
        )
    return useful


def _part(
    lock: BundleLock, model: LockedModel, shape: ModelShape, gpus: int, room: int, slots: int, kv_dtype: KvDtype
) -> Case:
    case = _case(lock, model, gpus, lock.spec.serving.context, slots, kv_dtype)
    beside = case.memory.weights - _size(model)
    free = (room - case.memory.compute - DRIVER) * gpus - beside
    layout = KvLayout(kv_dtype, paging="slots", batched_tokens=_UBATCH, conv_bytes=4, state_bytes=4)
    made = fill_gpu(shape, sizes_from(model.facts, shape, _size(model)), case.context, slots, free, layout)
    made = dataclasses.replace(made, on_gpu=made.on_gpu + beside)
    assert lock.profile.gpu is not None
    rate = speed_text(token_rate(made, shape, lock.profile.gpu.bandwidth))
    where = f"{made.layers} of {made.most} layers on the GPU{'s' if gpus > 1 else ''}"
    told = f"{where}, and {human_bytes(made.on_host)} of the model on the host, which then sets the pace: {rate}"
    given = " and ".join(text for text in (case.given_up, told) if text)
    return dataclasses.replace(case, id=f"{case.id}-{made.layers}l", given_up=given, offload=made)


def _ladder(
    lock: BundleLock, model: LockedModel, gpus: int, smaller: tuple[KvDtype, ...], shortens: bool
) -> list[Case]:
    serving = lock.spec.serving
    context, concurrency = serving.context, serving.concurrency
    steps: list[tuple[int, int, KvDtype]] = [(context, concurrency, "bf16"), (context, -(-concurrency // 2), "bf16")]
    steps += [(context, 1, kv_dtype) for kv_dtype in smaller or ("bf16",)]
    steps = list(dict.fromkeys(steps))
    while shortens and len(steps) < _ENOUGH and steps[-1][0] // 2 >= _SHORTEST:
        steps.append((steps[-1][0] // 2, 1, steps[-1][2]))
    return [_case(lock, model, gpus, *step) for step in steps]


def _case(lock: BundleLock, model: LockedModel, gpus: int, context: int, concurrency: int, kv_dtype: KvDtype) -> Case:
    serving, given = lock.spec.serving, []
    name = f"gpu{gpus}" if gpus else "cpu"
    if concurrency < serving.concurrency:
        given.append(f"{concurrency} request{'s' if concurrency > 1 else ''} at once in place of {serving.concurrency}")
        name += f"-{concurrency}"
    if context < serving.context:
        given.append(f"{context} tokens in place of {serving.context}")
        name += f"-{context}t"
    if kv_dtype != "bf16":
        given.append(f"a cache in {kv_dtype} in place of 16 bits")
        name += f"-{kv_dtype.partition('_')[0]}"
    memory = estimate(lock, model, context, concurrency, kv_dtype)
    return Case(name, context, concurrency, kv_dtype, gpus, memory, " and ".join(given))


def _distinct(found: list[Case]) -> Iterator[Case]:
    """Without those that ask for as much as one before them: the site would never come to them."""
    kept: list[Case] = []
    for case in found:
        if not any(all(mine >= theirs for mine, theirs in zip(case.demand, one.demand, strict=True)) for one in kept):
            kept.append(case)
            yield case
