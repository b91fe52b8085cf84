"""Bytes per element of quantised matrices, from ``quantization_config``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airbundle.memory.config import quantization_config
from airbundle.memory.shape import ModelShape
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 2}  # a model published in 32 bits is served in 16
_GROUPED = ("awq", "gptq", "gptq_marlin", "awq_marlin", "auto-round", "intel/auto-round")


@record
class Packing:
    """Bytes per element, scales and zero points included.

    Attributes:
        linear: of ordinary projections.
        expert: of routed experts.
        attention: of attention's projections.
        plain: of everything that is not quantised.
    """

    linear: float
    expert: float
    attention: float
    plain: int


def packing(config: Mapping[str, Any], shape: ModelShape) -> Packing:
    """Read ``quantization_config``.

    Raises:
        UsageError: a method whose sizes are not known, or an unknown dtype.
    """
    plain = _DTYPE_BYTES.get(shape.dtype)
    if plain is None:
        raise UsageError(f"torch_dtype {shape.dtype!r} is not known", remedy=f"one of {', '.join(_DTYPE_BYTES)}")
    quantized = quantization_config(config)
    method = str(quantized.get("quant_method", "")).lower()
    if not method:
        return Packing(plain, plain, plain, plain)
    if method == "mxfp4":
        return Packing(plain, grouped(4, 32, scale_bytes=1), plain, plain)
    size = _size(method, quantized)
    if size is None:
        raise UsageError(
            f"quantization method {method!r}: its sizes cannot be computed from config.json alone",
            remedy="give the directory with the weights, whose headers are exact",
        )
    skipped = _skipped(quantized)
    plain_attention = any(re.search(r"attn|q_proj|qkv", name) for name in skipped)
    return Packing(size, size, plain if plain_attention else size, plain)


def _size(method: str, quantized: Mapping[str, Any]) -> float | None:
    if method in _GROUPED:
        bits = int(quantized.get("bits") or quantized.get("w_bit") or 4)
        group = int(quantized.get("group_size") or quantized.get("q_group_size") or 128)
        return grouped(bits, group, zero_points=True)
    if method in ("fp8", "fbgemm_fp8"):
        block = quantized.get("weight_block_size")
        return 1 + (4 / (block[0] * block[1]) if block else 0)
    if method == "bitsandbytes":
        four = quantized.get("load_in_4bit") or quantized.get("_load_in_4bit")
        return grouped(4, 64, scale_bytes=4) if four else 1.0
    if method in ("compressed-tensors", "modelopt", "modelopt_fp4"):
        return _compressed(quantized)
    return None


def grouped(bits: int, group: int, *, zero_points: bool = False, scale_bytes: int = 2) -> float:
    """Bytes per element of `bits`-bit values with a scale (and a zero point) for every `group` along a row."""
    per_group = scale_bytes + (bits / 8 if zero_points else 0)
    return bits / 8 + (per_group / group if group > 0 else 0)


def _compressed(quantized: Mapping[str, Any]) -> float:
    algorithm = str(quantized.get("quant_algo", "")).upper()
    if algorithm:
        return {"FP8": 1.0, "NVFP4": grouped(4, 16, scale_bytes=1), "W4A16_AWQ": grouped(4, 128)}.get(algorithm, 2.0)
    groups = quantized.get("config_groups") or {}
    weights = next((group.get("weights") for group in groups.values() if group.get("weights")), None) or {}
    bits, group = int(weights.get("num_bits", 16)), int(weights.get("group_size") or 0)
    scale = 1 if bits == 4 and weights.get("type") == "float" else 2
    return grouped(bits, group, scale_bytes=scale)


def _skipped(quantized: Mapping[str, Any]) -> list[str]:
    names = quantized.get("modules_to_not_convert") or quantized.get("ignore") or quantized.get("ignored_layers") or []
    return [str(name) for name in names]
