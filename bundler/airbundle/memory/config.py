"""A configuration under the names that the formulas use, whatever its own are, with what it leaves out filled in.

Model families spell the same number in many ways (``n_embd``, ``d_model``, ``dim``), nest the language model of a
multimodal one, and leave out what their configuration class fills in. All of that is data here; no model is known by
its name.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from airbundle_onsite.errors import UsageError

DATA = Path(__file__).parent / "data"

MOST_LAYERS = 1024
"""Far beyond any model: a larger number is damage, and every layer is counted."""

_P = ParamSpec("_P")
_T = TypeVar("_T")
_NOT_UNDERSTOOD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")

# The name used here -> others for the same thing, first found wins.
_ALIASES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "num_blocks"),
    "hidden_size": ("n_embd", "d_model", "dim", "model_dim"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("n_head_kv", "n_kv_heads", "num_kv_heads", "multi_query_group_num", "num_query_groups"),
    "intermediate_size": ("n_inner", "ffn_hidden_size", "hidden_dim", "ffn_dim", "d_ff"),
    "vocab_size": ("padded_vocab_size", "n_vocab"),
    "head_dim": ("kv_channels", "attention_head_dim", "head_size"),
    "max_position_embeddings": ("n_positions", "seq_length", "max_seq_len", "n_ctx", "model_max_length"),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
    "num_experts_per_tok": ("moe_topk", "moe_k", "num_experts_per_token", "top_k_experts"),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_expert_intermediate_size": (
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "share_expert_dim",
    ),
    "expert_hidden_size": ("moe_latent_size", "routed_expert_hidden_size"),
    "num_nextn_predict_layers": ("num_mtp_layers", "mtp_num_hidden_layers"),
    "mamba_d_state": ("ssm_state_size", "state_size"),
    "mamba_d_conv": ("conv_kernel",),
    "mamba_expand": ("expand",),
    "mamba_n_heads": ("mamba_num_heads", "n_mamba_heads"),
    "mamba_d_head": ("mamba_head_dim", "mamba_headdim"),
    "mamba_n_groups": ("n_groups", "mamba_ngroups"),
    "mamba_dt_rank": ("time_step_rank",),
    "sliding_window": ("attention_window_size", "window_size"),
    "hidden_act": ("mlp_hidden_act", "hidden_activation", "activation_function"),
}

# Keys of caches whose sizes follow other rules than the ones here: compressed or block-sparse attention.
_UNKNOWN_CACHES = ("compress_ratios", "sparse_attention_config")

_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")


def reads_config(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """For what reads a configuration: a word where a number belongs, or a list too short, is a UsageError."""

    @functools.wraps(read)
    def reading(*arguments: _P.args, **named: _P.kwargs) -> _T:
        try:
            return read(*arguments, **named)
        except _NOT_UNDERSTOOD as error:
            raise UsageError(
                f"config.json is not understood: {type(error).__name__}: {error}",
                remedy="use the model's own config.json",
            ) from error

    return reading


def believable_layers(layers: int, what: str) -> int:
    """The number of layers. Raises UsageError when no model has as many; `what` says where the number stands."""
    if layers > MOST_LAYERS:
        raise UsageError(
            f"{what} is {layers}; at most {MOST_LAYERS} are believed", remedy="use the model as its makers published it"
        )
    return layers


def normalized(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's part of a configuration under the names above.

    Raises:
        UsageError: it is an encoder-decoder model, or one with a cache of a kind that is not known; naming the key.
    """
    if config.get("is_encoder_decoder"):
        raise UsageError(
            f"model_type {config.get('model_type')!r} is an encoder-decoder model; only decoders are planned",
            remedy="name a causal language model",
        )
    text = dict(text_config(config))
    unknown = [key for key in _UNKNOWN_CACHES if text.get(key)]
    if unknown:
        raise UsageError(
            f"config.json: {unknown[0]} describes a cache that cannot be computed", remedy="measure it with the engine"
        )
    for key in ("torch_dtype", "dtype", "tie_word_embeddings"):
        if text.get(key) is None and config.get(key) is not None:
            text[key] = config[key]
    for name, others in _ALIASES.items():
        if text.get(name) is None:
            found = next((text[other] for other in others if text.get(other) is not None), None)
            if found is not None:
                text[name] = found
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        text["num_key_value_heads"] = text.get("num_kv_heads") or text.get("multi_query_group_num") or 1
    for key, value in _defaults().get(str(text.get("model_type", "")), {}).items():
        if key not in text or (text[key] is None and key not in _MAY_BE_NULL):
            text[key] = value
    return text


# Null is a value of these ("no sliding window"), not a gap.
_MAY_BE_NULL = frozenset(
    {"sliding_window", "q_lora_rank", "attention_chunk_size", "mamba_d_ssm", "num_key_value_heads", "head_dim"}
)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a configuration, as it stands."""
    for key in _NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            return text_config(inner)
    return config


def quantization_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``quantization_config`` of a configuration or of its language model; empty when there is none."""
    for found in (config.get("quantization_config"), text_config(config).get("quantization_config")):
        if isinstance(found, Mapping):
            return found
    found = config.get("compression_config")
    return found if isinstance(found, Mapping) else {}


def expert_count(text: Mapping[str, Any]) -> int:
    """Routed experts per layer; 0 for a dense model."""
    for key in _EXPERTS:
        if text.get(key):
            return largest(text[key])
    return 0


def need(text: Mapping[str, Any], key: str) -> int:
    """A number that must be there.

    Raises:
        UsageError: it is not, or is not a whole number above 0.
    """
    value = text.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UsageError(
            f"config.json: {key} is {value!r}; a whole number above 0 is needed",
            remedy="use the model's own config.json",
        )
    return value


def whole(text: Mapping[str, Any], key: str, default: int = 0) -> int:
    """A number that may be missing or null; the first of a list with one entry."""
    value = text.get(key)
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def largest(value: Any) -> int:
    """The number, or the largest of a list of them."""
    return max(int(item) for item in value) if isinstance(value, list) else int(value)


def of_layer(value: Any, index: int) -> int:
    """The number for a layer, where a configuration may have one for all or a list."""
    return int(value[min(index, len(value) - 1)] if isinstance(value, list) else value or 0)


@cache
def _defaults() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads((DATA / "defaults.toml").read_text(encoding="utf-8"))


def is_quantised(config: Mapping[str, Any]) -> bool:
    """Whether a configuration says that its weights are quantised."""
    return bool(quantization_config(config).get("quant_method") or quantization_config(config).get("quant_algo"))
