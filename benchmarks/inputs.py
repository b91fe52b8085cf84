"""Synthetic inputs: GGUF models and image layers of any size, filled with what bf16 weights look like."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy

_BLOCK = 32 * 1024 * 1024
_STRING, _U32, _ARRAY = 8, 4, 9  # value types of the GGUF format
_F16 = 1  # tensor type
_ROW = 256  # numbers; tensors are that wide
_ALIGN = 32


@functools.cache
def _block(seed: int) -> bytes:
    values = numpy.random.default_rng(seed).standard_normal(_BLOCK // 2, dtype=numpy.float32) * 0.02
    return (values.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()


def weight_bytes(size: int, seed: int = 0) -> Iterator[bytes]:
    """`size` bytes of normally distributed bfloat16 numbers, in blocks; the same for the same seed."""
    block = _block(seed)
    while size > 0:
        yield block[: min(size, _BLOCK)]
        size -= _BLOCK


def write_gguf(path: Path, size: int, *, tensors: int = 1, changed: int = 0) -> None:
    """A GGUF file of equal f16 tensors with about `size` bytes; its header is that of a small llama model.

    Args:
        tensors: how many; each has other bytes.
        changed: that many of them, spread evenly, differ from those of the file without.
    """
    rows = max(1, size // 2 // _ROW // tensors)
    header = _header(rows, tensors)
    one, different = rows * _ROW * 2, set(range(0, tensors, tensors // changed)) if changed else set()
    with path.open("wb") as handle:
        handle.write(header)
        for index in range(tensors):
            # Its number before the rest makes every tensor's bytes its own.
            mark = struct.pack("<QQ", index, index in different)
            handle.write(mark[:one])
            for block in weight_bytes(one - len(mark)):
                handle.write(block)


def _header(rows: int, tensors: int) -> bytes:
    facts = {
        "llama.block_count": 2,
        "llama.context_length": 8192,
        "llama.embedding_length": _ROW,
        "llama.feed_forward_length": 512,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 4,
    }
    texts = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }
    header = struct.pack("<4sIQQ", b"GGUF", 3, tensors, len(facts) + len(texts) + 1)
    for name, text in texts.items():
        header += _text(name) + struct.pack("<I", _STRING) + _text(text)
    header += _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", _ARRAY, _STRING, 2) + _text("a") + _text("b")
    for name, value in facts.items():
        header += _text(name) + struct.pack("<II", _U32, value)
    for index in range(tensors):
        name = "token_embd.weight" if index == 0 else f"blk.{index}.weight"
        header += _text(name) + struct.pack("<IQQIQ", 2, _ROW, rows, _F16, index * rows * _ROW * 2)
    return header + bytes(-len(header) % _ALIGN)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()
