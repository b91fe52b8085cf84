"""Where the tensors of a safetensors or GGUF file lie, from its header; for both halves.

The spans of a file follow each other without a gap and reach its end: in GGUF the padding behind a tensor counts as a
part of it. So two files of the same tensors have the same spans, whatever their headers say.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

from airbundle_onsite.contract.inventory import TensorFact
from airbundle_onsite.contract.record import record

SUFFIXES = (".safetensors", ".gguf")
ReadAt = Callable[[int, int], bytes]
"""``read(offset, size)``: that range of the file, shorter only at the file's end."""

_MOST_HEADER = 100_000_000
_MOST_ENTRIES = 1_000_000
_MOST_DIMENSIONS = 8
_SCALAR_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # GGUF's value types
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_ALIGNMENT = "general.alignment"


@record
class Span:
    """A tensor's name, where its bytes begin in the file, and how many there are."""

    name: str
    offset: int
    size: int


def has_tensors(path: str) -> bool:
    """Whether a file of this name is of a format whose tensors `spans` finds."""
    return path.lower().endswith(SUFFIXES)


def spans(path: str, size: int, read: ReadAt) -> tuple[Span, ...]:
    """The tensors of a file, in the order of their bytes; empty ones are left out.

    Args:
        path: its name, which tells the format.
        size: bytes of the file.
        read: reads ranges of it.

    Raises:
        ValueError: its header is not one of that format, or does not fit the file.
    """
    try:
        found = _safetensors(size, read) if path.lower().endswith(".safetensors") else _gguf(size, read)
    except (struct.error, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: its header cannot be read: {error}") from error
    position = found[0].offset if found else size
    for span in found:
        if span.offset != position or span.size <= 0:
            raise ValueError(f"{path}: its tensors overlap or leave a hole at byte {position}")
        position += span.size
    if position != size:
        raise ValueError(f"{path}: {size} bytes, its tensors end at {position}")
    return found


def hash_spans(wanted: Sequence[Span], chunks: Iterable[bytes]) -> Iterator[TensorFact]:
    """The SHA-256 of each span, from the chunks of the whole file; all chunks are taken."""
    position = 0
    rest = iter(wanted)
    span, hasher = next(rest, None), hashlib.sha256()
    for chunk in chunks:
        begin, end = position, position + len(chunk)
        view = memoryview(chunk)
        while span is not None and span.offset < end:
            low, high = max(span.offset, begin), min(span.offset + span.size, end)
            hasher.update(view[low - position : high - position])
            if high < span.offset + span.size:
                break
            yield TensorFact(span.name, span.offset, span.size, hasher.hexdigest())
            span, hasher, begin = next(rest, None), hashlib.sha256(), high
        position = end


def _safetensors(size: int, read: ReadAt) -> tuple[Span, ...]:
    (length,) = struct.unpack("<Q", read(0, 8))
    if length > min(_MOST_HEADER, size - 8):
        raise ValueError(f"{size} bytes, yet its header claims {length} bytes")
    header = json.loads(read(8, length).decode("utf-8"))
    header.pop("__metadata__", None)
    found = []
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if type(begin) is not int or type(end) is not int:
            raise ValueError(f"tensor {name!r:.80} has no proper place")
        if begin != end:
            found.append(Span(name, 8 + length + begin, end - begin))
    return tuple(sorted(found, key=lambda span: span.offset))


def _gguf(size: int, read: ReadAt) -> tuple[Span, ...]:
    header = _Gguf(read)
    starts = sorted(header.tensors(), key=lambda each: each[1])
    if not starts:
        return ()
    ends = [offset for _, offset in starts[1:]] + [size]
    return tuple(Span(name, offset, end - offset) for (name, offset), end in zip(starts, ends) if end != offset)


class _Gguf:
    """A GGUF header, read forwards with every length held against what is sensible."""

    def __init__(self, read: ReadAt) -> None:
        self._read, self._at = read, 0
        self._buffer, self._start = b"", 0

    def tensors(self) -> list[tuple[str, int]]:
        """Name and place in the file of each tensor."""
        if self._take(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version, count, values = self._unpack("<IQQ")
        if version not in (2, 3) or max(count, values) > _MOST_ENTRIES:
            raise ValueError(f"version {version}, {count} tensors, {values} entries of metadata")
        alignment = 32
        for _ in range(values):
            key = self._string()
            (kind,) = self._unpack("<I")
            found = self._value(kind)
            if key == _ALIGNMENT and kind == _UINT32:
                (alignment,) = struct.unpack("<I", found)
        if not alignment:
            raise ValueError("its alignment is 0")
        places = []
        for _ in range(count):
            name = self._string()
            (dimensions,) = self._unpack("<I")
            if dimensions > _MOST_DIMENSIONS:
                raise ValueError(f"a tensor of {dimensions} dimensions")
            self._take(8 * dimensions)
            _, offset = self._unpack("<IQ")
            places.append((name, offset))
        begin = -(-self._at // alignment) * alignment
        return [(name, begin + offset) for name, offset in places]

    def _value(self, kind: int) -> bytes:
        """The bytes of a single number; nothing of a longer value, which is passed over."""
        if kind in _SCALAR_SIZES:
            return self._take(_SCALAR_SIZES[kind])
        if kind == _STRING:
            self._string()
            return b""
        if kind != _ARRAY:
            raise ValueError(f"a value of the unknown type {kind}")
        inner, count = self._unpack("<IQ")
        if inner in _SCALAR_SIZES:
            self._take(_SCALAR_SIZES[inner] * count)
            return b""
        if inner != _STRING or count > _MOST_HEADER:
            raise ValueError(f"an array of {count} values of type {inner}")
        for _ in range(count):
            self._string()
        return b""

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        return self._take(length).decode("utf-8", "replace")

    def _unpack(self, code: str) -> tuple[Any, ...]:
        return struct.unpack(code, self._take(struct.calcsize(code)))

    def _take(self, count: int) -> bytes:
        if self._at + count > _MOST_HEADER:
            raise ValueError("its header is longer than any should be")
        low = self._at - self._start
        if low + count > len(self._buffer):
            self._buffer, self._start, low = self._read(self._at, max(count, 1 << 20)), self._at, 0
        data = self._buffer[low : low + count]
        if len(data) != count:
            raise ValueError("it ends inside its own header")
        self._at += count
        return data
