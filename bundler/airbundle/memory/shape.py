"""ModelShape: what a config.json says about attention and state, in the terms the formulas need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from airbundle.memory.config import (
    believable_layers,
    expert_count,
    need,
    normalized,
    of_layer,
    quantization_config,
    reads_config,
    whole,
)
from airbundle.memory.roles import layer_roles
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

Kind = Literal["full", "sliding", "chunked", "mla"]


@record
class Attention:
    """How one layer caches keys and values.

    Attributes:
        kind: ``full`` grows with the sequence, ``sliding`` and ``chunked`` up to `window` tokens, ``mla`` keeps one
            latent vector for all heads.
        kv_heads: key-value heads; 1 for mla.
        key_dim, value_dim: elements per head and token; for mla the latent is in key_dim, and value_dim is 0.
        window: tokens; 0 for full and mla.
        fixed: bytes per token that no cache type changes (the index of sparse attention).
    """

    kind: Kind
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int = 0
    fixed: int = 0

    @property
    def grows(self) -> bool:
        """Whether it takes more memory with every token."""
        return self.kind in ("full", "mla")


@record
class State:
    """A recurrent layer (Mamba, gated delta network, short convolution); its state does not grow with the sequence.

    Attributes:
        heads: that tensor parallelism divides; 0 when any division is fine.
        conv: elements per past position of the convolution, without groups.
        kernel: past positions kept.
        group: elements of one group (both of B and C), 0 without groups.
        groups: how many; copied when they cannot be divided.
        recurrent: elements of the recurrent state.
        dtype: of the recurrent state, where the configuration or the kind fixes it; empty for the engine's choice.
    """

    heads: int
    conv: int
    kernel: int
    recurrent: int
    group: int = 0
    groups: int = 0
    dtype: str = ""


Cache = Attention | State


@record
class ModelShape:
    """What the formulas need of a model.

    Attributes:
        model_type, architecture: as the configuration says, for people and for engines' own lists.
        layers, hidden, heads, kv_heads, head_dim, vocab: as usual.
        dense: feed-forward width of dense layers; 0 when none has one, or all have experts.
        active: feed-forward width of the routed experts that one token passes, all together; 0 for a dense model.
        shared: feed-forward width of shared experts.
        max_context: tokens the positions are made for; 0 when not said.
        caches: for each layer what it keeps between steps.
        experts, experts_per_token: routed experts per layer, and how many of them a token passes; 0 for a dense model.
        draft_layers: extra layers for predicting several tokens, which an engine loads only when it speculates.
        latent: elements of MLA's up-projection per head, keys and values together; 0 without MLA.
        dtype: of the unquantised weights: ``bfloat16``, ``float16`` or ``float32``.
        quantization: method named by the configuration, or empty.
        group: elements of the quantised weights that share a scale along a row; 0 when that limits nothing.
        vision: whether the model has an encoder for images or sound.
    """

    model_type: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    dense: int
    active: int
    shared: int
    max_context: int
    caches: tuple[tuple[Cache, ...], ...]
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    draft_layers: int = 0
    latent: int = 0
    dtype: str = "bfloat16"
    quantization: str = ""
    group: int = 0
    vision: bool = False

    @property
    def attention(self) -> tuple[Attention, ...]:
        """Every attention layer's cache, in order."""
        return tuple(cache for layer in self.caches for cache in layer if isinstance(cache, Attention))

    @property
    def state(self) -> tuple[State, ...]:
        """Every recurrent layer's state, in order."""
        return tuple(cache for layer in self.caches for cache in layer if isinstance(cache, State))


