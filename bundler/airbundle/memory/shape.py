"""ModelShape: what a config.json says about attention and state, in the terms the formulas need.

Layer roles come from ``layer_types`` and the patterns that configurations use in its place. A bare
``sliding_window`` says nothing about which layers it holds for, so it is charged as full attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

Kind = Literal["full", "sliding", "chunked", "mla"]


@record
class Attention:
    """Layers that cache keys and values in the same way.

    Attributes:
        kind: ``full`` grows with the sequence, ``sliding`` and ``chunked`` up to `window` tokens, ``mla`` keeps one
            latent vector for all heads.
        layers: how many.
        kv_heads: key-value heads; 1 for mla.
        width: elements per head and token, keys and values together; for mla the latent's.
        window: tokens; 0 for full and mla.
    """

    kind: Kind
    layers: int
    kv_heads: int
    width: int
    window: int = 0


@record
class State:
    """Recurrent layers (Mamba, gated delta networks), whose state does not grow with the sequence.

    Attributes:
        layers: how many.
        conv: elements of a layer's convolution state, before division by the tensor parallel size.
        recurrent: elements of a layer's recurrent state, likewise.
    """

    layers: int
    conv: int
    recurrent: int


@record
class ModelShape:
    """What the formulas need of a model.

    Attributes:
        model_type: as the configuration says, for people.
        layers, hidden, heads, kv_heads, head_dim, vocab: as usual.
        intermediate: widest feed-forward width that one token passes (for experts: all that are active together).
        max_context: tokens the positions are made for; 0 when not said.
        attention, state: see their classes.
        experts: routed experts per layer, 0 for a dense model.
        dtype: of the unquantised weights: ``bfloat16``, ``float16`` or ``float32``.
        quantization: method named by the configuration, or empty.
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int
    max_context: int
    attention: tuple[Attention, ...]
    state: tuple[State, ...] = ()
    experts: int = 0
    dtype: str = "bfloat16"
    quantization: str = ""


