"""Writes small GGUF files: headers with chosen metadata, and float tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

ALIGNMENT = 32
F32 = 0

Value = str | int | float | Sequence[str]


def gguf(metadata: Mapping[str, Value], tensors: Mapping[str, Sequence[int]] | None = None) -> bytes:
    """A whole file, version 3.

    Args:
        metadata: strings, integers (32 bits), floats (32 bits), or lists of strings.
        tensors: name -> dimensions, the fastest first; all are F32 zeros.
    """
    shapes = tensors or {}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(metadata))
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    offset = 0
    for name, shape in shapes.items():
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", F32, offset)
        offset += _padded(_size(shape))
    if not shapes:
        return head
    return head.ljust(_padded(len(head)), b"\0") + bytes(offset)


def language_model(*, vocabulary: int = 8, width: int = 16, **more: Value) -> bytes:
    """A header of a llama model with a tokenizer and a chat template, and one tensor."""
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "general.file_type": 15,
        "llama.block_count": 2,
        "llama.context_length": 8192,
        "llama.embedding_length": width,
        "llama.attention.head_count": 2,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"t{number}" for number in range(vocabulary)],
        "tokenizer.chat_template": "{{ messages }}",
    }
    return gguf(
        {**metadata, **{key.replace("__", "."): value for key, value in more.items()}},
        {"token_embd.weight": [width, vocabulary]},
    )


def write_adapter(path: Path, *, width: int, rank: int = 2, architecture: str = "llama") -> Path:
    """A LoRA adapter that changes nothing, for the queries of the first layer."""
    metadata: dict[str, Value] = {
        "general.architecture": architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 2.0,
    }
    tensors = {"blk.0.attn_q.weight.lora_a": [width, rank], "blk.0.attn_q.weight.lora_b": [rank, width]}
    path.write_bytes(gguf(metadata, tensors))
    return path


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(each) for each in value)


def _size(shape: Sequence[int]) -> int:
    size = 4
    for count in shape:
        size *= count
    return size


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
