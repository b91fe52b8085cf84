"""Synthetic inputs: a GGUF model and an image layer of any size, filled with what bf16 weights look like."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy

_BLOCK = 32 * 1024 * 1024
_STRING, _U32, _ARRAY = 8, 4, 9  # value types of the GGUF format
_F16 = 1  # tensor type


def weight_bytes(size: int) -> Iterator[bytes]:
    """`size` bytes of normally distributed bfloat16 numbers, in blocks; the same every time."""
    values = numpy.random.default_rng(0).standard_normal(_BLOCK // 2, dtype=numpy.float32) * 0.02
    block = (values.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()
    while size > 0:
        yield block[: min(size, _BLOCK)]
        size -= _BLOCK


def write_gguf(path: Path, size: int) -> None:
    """A GGUF file of one f16 tensor with about `size` bytes; its header is that of a small llama model."""
    count = size // 2 // 256 * 256
    facts = {
        "llama.block_count": 2,
        "llama.context_length": 8192,
        "llama.embedding_length": 256,
        "llama.feed_forward_length": 512,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 4,
    }
    texts = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }
    header = struct.pack("<4sIQQ", b"GGUF", 3, 1, len(facts) + len(texts) + 1)
    for name, text in texts.items():
        header += _text(name) + struct.pack("<I", _STRING) + _text(text)
    header += _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", _ARRAY, _STRING, 2) + _text("a") + _text("b")
    for name, value in facts.items():
        header += _text(name) + struct.pack("<II", _U32, value)
    header += _text("token_embd.weight") + struct.pack("<IQQIQ", 2, 256, count // 256, _F16, 0)
    header += bytes(-len(header) % 32)
    with path.open("wb") as handle:
        handle.write(header)
        for block in weight_bytes(count * 2):
            handle.write(block)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()
