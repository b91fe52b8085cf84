"""What each layer does: which kind of attention or recurrence it has, and whether it has a feed-forward of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airbundle_onsite.errors import UsageError

# Roles: full, sliding, chunked (attention), delta, mamba, kda, lightning, conv (recurrence), mlp (neither).
# Several at once, as in Falcon-H1, are joined by "+".
_NAMES = {
    "full_attention": "full",
    "attention": "full",
    "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding",
    "local": "sliding",
    "global": "full",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "m": "mamba",
    "hybrid": "full+mamba",
    "moe": "mlp",
    "mlp": "mlp",
    "conv": "conv",
    "short_conv": "conv",
}
_LETTERS = {"M": "mamba", "*": "full", "-": "mlp", "E": "mlp"}


def layer_roles(text: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """A role for each layer.

    Keys read, in this order: ``layer_types``, ``layers_block_type``, ``hybrid_layer_pattern`` (1: windowed),
    ``hybrid_override_pattern`` (one letter a layer), ``block_configs`` (searched architectures),
    ``linear_attn_config``, ``attn_type_list``, ``attn_layer_period``, ``attn_layer_indices``,
    ``full_attention_interval``, ``no_rope_layers``, ``sliding_window_pattern``, ``max_window_layers``. A bare
    ``sliding_window`` does not say which layers it holds for: all are charged as full.

    Raises:
        UsageError: a layer type is not known, or fewer are listed than there are layers.
    """
    for read in (_listed, _searched, _by_period, _windowed):
        found = read(text, layers)
        if found is None:
            continue
        if len(found) < layers:
            raise UsageError(f"the configuration lists {len(found)} layer types for {layers} layers")
        return found[:layers]
    if not text.get("num_attention_heads"):
        return ("mamba",) * layers
    both = bool(text.get("mamba_d_ssm"))  # attention and Mamba side by side
    return (("full+mamba" if both else "full"),) * layers


def _listed(text: Mapping[str, Any], layers: int) -> tuple[str, ...] | None:
    listed = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(listed, list):
        unknown = sorted({str(name) for name in listed} - set(_NAMES))
        if unknown:
            raise UsageError(
                f"layer types {', '.join(unknown)} are not known", remedy="use a version of airbundle that knows them"
            )
        # Where attention is as usual and nothing windowed, a list of one kind says nothing about Mamba beside it.
        beside = "+mamba" if text.get("mamba_d_ssm") and set(listed) <= {"full_attention", "attention"} else ""
        return tuple(_linear(text, _NAMES[str(name)]) + beside for name in listed)
    flags = text.get("hybrid_layer_pattern")
    if isinstance(flags, list):
        return tuple("sliding" if flag else "full" for flag in flags)
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        letters = pattern.replace("|", "")
        unknown = sorted(set(letters) - set(_LETTERS))
        if unknown:
            raise UsageError(f"hybrid_override_pattern has unknown layer letters: {' '.join(unknown)}")
        return tuple(_LETTERS[letter] for letter in letters)
    return None


def _linear(text: Mapping[str, Any], role: str) -> str:
    """``linear_attention`` names several recurrences; the keys beside it tell which."""
    if role != "linear":
        return role
    if text.get("linear_num_value_heads"):
        return "delta"
    if isinstance(text.get("linear_attn_config"), Mapping):
        return "kda"
    if text.get("mamba_n_heads") or text.get("mamba_d_state"):
        return "mamba"
    return "lightning"


def _searched(text: Mapping[str, Any], layers: int) -> tuple[str, ...] | None:
    blocks = text.get("block_configs")
    if not isinstance(blocks, list):
        return None
    skipped = ("no_op", "replace_with_linear")
    parts = [block.get("attention") or {} for block in blocks if isinstance(block, Mapping)]
    return tuple("mlp" if any(part.get(key) for key in skipped) else "full" for part in parts)


def _by_period(text: Mapping[str, Any], layers: int) -> tuple[str, ...] | None:
    numbers = range(layers)
    kda = text.get("linear_attn_config")
    if isinstance(kda, Mapping) and kda.get("kda_layers"):
        return tuple("kda" if number + 1 in kda["kda_layers"] else "full" for number in numbers)
    if isinstance(text.get("attn_type_list"), list):
        return tuple("full" if kind else "lightning" for kind in text["attn_type_list"])
    if text.get("attn_layer_period"):
        period, offset = int(text["attn_layer_period"]), int(text.get("attn_layer_offset", 0))
        return tuple("full" if number % period == offset else "mamba" for number in numbers)
    if isinstance(text.get("attn_layer_indices"), list) and text.get("mamba_d_state"):
        return tuple("full" if number in text["attn_layer_indices"] else "mamba" for number in numbers)
    if text.get("full_attention_interval"):
        period = int(text["full_attention_interval"])
        return tuple("full" if (number + 1) % period == 0 else _linear(text, "linear") for number in numbers)
    return None


def _windowed(text: Mapping[str, Any], layers: int) -> tuple[str, ...] | None:
    numbers = range(layers)
    if text.get("attention_chunk_size"):
        interval = int(text.get("no_rope_layer_interval") or 0)
        flags = text.get("no_rope_layers") or [int((number + 1) % interval != 0) for number in numbers if interval]
        return tuple("chunked" if flag else "full" for flag in flags) if flags else None
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return None
    pattern = text.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 0:
        return tuple("sliding" if (number + 1) % pattern else "full" for number in numbers)
    if isinstance(pattern, str) and pattern:
        return tuple("full" if pattern[number % len(pattern)] in "Gg" else "sliding" for number in numbers)
    if text.get("use_sliding_window") and text.get("max_window_layers") is not None:
        return tuple("full" if number < int(text["max_window_layers"]) else "sliding" for number in numbers)
    return None
