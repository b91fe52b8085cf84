"""Partial offload of llama.cpp: how many layers fit on a GPU when not all do."""

from __future__ import annotations

from collections.abc import Sequence

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


def plan_offload(
    shape: ModelShape, weights: WeightPlan, context: int, slots: int, free: float, layout: KvLayout
) -> Offload:
    """Fill a GPU from the last layer on, each with its cache for all slots, as llama.cpp does.

    Args:
        shape, weights: of the model.
        context, slots: tokens of each request, and how many are served at once.
        free: bytes of the GPU beside the compute buffer and the CUDA context.
        layout: of the cache, with ``slots`` paging.
    """
    held = [0] * shape.layers
    outside = embedding = 0
    for parameter in weights.parameters:
        if parameter.layer >= 0:
            held[parameter.layer] += parameter.total
        elif parameter.role == "vocab":
            embedding += parameter.total
        else:
            outside += parameter.total
    costs = [size + _cache(shape, index, context, slots, layout) for index, size in enumerate(held)]
    # The output layer comes last; tied to the embedding it is a second copy of that.
    costs = [outside + (embedding if weights.tied else 0), *costs]
    return _fill(costs, embedding, free)


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
