"""KV cache and recurrent state: bytes per token and per block, on one rank.

Formulas: full attention as vLLM's FullAttentionSpec (key-value heads of the rank · (key + value width) · bytes);
sliding windows with the batched-token term of its SlidingWindowSpec; chunked attention as its
ChunkedLocalAttentionSpec; latent attention is not divided by the tensor parallel size; recurrent layers hold a fixed
state per sequence.
"""

from __future__ import annotations

import math
from typing import Literal

from airbundle.memory.parallel import Parallel, stages
from airbundle.memory.shape import Attention, Cache, ModelShape, State
from airbundle_onsite.contract.record import record

KvDtype = Literal["bf16", "fp8", "fp8_token", "int8_token", "nvfp4", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
Paging = Literal["grouped", "pooled", "slots"]

# Bytes per element. bf16 stands for float16 too; "_token" types keep a 4-byte scale per token and head besides.
_BYTES: dict[KvDtype, float] = {
    "bf16": 2,
    "fp8": 1,
    "fp8_token": 1,
    "int8_token": 1,
    "nvfp4": 1 / 2 + 1 / 16,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
}
_TOKEN_SCALE = 4
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@record
class KvLayout:
    """How an engine lays the cache out.

    Attributes:
        dtype: of the cache.
        parallel: how the model is spread.
        block: tokens per block.
        batched_tokens: tokens the scheduler may add in one step; widens windows.
        paging: ``grouped``: all layers share one pool of equal pages (vLLM); ``pooled``: a pool for each kind of layer
            (SGLang, TensorRT-LLM); ``slots``: the full length is set aside for every request (llama.cpp).
        window_share: with ``pooled``, size of the windowed layers' pool relative to the full ones', in tokens;
            0 for windows charged at what they hold.
        state_share: with ``pooled``, memory for recurrent states relative to that for tokens; 0 for as needed.
        conv_bytes, state_bytes: per element of convolution and recurrent states, where the model does not say.
        drafted: tokens predicted ahead by speculation; each keeps a recurrent state.
    """

    dtype: KvDtype = "bf16"
    parallel: Parallel = Parallel()
    block: int = 16
    batched_tokens: int = 2048
    paging: Paging = "grouped"
    window_share: float = 0.0
    state_share: float = 0.0
    conv_bytes: int = 2
    state_bytes: int = 2
    drafted: int = 0


def token_bytes(attention: Attention, layout: KvLayout) -> float:
    """Bytes that one token takes in one layer, on one rank."""
    ranks = layout.parallel.tensor
    heads = 1 if attention.kind == "mla" else math.ceil(attention.kv_heads / ranks)
    width = attention.key_dim + attention.value_dim
    scales = heads * 2 * _TOKEN_SCALE if layout.dtype in ("fp8_token", "int8_token") else 0
    return heads * width * _BYTES[layout.dtype] + scales + attention.fixed


def layer_state_bytes(state: State, layout: KvLayout) -> float:
    """Bytes of one sequence's state in one recurrent layer, on one rank."""
    ranks = layout.parallel.tensor
    groups = state.groups
    if groups and groups % ranks:
        groups = ranks  # each rank gets a copy of the group its heads need
    conv = (state.conv + groups * state.group) / ranks * (state.kernel + layout.drafted)
    recurrent = state.recurrent / ranks * _STATE_BYTES.get(state.dtype, layout.state_bytes)
    return conv * layout.conv_bytes + recurrent


def growing_bytes(shape: ModelShape, layout: KvLayout) -> float:
    """Bytes per token of all layers whose cache grows with the sequence, on the fullest rank."""
    return max(
        sum(token_bytes(cache, layout) for cache in caches if isinstance(cache, Attention) and cache.grows)
        for caches in stage_caches(shape, layout)
    )


def state_bytes(shape: ModelShape, layout: KvLayout) -> float:
    """Bytes of recurrent state per sequence, on the fullest rank."""
    return max(
        sum(layer_state_bytes(cache, layout) for cache in caches if isinstance(cache, State)) * (1 + layout.drafted)
        for caches in stage_caches(shape, layout)
    )


def held_blocks(attention: Attention, tokens: int, layout: KvLayout, block: int) -> int:
    """Blocks of one layer that a sequence of `tokens` holds at most."""
    if attention.kind == "sliding":
        held = min(attention.window - 1 + layout.batched_tokens, tokens)
        return math.ceil(held / block) + 1  # a window may begin inside a block
    if attention.kind == "chunked":
        return math.ceil(min(attention.window + layout.batched_tokens, tokens) / block)
    return math.ceil(tokens / block)


def stage_caches(shape: ModelShape, layout: KvLayout) -> list[list[Cache]]:
    """The caches of each pipeline stage's layers."""
    spans = stages(shape.layers, layout.parallel.pipeline)
    # Layers beyond the model's own, which draft tokens, are on the last stage.
    ends = [*(after for _, after in spans[:-1]), len(shape.caches)]
    return [
        [cache for layer in shape.caches[first:end] for cache in layer]
        for (first, _), end in zip(spans, ends, strict=True)
    ]
