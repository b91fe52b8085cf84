"""Memory of one step's intermediate values: the larger of the widest layer and of sampling.

A layer's peak is in its feed-forward (gate, up and their product), in its experts (the same for all that a token
passes, and their outputs before they are added up) or in its attention, besides the residual and the normed input.
Sampling holds the logits of all sequences of a step several times over.
"""

from __future__ import annotations

from airbundle.memory.parallel import Parallel
from airbundle.memory.shape import ModelShape

_BYTES = 2
_MATRICES = 3  # gate, up and their product
_RESIDUALS = 3  # residual, normed input, output
# vLLM up-projects the latents of at most so many earlier tokens at a time, and asks for room for that when it starts.
_LATENT_TOKENS = 65536


def peak_bytes(shape: ModelShape, parallel: Parallel, tokens: int, sequences: int, logits: float) -> float:
    """Bytes at the peak of one step on the fullest rank.

    Args:
        shape, parallel: of the model.
        tokens, sequences: that one step takes at most.
        logits: bytes per sequence and vocabulary entry while sampling.
    """
    residual = _RESIDUALS * shape.hidden
    layer = max(_feed_forward(shape, parallel), _attention(shape, parallel)) + residual
    sampling = sequences * shape.vocab * logits + tokens * shape.hidden * _BYTES
    return max(tokens * layer * _BYTES, sampling)


def micro_batch_bytes(shape: ModelShape, tokens: int) -> float:
    """Bytes of llama.cpp's compute buffer: 32-bit values of one micro-batch, with logits for each of its tokens."""
    return 4 * tokens * (shape.vocab + 8 * shape.hidden)


def _feed_forward(shape: ModelShape, parallel: Parallel) -> float:
    dense = _MATRICES * shape.dense / parallel.tensor
    if not shape.experts:
        return dense
    active, shared = shape.active / parallel.tensor, _MATRICES * shape.shared / parallel.tensor
    routed = max(2 * active, shape.experts_per_token * shape.hidden) + active + shape.hidden
    return max(dense, routed + shared)


def _attention(shape: ModelShape, parallel: Parallel) -> float:
    widest = max((cache.kv_heads * (cache.key_dim + cache.value_dim) for cache in shape.attention), default=0)
    heads = 2 * shape.heads * max((cache.key_dim for cache in shape.attention if cache.kind != "mla"), default=0)
    states = max((2 * state.conv for state in shape.state), default=0)
    return max(widest + heads, states) / parallel.tensor


def latent_bytes(shape: ModelShape, parallel: Parallel, context: int, sequences: int, block: int) -> float:
    """What latent attention holds besides the checkpoint: a copy of its up-projections, and a work area.

    vLLM keeps both the matrix and its two absorbed halves, and room for the latents of up to 65,536 earlier tokens.
    """
    if not shape.latent:
        return 0
    layers = sum(cache.kind == "mla" for cache in shape.attention) / parallel.pipeline
    copies = layers * shape.latent * shape.heads / parallel.tensor * _BYTES
    width = max(cache.key_dim for cache in shape.attention)
    tokens = max(min(max(8 * context, 4 * sequences * block), _LATENT_TOKENS), sequences * block)
    return copies + tokens * width * _BYTES


def padding_bytes(shape: ModelShape, parallel: Parallel, experts: float) -> float:
    """What 4-bit experts grow by at most, when a kernel wants their sides as multiples of 256 and 128.

    Args:
        shape, parallel: of the model.
        experts: bytes of all its experts.
    """
    if shape.quantization != "mxfp4" or not shape.expert_width:
        return 0
    ranks = 1 if parallel.experts else parallel.tensor
    width = shape.expert_width / ranks
    grown = -(-shape.hidden // 256) * 256 * (-(-width // 128) * 128)
    return experts / parallel.gpus * (grown / (shape.hidden * width) - 1)