def read_shape(config: Mapping[str, Any]) -> ModelShape:
    """Read a config.json; the language model of a multimodal one is taken from its ``text_config``.

    Raises:
        UsageError: a number that the formulas need is missing, naming it.
    """
    text = text_config(config)
    layers, hidden, heads = (_need(text, key) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    head_dim = int(text.get("head_dim") or hidden // heads)
    roles = layer_roles(text, layers)
    return ModelShape(
        model_type=str(text.get("model_type", "")),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        vocab=_need(text, "vocab_size"),
        intermediate=_active_width(text, hidden),
        max_context=int(text.get("max_position_embeddings") or 0),
        attention=_attention(text, roles, heads, head_dim),
        state=_state(text, roles),
        experts=expert_count(text),
        dtype=str(text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or "bfloat16"),
        quantization=str(quantization_config(config).get("quant_method", "")),
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a configuration."""
    inner = config.get("text_config") or config.get("llm_config") or config.get("language_config")
    return inner if isinstance(inner, Mapping) else config


def quantization_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``quantization_config`` of a configuration or of its language model; empty when there is none."""
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    return found if isinstance(found, Mapping) else {}


def expert_count(text: Mapping[str, Any]) -> int:
    """Routed experts per layer; 0 for a dense model."""
    for key in ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"):
        if text.get(key):
            return int(text[key])
    return 0


def layer_roles(text: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """A role for each layer: ``full``, ``sliding``, ``chunked``, ``linear``, ``mamba`` or ``mlp`` (no attention).

    Keys read, in this order: ``layer_types`` (the list of transformers), ``hybrid_override_pattern`` (Nemotron-H),
    ``layers_block_type``, ``attn_layer_period`` (Jamba), ``full_attention_interval`` (Qwen3-Next),
    ``sliding_window_pattern`` (Gemma 3: every n-th layer is full), ``no_rope_layers`` (Llama 4: 0 means full).
    """
    for found in (_listed_roles(text), _pattern_roles(text, layers)):
        if found is not None:
            if len(found) < layers:
                raise UsageError(f"the configuration lists {len(found)} layer types for {layers} layers")
            return found[:layers]
    if text.get("num_attention_layers") is None and _is_pure_mamba(text):
        return ("mamba",) * layers
    if _is_parallel_hybrid(text):
        return ("full+mamba",) * layers
    return ("full",) * layers


_ROLE_NAMES = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "hybrid": "full+mamba",
    "moe": "mlp",
    "mlp": "mlp",
}


def _listed_roles(text: Mapping[str, Any]) -> tuple[str, ...] | None:
    listed = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(listed, list):
        unknown = sorted({str(name) for name in listed} - set(_ROLE_NAMES))
        if unknown:
            raise UsageError(f"layer types {', '.join(unknown)} are not known", remedy="update airbundle")
        return tuple(_ROLE_NAMES[str(name)] for name in listed)
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return tuple({"M": "mamba", "*": "full"}.get(letter, "mlp") for letter in pattern)
    return None


def _pattern_roles(text: Mapping[str, Any], layers: int) -> tuple[str, ...] | None:
    if text.get("attn_layer_period"):
        period, offset = int(text["attn_layer_period"]), int(text.get("attn_layer_offset", 0))
        return tuple("full" if index % period == offset else "mamba" for index in range(layers))
    if text.get("full_attention_interval"):
        period = int(text["full_attention_interval"])
        return tuple("linear" if (index + 1) % period else "full" for index in range(layers))
    if text.get("attention_chunk_size") and isinstance(text.get("no_rope_layers"), list) and text["no_rope_layers"]:
        return tuple("chunked" if flag else "full" for flag in text["no_rope_layers"])
    if text.get("sliding_window") and text.get("sliding_window_pattern"):
        period = int(text["sliding_window_pattern"])
        return tuple("sliding" if (index + 1) % period else "full" for index in range(layers))
    return None


def _is_pure_mamba(text: Mapping[str, Any]) -> bool:
    return text.get("model_type") in ("mamba", "mamba2", "falcon_mamba")


def _is_parallel_hybrid(text: Mapping[str, Any]) -> bool:
    """Falcon-H1 has attention and Mamba side by side in every layer."""
    return text.get("model_type") == "falcon_h1"


def _attention(text: Mapping[str, Any], roles: tuple[str, ...], heads: int, head_dim: int) -> tuple[Attention, ...]:
    if text.get("kv_lora_rank"):
        latent = int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim", 0))
        return (Attention("mla", len(roles), 1, latent),)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    width = head_dim + int(text.get("v_head_dim") or head_dim)
    windows: dict[Kind, int] = {
        "full": 0,
        "sliding": int(text.get("sliding_window") or 0),
        "chunked": int(text.get("attention_chunk_size") or 0),
    }
    # Layers that reuse another layer's cache hold none (Gemma 3n and later say how many of the last ones do).
    own = roles[: len(roles) - int(text.get("num_kv_shared_layers") or 0)]
    counts = {kind: sum(kind in role.split("+") for role in own) for kind in windows}
    return tuple(Attention(kind, count, kv_heads, width, windows[kind]) for kind, count in counts.items() if count)


def _state(text: Mapping[str, Any], roles: tuple[str, ...]) -> tuple[State, ...]:
    found = []
    linear = sum(role == "linear" for role in roles)
    if linear:
        keys = _need(text, "linear_num_key_heads") * _need(text, "linear_key_head_dim")
        values = _need(text, "linear_num_value_heads") * _need(text, "linear_value_head_dim")
        kernel = _need(text, "linear_conv_kernel_dim")
        found.append(State(linear, (2 * keys + values) * (kernel - 1), values * _need(text, "linear_key_head_dim")))
    mamba = sum("mamba" in role.split("+") for role in roles)
    if mamba:
        found.append(_mamba_state(text, mamba))
    return tuple(found)


def _mamba_state(text: Mapping[str, Any], layers: int) -> State:
    size = _first(text, "mamba_d_state", "ssm_state_size", "state_size")
    kernel = _first(text, "mamba_d_conv", "conv_kernel")
    heads = int(text.get("mamba_n_heads") or text.get("mamba_num_heads") or text.get("num_heads") or 0)
    if heads:  # Mamba 2
        dim = _first(text, "mamba_d_head", "mamba_head_dim", "head_dim")
        groups = int(text.get("mamba_n_groups") or text.get("n_groups") or 1)
        inner = heads * dim
        return State(layers, (inner + 2 * groups * size) * (kernel - 1), heads * dim * size)
    expand = int(text.get("mamba_expand") or text.get("expand") or 2)
    inner = expand * _need(text, "hidden_size")
    return State(layers, inner * (kernel - 1), inner * size)


def _active_width(text: Mapping[str, Any], hidden: int) -> int:
    dense = int(text.get("intermediate_size") or 4 * hidden)
    active = int(text.get("num_experts_per_tok") or text.get("moe_topk") or 0)
    if not expert_count(text) or not active:
        return dense
    width = int(text.get("moe_intermediate_size") or dense)
    return max(active * width, dense if text.get("first_k_dense_replace") else 0)


def _need(text: Mapping[str, Any], key: str) -> int:
    value = text.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UsageError(
            f"config.json: {key} is {value!r}; a whole number above 0 is needed",
            remedy="use the model's own config.json",
        )
    return value


def _first(text: Mapping[str, Any], *keys: str) -> int:
    return next((_need(text, key) for key in keys if text.get(key)), 0) or _need(text, keys[0])
