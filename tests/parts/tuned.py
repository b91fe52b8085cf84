"""Models of many tensors, and fine-tunes of them that change a few: safetensors in shards, and GGUF."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Collection, Mapping

TENSOR = 128 * 1024
_HALF = 2  # bytes of an F16 element


def tensors(count: int, *, changed: Collection[int] = (), size: int = TENSOR) -> dict[str, bytes]:
    """Random tensors by name; those whose numbers are `changed` differ from the same call without."""
    return {
        f"layer.{number:03d}.weight": random.Random(f"{number} {number in changed}").randbytes(size)
        for number in range(count)
    }


def shards(made: Mapping[str, bytes], count: int, *, note: str = "") -> dict[str, bytes]:
    """Safetensors files by path under models/demo/; `note` goes into their headers, and so moves what follows."""
    names = sorted(made)
    per = -(-len(names) // count)
    return {
        f"models/demo/model-{number + 1:05d}-of-{count:05d}.safetensors": safetensors(
            {name: made[name] for name in names[number * per : (number + 1) * per]}, note
        )
        for number in range(count)
    }


def safetensors(made: Mapping[str, bytes], note: str = "") -> bytes:
    """One file of F16 tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", "note": note}}
    offset = 0
    for name, data in made.items():
        shape, end = [len(data) // _HALF], offset + len(data)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(made.values())


def gguf(made: Mapping[str, bytes], note: str = "") -> bytes:
    """One file of F16 tensors, with metadata of several kinds."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(made), 4)
    head += _text("general.architecture") + struct.pack("<I", 8) + _text("llama")
    head += _text("general.alignment") + struct.pack("<II", 4, 64)
    head += _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text(note)
    head += _text("tokenizer.ggml.scores") + struct.pack("<IIQff", 9, 6, 2, 0.5, 1.5)
    data = b""
    for name, content in made.items():
        head += _text(name) + struct.pack("<IQIQ", 1, len(content) // _HALF, 1, len(data))
        data += content + bytes(-len(content) % 64)
    return head + bytes(-len(head) % 64) + data


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()
