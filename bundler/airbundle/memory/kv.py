"""KV cache and recurrent state: bytes per token and per sequence, on one rank.

Formulas: full attention as vLLM's FullAttentionSpec (layers · key-value heads per rank · widths · bytes); sliding
windows with the batched-token term of vLLM's SlidingWindowSpec; latent attention is not divided by the tensor
parallel size; recurrent layers hold a fixed state per sequence.
"""

from __future__ import annotations

import math
from typing import Literal

from airbundle.memory.shape import Attention, ModelShape
from airbundle_onsite.contract.record import record

KvDtype = Literal["bf16", "fp8", "nvfp4", "q8_0", "q4_0"]

_BYTES: dict[KvDtype, float] = {
    "bf16": 2,  # float16 too
    "fp8": 1,
    "nvfp4": 0.5 + 1 / 16,  # one scale byte per 16 elements
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
}
_CONV_BYTES, _STATE_BYTES = 2, 4


@record
class KvLayout:
    """How an engine lays the cache out.

    Attributes:
        dtype: of the cache.
        tensor_parallel: ranks.
        block: tokens per block.
        batched_tokens: tokens the scheduler may add in one step; widens sliding windows.
    """

    dtype: KvDtype = "bf16"
    tensor_parallel: int = 1
    block: int = 16
    batched_tokens: int = 2048


def token_bytes(attention: Attention, layout: KvLayout) -> float:
    """Bytes that one token takes in all layers of one kind, on one rank."""
    heads = 1 if attention.kind == "mla" else math.ceil(attention.kv_heads / layout.tensor_parallel)
    return attention.layers * heads * attention.width * _BYTES[layout.dtype]


def growing_bytes(shape: ModelShape, layout: KvLayout) -> float:
    """Bytes per token of the layers whose cache grows with the sequence."""
    return sum(token_bytes(item, layout) for item in shape.attention if item.kind in ("full", "mla"))


def state_bytes(shape: ModelShape, layout: KvLayout) -> float:
    """Bytes of recurrent state per sequence, on one rank."""
    elements = ((item.layers, item.conv, item.recurrent) for item in shape.state)
    whole = sum(layers * (conv * _CONV_BYTES + recurrent * _STATE_BYTES) for layers, conv, recurrent in elements)
    return whole / layout.tensor_parallel


def sequence_bytes(shape: ModelShape, tokens: int, layout: KvLayout) -> float:
    """Bytes that one sequence of `tokens` takes, whole blocks, on one rank."""
    total = state_bytes(shape, layout)
    for item in shape.attention:
        if item.kind == "sliding" and item.window:
            held = min(item.window - 1 + layout.batched_tokens, tokens)
            blocks = math.ceil(held / layout.block) + 1
        elif item.kind == "chunked" and item.window:
            blocks = math.ceil(min(item.window + layout.batched_tokens, tokens) / layout.block)
        else:
            blocks = math.ceil(tokens / layout.block)
        total += blocks * layout.block * token_bytes(item, layout)
    return total
