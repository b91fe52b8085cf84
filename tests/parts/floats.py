"""Floating point weights as models have them: normal values of a usual scale, in several formats."""

from __future__ import annotations

import array
import random
import struct


def normal(count: int, seed: int = 1, scale: float = 0.02) -> array.array[float]:
    """That many values, as fp32."""
    source = random.Random(seed)
    return array.array("f", (source.gauss(0, scale) for _ in range(count)))


def bf16(values: array.array[float]) -> bytes:
    """The upper half of each."""
    raw, made = values.tobytes(), bytearray(2 * len(values))
    made[0::2], made[1::2] = raw[2::4], raw[3::4]
    return bytes(made)


def fp16(values: array.array[float]) -> bytes:
    """Each rounded to half precision."""
    return struct.pack(f"<{len(values)}e", *values)
