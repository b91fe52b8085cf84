"""Partial offload of llama.cpp: how many layers fit on a GPU when not all do, and what that does to the speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airbundle.memory.kv import KvLayout, held_blocks, layer_state_bytes, token_bytes
from airbundle.memory.shape import Attention, ModelShape
from airbundle.memory.weights import WeightPlan
from airbundle_onsite.contract.record import record


@record
class Offload:
    """Layers on the GPU.

    Attributes:
        layers: value of ``--gpu-layers``: repeating layers from the last one, and one more for the output layer.
        most: value with which everything is on the GPU.
        on_gpu: bytes of their weights and caches.
        on_host: bytes that stay in the host's memory.
    """

    layers: int
    most: int
    on_gpu: int
    on_host: int


@record
class LayerSizes:
    """Bytes of a model's weights by where they are needed.

    Attributes:
        layers: of each repeating layer.
        embedding: of the table that turns tokens into vectors, which stays on the host.
        output: of what follows the last layer; where it is tied to the embedding, a second copy of that.
    """

    layers: tuple[int, ...]
    embedding: int
    output: int


def plan_offload(
    shape: ModelShape, weights: WeightPlan, context: int, slots: int, free: float, layout: KvLayout
) -> Offload:
    """`fill_gpu` with the sizes of a weight plan."""
    return fill_gpu(shape, _sizes(shape, weights), context, slots, free, layout)


def fill_gpu(shape: ModelShape, sizes: LayerSizes, context: int, slots: int, free: float, layout: KvLayout) -> Offload:
    """Fill a GPU from the last layer on, each with its cache for all slots, as llama.cpp does.

    Args:
        shape, sizes: of the model.
        context, slots: tokens of each request, and how many are served at once.
        free: bytes of the GPU beside the compute buffer and the CUDA context.
        layout: of the cache, with ``slots`` paging.
    """
    caches = [_cache(shape, index, context, slots, layout) for index in range(shape.layers)]
    costs = [sizes.output, *(size + cache for size, cache in zip(sizes.layers, caches, strict=True))]
    return _fill(costs, sizes.embedding, free)


def _sizes(shape: ModelShape, weights: WeightPlan) -> LayerSizes:
    held = [0] * shape.layers
    outside = embedding = 0
    for parameter in weights.parameters:
        if parameter.layer >= 0:
            held[parameter.layer] += parameter.total
        elif parameter.role == "vocab":
            embedding += parameter.total
        else:
            outside += parameter.total
    return LayerSizes(tuple(held), embedding, outside + (embedding if weights.tied else 0))


def sizes_from(facts: Mapping[str, str], shape: ModelShape, size: int) -> LayerSizes:
    """The sizes that a lock's facts of a GGUF header tell; by the shape, when they do not tell them.

    Args:
        facts: of the locked model; see `airbundle.gguf.layer_facts`.
        shape: of the model.
        size: bytes of all its weights.
    """
    listed = [int(word) for word in facts.get("layer_bytes", "").split(",") if word.isdecimal()]
    if len(listed) >= shape.layers > 0:
        return LayerSizes(tuple(listed[: shape.layers]), int(facts["embedding_bytes"]), int(facts["output_bytes"]))
    table, layer = shape.vocab * shape.hidden, sum(_parameters(shape))
    each = size / max(1, 2 * table + shape.layers * layer)  # bytes of a parameter, with an output layer of its own
    return LayerSizes((round(layer * each),) * shape.layers, round(table * each), round(table * each))


def _parameters(shape: ModelShape) -> tuple[float, float]:
    """Parameters of one layer: those that every token passes, and those of experts that most tokens do not."""
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    if not shape.experts:
        return attention + 3 * shape.hidden * (shape.dense or 4 * shape.hidden), 0
    used = 3 * shape.hidden * (shape.active + shape.shared)
    every = 3 * shape.hidden * (shape.experts * shape.expert_width + shape.shared)
    return attention + used, every - used


# Bytes a second that a processor reads weights with, from two channels of a desktop to twelve of a server. Between them
# lies a factor of five, and what the site has is not known before its fingerprint is.
_HOST_RATE = (40e9, 200e9)
_EFFICIENCY = 0.7  # share of a data sheet's bandwidth that generation reaches on a GPU
_CLASSES = ((20.0, "as fast as people read, and faster"), (6.0, "about as fast as people read"), (1.0, "slow"))


def token_rate(offload: Offload, shape: ModelShape, bandwidth: int) -> tuple[float, float]:
    """Tokens a second of one request alone, from bad to good: every token reads the weights that it passes once.

    Args:
        offload: what is where.
        shape: of the model; of experts, only those are read that a token is sent to.
        bandwidth: bytes a second of the GPU's memory; 0 when it is not known, which counts as no time.
    """
    used, idle = _parameters(shape)
    share = used / (used + idle)
    on_gpu = share * offload.on_gpu / (bandwidth * _EFFICIENCY) if bandwidth else 0.0
    slow, fast = (1 / (on_gpu + share * max(1, offload.on_host) / rate) for rate in _HOST_RATE)
    return slow, fast


def speed_text(rate: tuple[float, float]) -> str:
    """``about 2 to 9 tokens a second for one request alone: slow``; the word is for the worse of the two."""
    word = next((word for least, word in _CLASSES if rate[0] >= least), "for work that nobody waits for")
    return f"about {rate[0]:.2g} to {rate[1]:.2g} tokens a second for one request alone: {word}"


def _fill(costs: Sequence[int], embedding: int, free: float) -> Offload:
    on_gpu = layers = 0
    for cost in reversed(costs):
        if on_gpu + cost > free:
            break
        on_gpu, layers = on_gpu + cost, layers + 1
    return Offload(layers, len(costs), on_gpu, embedding + sum(costs) - on_gpu)


def _cache(shape: ModelShape, index: int, context: int, slots: int, layout: KvLayout) -> int:
    size = 0.0
    for cache in shape.caches[index]:
        if isinstance(cache, Attention):
            blocks = held_blocks(cache, context, layout, layout.block)
            size += blocks * layout.block * token_bytes(cache, layout)
        else:
            size += layer_state_bytes(cache, layout)
    return round(size * slots)