@reads_config
def read_shape(config: Mapping[str, Any]) -> ModelShape:
    """Read a config.json; the language model of a multimodal one is taken from its ``text_config``.

    Raises:
        UsageError: a number that the formulas need is missing, naming it, or a kind of layer is not known.
    """
    text = normalized(config)
    layers, hidden = _layer_count(text), need(text, "hidden_size")
    heads = whole(text, "num_attention_heads")
    head_dim = whole(text, "head_dim") or (hidden // heads if heads else 0)
    roles = layer_roles(text, layers)
    experts = expert_count(text)
    active = experts and whole(text, "num_experts_per_tok", 1)
    expert_width = whole(text, "moe_intermediate_size") or whole(text, "intermediate_size")
    quantization = quantization_config(config)
    return ModelShape(
        model_type=str(text.get("model_type", "")),
        architecture=str((config.get("architectures") or [""])[0]),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(text, heads, 0),
        head_dim=head_dim,
        vocab=need(text, "vocab_size"),
        dense=max(dense_widths(text, layers), default=0),
        active=active * expert_width,
        shared=shared_width(text),
        max_context=max(whole(text, "max_position_embeddings"), 0),
        caches=tuple(_caches(text, roles, heads, head_dim, index) for index in range(layers)),
        experts=experts,
        experts_per_token=active,
        expert_width=expert_width if experts else 0,
        draft_layers=whole(text, "num_nextn_predict_layers"),
        latent=_latent(text),
        dtype=str(text.get("torch_dtype") or text.get("dtype") or "bfloat16").removeprefix("torch."),
        quantization=str(quantization.get("quant_method", "")),
        group=_group(quantization),
        vision=any(isinstance(config.get(key), Mapping) for key in ("vision_config", "audio_config")),
    )


def _layer_count(text: Mapping[str, Any]) -> int:
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return len(pattern.replace("|", ""))
    listed = text.get("layers_block_type")
    if not text.get("num_hidden_layers") and isinstance(listed, list):
        return len(listed)
    return believable_layers(need(text, "num_hidden_layers"), "config.json: num_hidden_layers")


def is_pure_mamba(text: Mapping[str, Any]) -> bool:
    """Whether every layer is a mixer of Mamba and nothing else: there is neither attention nor a feed-forward, and an
    ``intermediate_size`` is the mixer's own (transformers, modeling_mamba2.py)."""
    return not text.get("num_attention_heads") and set(layer_roles(text, 1)) == {"mamba"}


def dense_widths(text: Mapping[str, Any], layers: int) -> list[int]:
    """Feed-forward widths of the layers without experts, where they have one."""
    if is_pure_mamba(text):
        return []
    sparse = [is_sparse(text, index) for index in range(layers)]
    return [dense_width(text, index) for index in range(layers) if not sparse[index]]


def dense_width(text: Mapping[str, Any], index: int) -> int:
    """Feed-forward width of a dense layer."""
    for key in ("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size"):
        if text.get(key):
            return of_layer(text[key], index)
    return 4 * need(text, "hidden_size")


def shared_width(text: Mapping[str, Any]) -> int:
    """Feed-forward width of the shared experts of a layer; 0 without."""
    experts = expert_count(text)
    each = whole(text, "moe_intermediate_size") or whole(text, "intermediate_size")
    number = whole(text, "n_shared_experts")
    own = whole(text, "shared_expert_intermediate_size")
    if own:
        return own * max(number, 1)
    if text.get("intermediate_size_mlp") and experts:  # beside the routed one of Llama 4
        return each
    if text.get("enable_moe_block") and experts:  # a dense feed-forward beside the experts
        return whole(text, "intermediate_size")
    return number * each if experts else 0


def is_sparse(text: Mapping[str, Any], index: int) -> bool:
    """Whether a layer has routed experts, by the keys that configurations use to say so."""
    if not expert_count(text):
        return False
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.replace("|", "")[index] == "E"
    for key, name in (("mlp_layer_types", ("sparse", "moe")), ("layers_block_type", ("moe",))):
        listed = text.get(key)
        if isinstance(listed, list) and set(listed) & {"sparse", "moe"}:
            return listed[index] in name
    if isinstance(text.get("moe_layers"), list) and text["moe_layers"]:
        return index in text["moe_layers"]
    if index in (text.get("mlp_only_layers") or ()):
        return False
    if index < max(whole(text, "first_k_dense_replace"), whole(text, "num_dense_layers")):
        return False
    if "moe_layer_start_index" in text:
        return index >= whole(text, "moe_layer_start_index")
    if text.get("expert_layer_period"):
        return index % int(text["expert_layer_period"]) == int(text.get("expert_layer_offset", 0))
    frequency = text.get("moe_layer_freq") or 1
    if isinstance(frequency, list):
        return bool(frequency[index])
    step = whole(text, "interleave_moe_layer_step") or whole(text, "decoder_sparse_step") or 1
    return (index + 1) % step == 0 and index % int(frequency) == 0


def _kv_heads(text: Mapping[str, Any], heads: int, index: int) -> int:
    blocks = text.get("block_configs")
    if isinstance(blocks, list) and heads:
        part = blocks[index].get("attention") or {}
        return int(part.get("num_key_value_heads") or heads // int(part.get("n_heads_in_group") or 1))
    return of_layer(text.get("num_key_value_heads") or heads, index)


def _caches(
    text: Mapping[str, Any], roles: tuple[str, ...], heads: int, head_dim: int, index: int
) -> tuple[Cache, ...]:
    found: list[Cache] = []
    # Layers that reuse another layer's cache hold none; they are the last ones.
    reuses = index >= len(roles) - whole(text, "num_kv_shared_layers")
    mixed = "sliding" in roles
    for role in roles[index].split("+"):
        if role in ("full", "sliding", "chunked"):
            if not reuses:
                found.append(_attention(text, role, mixed, heads, head_dim, index))
        elif role != "mlp":
            found.append(_STATES[role](text))
    return tuple(found)


def _attention(text: Mapping[str, Any], role: str, mixed: bool, heads: int, head_dim: int, index: int) -> Attention:
    """`mixed`: the model has windowed and full layers, which may then differ in their heads."""
    if text.get("kv_lora_rank"):
        index_dim = whole(text, "index_head_dim")
        fixed = index_dim + -(-index_dim // 128) * 4  # 8-bit index keys with a scale per 128
        return Attention("mla", 1, need(text, "kv_lora_rank") + whole(text, "qk_rope_head_dim"), 0, fixed=fixed)
    kv_heads, key_dim = _kv_heads(text, heads, index), head_dim
    value_dim = whole(text, "v_head_dim") or head_dim
    if role == "sliding" and mixed:
        kv_heads = whole(text, "swa_num_key_value_heads") or kv_heads
        own = whole(text, "swa_head_dim")
        key_dim, value_dim = own or key_dim, whole(text, "swa_v_head_dim") or own or value_dim
    elif role == "full" and mixed:
        own = whole(text, "global_head_dim")
        key_dim, value_dim = own or key_dim, own or value_dim
        if text.get("attention_k_eq_v"):
            kv_heads = whole(text, "num_global_key_value_heads") or kv_heads
    window = {"sliding": "sliding_window", "chunked": "attention_chunk_size"}.get(role, "")
    tokens = whole(text, window) if window else 0
    kind: Kind = "full" if not tokens else "sliding" if role == "sliding" else "chunked"
    return Attention(kind, kv_heads, key_dim, value_dim, tokens)


def _delta(text: Mapping[str, Any]) -> State:
    key_dim, value_heads = need(text, "linear_key_head_dim"), need(text, "linear_num_value_heads")
    keys, values = need(text, "linear_num_key_heads") * key_dim, value_heads * need(text, "linear_value_head_dim")
    kernel = need(text, "linear_conv_kernel_dim") - 1
    return State(value_heads, 2 * keys + values, kernel, values * key_dim, dtype=_state_dtype(text))


def _mamba(text: Mapping[str, Any]) -> State:
    size, kernel = need(text, "mamba_d_state"), need(text, "mamba_d_conv") - 1
    heads = whole(text, "mamba_n_heads") or (0 if text.get("num_attention_heads") else whole(text, "num_heads"))
    if not heads and text.get("model_type") == "mamba2":
        heads = whole(text, "mamba_expand", 2) * need(text, "hidden_size") // whole(text, "head_dim", 64)
    inner = whole(text, "mamba_d_ssm") or whole(text, "mamba_expand", 2) * need(text, "hidden_size")
    if not heads:  # the first Mamba: no heads, no groups
        return State(0, inner, kernel, inner * size, dtype=_state_dtype(text))
    dim = whole(text, "mamba_d_head") or (whole(text, "head_dim") if not text.get("num_attention_heads") else 0)
    dim = dim or inner // heads
    groups = whole(text, "mamba_n_groups", 1)
    return State(heads, heads * dim, kernel, heads * dim * size, 2 * size, groups, _state_dtype(text))


def _kda(text: Mapping[str, Any]) -> State:
    own = text["linear_attn_config"]
    heads, dim = need(own, "num_heads"), need(own, "head_dim")
    return State(
        heads, 3 * heads * dim, whole(own, "short_conv_kernel_size", 4) - 1, heads * dim * dim, dtype="float32"
    )


def _lightning(text: Mapping[str, Any]) -> State:
    heads = need(text, "num_attention_heads")
    dim = whole(text, "head_dim") or need(text, "hidden_size") // heads
    return State(heads, 0, 0, heads * dim * dim)


def _conv(text: Mapping[str, Any]) -> State:
    return State(0, whole(text, "conv_dim") or need(text, "hidden_size"), need(text, "conv_L_cache") - 1, 0)


def _state_dtype(text: Mapping[str, Any]) -> str:
    """Type of the recurrent state where it is fixed.

    A one-letter layer pattern is the form of a family whose engines keep this state in 32 bits unless told otherwise.
    """
    named = text.get("mamba_ssm_cache_dtype") or text.get("mamba_ssm_dtype")
    return str(named or ("float32" if isinstance(text.get("hybrid_override_pattern"), str) else ""))


_STATES = {"delta": _delta, "mamba": _mamba, "kda": _kda, "lightning": _lightning, "conv": _conv}


def _latent(text: Mapping[str, Any]) -> int:
    if not text.get("kv_lora_rank"):
        return 0
    for key in ("qk_nope_head_dim", "v_head_dim"):
        if not text.get(key):
            raise UsageError(
                f"config.json: {key} is missing for its latent attention", remedy="use the model's own file"
            )
    return need(text, "kv_lora_rank") * (need(text, "qk_nope_head_dim") + need(text, "v_head_dim"))


def _group(quantization: Mapping[str, Any]) -> int:
    """Elements along a row that a rank cannot share with another."""
    block = quantization.get("weight_block_size")
    if isinstance(block, list) and block:
        return int(block[0])
    method = str(quantization.get("quant_method", ""))
    group = quantization.get("group_size") or quantization.get("q_group_size")
    return int(group) if method in ("awq", "gptq", "awq_marlin", "gptq_marlin") and isinstance(group, int) else 0
