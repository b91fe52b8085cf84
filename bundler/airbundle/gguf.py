"""Reads the header of a GGUF file: enough to prove that the file is whole, and what its metadata say."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import IO, Any

from airbundle_onsite.contract.record import record

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_ENTRIES = 1_000_000
_MOST_STRING = 64 * 1024 * 1024
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # by value type
_LONGEST_ARRAY = 4096  # of numbers, that is kept
_ALIGNMENT = "general.alignment"

# Tensor type: (elements in a block, bytes of a block). Types that are not here are not measured.
_BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 36),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
}


@record
class GgufHeader:
    """What the header says.

    Attributes:
        version: of the format.
        tensors: how many.
        needed: bytes the file must at least have for its tensors.
        metadata: by key. Short arrays of numbers are tuples, and of every other array only its length is kept.
        types: tensor type (GGUF's number) -> elements stored in it.
        sizes: tensor -> its bytes; 0 for a type that is not measured.
    """

    version: int
    tensors: int
    needed: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


class GgufError(ValueError):
    """The file does not begin as a GGUF file does."""


def read_header(path: Path) -> GgufHeader:
    """Read it.

    Raises:
        GgufError: with what is wrong.
        OSError: from the file.
    """
    with path.open("rb") as handle:
        return parse_header(handle)


def parse_header(handle: IO[bytes]) -> GgufHeader:
    """The same from an open file. Raises GgufError, also when it ends inside its header."""
    return _Reader(handle).header()


def shape_facts(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    """What a header's metadata say about the model's shape, without the tokenizer.

    The keys are GGUF's own without the architecture's name, and ``architecture`` and ``vocabulary``; several numbers
    are joined by commas.
    """
    architecture = str(metadata.get("general.architecture", ""))
    facts = {
        key.removeprefix(f"{architecture}."): ",".join(map(str, value if isinstance(value, tuple) else (value,)))
        for key, value in metadata.items()
        if key.startswith(f"{architecture}.")
    }
    return {**facts, "architecture": architecture, "vocabulary": str(metadata.get("tokenizer.ggml.tokens", 0))}


_LAYER = re.compile(r"blk\.(\d+)\.")


def layer_facts(header: GgufHeader) -> Mapping[str, str]:
    """Bytes of each layer, of the embedding, and of the output; none for a file of several, or of unmeasured types.

    An output that is tied to the embedding has no tensor of its own, and engines keep a second copy.
    """
    if int(header.metadata.get("split.count", 1) or 1) > 1 or not header.sizes or not all(header.sizes.values()):
        return {}
    layers: dict[int, int] = {}
    embedding, output = 0, 0
    for name, size in header.sizes.items():
        found = _LAYER.match(name)
        if found:
            layers[int(found[1])] = layers.get(int(found[1]), 0) + size
        elif name == "token_embd.weight":
            embedding += size
        else:
            output += size
    if sorted(layers) != list(range(len(layers))):
        return {}
    if "output.weight" not in header.sizes:
        output += embedding
    listed = ",".join(str(layers[index]) for index in range(len(layers)))
    return {"layer_bytes": listed, "embedding_bytes": str(embedding), "output_bytes": str(output)}


class _Reader:
    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle
        self._types: dict[int, int] = {}
        self._sizes: dict[str, int] = {}

    def header(self) -> GgufHeader:
        magic = self._handle.read(4)
        if magic != MAGIC:
            raise GgufError(f"begins with {magic!r}, not with {MAGIC!r}")
        version = self._number("<I")
        if version not in _VERSIONS:
            swapped = " (written for a big-endian machine)" if version >> 24 in _VERSIONS else ""
            raise GgufError(f"GGUF version {version}{swapped}, known are 2 and 3")
        tensors, values = self._number("<Q"), self._number("<Q")
        if max(tensors, values) > _MOST_ENTRIES:
            raise GgufError(f"claims {tensors} tensors and {values} metadata entries")
        metadata: dict[str, Any] = {}
        for _ in range(values):
            key = self._string()
            metadata[key] = self._value(self._number("<I"))
        alignment = metadata.get(_ALIGNMENT)
        alignment = alignment if type(alignment) is int and alignment > 0 else 32
        ends = [self._tensor() for _ in range(tensors)]
        start = -(-self._handle.tell() // alignment) * alignment if tensors else self._handle.tell()
        return GgufHeader(version, tensors, start + max(ends, default=0), metadata, self._types, self._sizes)

    def _tensor(self) -> int:
        """Where its data ends, counted from where the data begin."""
        name = self._string()
        dimensions = self._number("<I")
        if dimensions > 8:
            raise GgufError(f"claims a tensor of {dimensions} dimensions")
        elements = 1
        for _ in range(dimensions):
            elements *= self._number("<Q")
        kind, offset = self._number("<I"), self._number("<Q")
        self._types[kind] = self._types.get(kind, 0) + elements
        block, size = _BLOCKS.get(kind, (1, 0))
        self._sizes[name] = -(-elements // block) * size
        return offset + self._sizes[name]

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._numbers(kind, 1)[0]
        if kind != _ARRAY:
            raise GgufError(f"holds a value of the unknown type {kind}")
        inner, count = self._number("<I"), self._number("<Q")
        if inner in _SCALARS:
            return self._numbers(inner, count) if count <= _LONGEST_ARRAY else self._pass(inner, count)
        if inner != _STRING:
            raise GgufError(f"holds an array of the unknown type {inner}")
        for _ in range(count):
            self._string()
        return count

    def _numbers(self, kind: int, count: int) -> tuple[Any, ...]:
        code = f"<{count}{_SCALARS[kind]}"
        return struct.unpack(code, self._take(struct.calcsize(code)))

    def _pass(self, kind: int, count: int) -> int:
        self._take(struct.calcsize(f"<{_SCALARS[kind]}") * count)
        return count

    def _string(self) -> str:
        return self._take(self._number("<Q")).decode("utf-8", "replace")

    def _number(self, code: str) -> int:
        value: int = struct.unpack(code, self._take(struct.calcsize(code)))[0]
        return value

    def _take(self, count: int) -> bytes:
        if count > _MOST_STRING:
            raise GgufError(f"claims a value of {count} bytes")
        data = self._handle.read(count)
        if len(data) < count:
            raise GgufError("ends inside its own header")
        return data
