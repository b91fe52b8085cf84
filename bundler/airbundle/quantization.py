"""How weights are stored, read from a model's own configuration or GGUF header. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airbundle.gguf import GgufHeader

KNOWN = (
    "aqlm",
    "auto-round",
    "awq",
    "bitnet",
    "bitsandbytes",
    "compressed-tensors",
    "fbgemm_fp8",
    "fp8",
    "gguf",
    "gptq",
    "hqq",
    "modelopt",
    "mxfp4",
    "quark",
    "torchao",
)
"""Methods whose names this module gives; another one is passed on as the configuration spells it."""

_ALIASES = {
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "intel/auto-round": "auto-round",
    "modelopt_fp4": "modelopt",
    "compressed_tensors": "compressed-tensors",
}

# general.file_type of a GGUF file: how its matrices are stored in the main.
_FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K"},
    **{19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL"},
    **{26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16"},
    **{36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE"},
}
_TENSOR_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K"},
    **{12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL"},
    **{21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0"},
    **{39: "MXFP4"},
}


def of_gguf(header: GgufHeader) -> str:
    """``gguf Q4_K_M``: the file's own word for it, else the type that most of its elements have."""
    named = _FILE_TYPES.get(header.metadata.get("general.file_type", -1), "")
    if not named and header.types:
        number = max(header.types, key=lambda kind: header.types[kind])
        named = _TENSOR_TYPES.get(number, f"type {number}")
    return f"gguf {named}".strip()


def of_config(config: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> str:
    """Method, then details: ``awq int4 g128``, ``compressed-tensors w4a16 g128``, ``modelopt nvfp4``; empty for none.

    Args:
        config: config.json.
        others: further files by name, of which ``hf_quant_config.json`` (ModelOpt), ``quantize_config.json`` (older
            GPTQ) and ``quant_config.json`` (older AWQ) are read where config.json says nothing.
    """
    found = _table(config)
    if found:
        return _described(found)
    optimized = others.get("hf_quant_config.json", {}).get("quantization")
    if isinstance(optimized, Mapping):
        return _modelopt(optimized)
    for name, method in (("quantize_config.json", "gptq"), ("quant_config.json", "awq")):
        if others.get(name):
            return _described({"quant_method": method, **others[name]})
    return ""


def method(quantization: str) -> str:
    """The first word: ``awq`` of ``awq int4 g128``."""
    return quantization.partition(" ")[0]


def _table(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``quantization_config`` (once ``compression_config``) of the model, or of the language model inside it."""
    inner = [config.get(key) for key in ("text_config", "llm_config", "language_config")]
    for place in (config, *(each for each in inner if isinstance(each, Mapping))):
        for key in ("quantization_config", "compression_config"):
            if isinstance(place.get(key), Mapping) and place[key]:
                return place[key]  # type: ignore[no-any-return]
    return {}


def _described(table: Mapping[str, Any]) -> str:
    named = str(table.get("quant_method") or "").lower()
    named = _ALIASES.get(named, named) or _guessed(table)
    if named in ("awq", "gptq", "auto-round"):
        bits = table.get("bits") or table.get("w_bit") or 4
        return _joined(named, f"int{bits}", _group(table.get("group_size") or table.get("q_group_size")))
    if named in ("fp8", "fbgemm_fp8"):
        block = table.get("weight_block_size")
        blocks = f"blocks {'x'.join(map(str, block))}" if isinstance(block, list) else ""
        return _joined(named, str(table.get("fmt") or ""), str(table.get("activation_scheme") or ""), blocks)
    if named == "bitsandbytes":
        if table.get("load_in_4bit") or table.get("_load_in_4bit"):
            return _joined(named, str(table.get("bnb_4bit_quant_type") or "4bit"))
        return _joined(named, "int8")
    if named == "modelopt":
        return _modelopt(table)
    return _compressed(table) if named == "compressed-tensors" else named


def _guessed(table: Mapping[str, Any]) -> str:
    if "config_groups" in table:
        return "compressed-tensors"
    if "desc_act" in table:
        return "gptq"
    return "modelopt" if "quant_algo" in table else "unnamed"


def _modelopt(table: Mapping[str, Any]) -> str:
    cache = str(table.get("kv_cache_quant_algo") or "").lower()
    return _joined("modelopt", str(table.get("quant_algo") or "").lower(), f"kv-{cache}" if cache else "")


def _compressed(table: Mapping[str, Any]) -> str:
    form = str(table.get("format") or "")
    for packed in ("nvfp4", "mxfp4"):
        if form.startswith(packed):
            return f"compressed-tensors {packed}"
    groups = table.get("config_groups")
    group = (
        next((each for each in groups.values() if isinstance(each, Mapping)), {}) if isinstance(groups, Mapping) else {}
    )
    weights, inputs = group.get("weights") or {}, group.get("input_activations") or {}
    if weights.get("type") == "float" and weights.get("num_bits") == 8:
        return "compressed-tensors fp8"
    if not weights:
        return "compressed-tensors"
    width = f"w{weights.get('num_bits', '?')}a{inputs.get('num_bits') or 16}"
    return _joined("compressed-tensors", width, _group(weights.get("group_size")))


def _group(size: Any) -> str:
    return f"g{size}" if isinstance(size, int) and size > 0 else ""


def _joined(*words: str) -> str:
    return " ".join(word for word in words if word)
