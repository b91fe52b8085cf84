"""Weights compressed without loss: blocks whose bytes are sorted by their place in a number; for both halves.

The high bytes of floating point weights, their exponents, take few values; the others look random. So a segment is
cut into blocks of 256 KiB (the last may be shorter), and a block into `width` planes: plane k holds every byte whose
number is k modulo `width`. Each plane is a raw DEFLATE stream (RFC 1951) when that is smaller, else stands as it is.

A block begins with little-endian 32-bit numbers: `width`, then for each plane the bytes that it takes. How many it
holds follows from the size of the segment, so nothing in the data can ask for more memory than one block, and a
plane that takes as many bytes as it holds is one that stands as it is.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Union

from airbundle_onsite.contract.record import record

BLOCK = 256 * 1024
"""Bytes in a block before compression, but for the last of a segment: so few that a core's cache holds it."""

WIDTHS = (1, 2, 4)
"""How many planes a block may have."""

_WINDOW = -zlib.MAX_WBITS  # raw DEFLATE, without header and checksum: the file's SHA-256 shows every fault
_GROUP = 4  # blocks that one thread decodes at a time: handing each one over would cost more than it gains
_AHEAD = 2  # groups under way for each thread
_MOST_WORKERS = 8  # joining planes holds Python's lock: more threads would only take memory


def plane_sizes(size: int, width: int) -> tuple[int, ...]:
    """Bytes of each plane of a block of `size` bytes."""
    return tuple((size - plane + width - 1) // width for plane in range(width))


def join_planes(planes: Sequence[Union[bytes, memoryview]], size: int) -> bytes:
    """The block of `size` bytes that these planes, not compressed, are made of."""
    if len(planes) == 1:
        return bytes(planes[0])
    if len(planes) == 2 and size % 2 == 0:
        # The quickest way to put a zero behind each byte: text of the first 256 characters, two bytes each.
        block = bytearray(str(planes[0], "latin-1").encode("utf-16-le"))
        block[1::2] = planes[1]
        return bytes(block)
    block = bytearray(size)
    for number, plane in enumerate(planes):
        block[number :: len(planes)] = plane
    return bytes(block)


def decode_block(lengths: Sequence[int], data: bytes, size: int) -> bytes:
    """A block from its planes.

    Args:
        lengths: bytes that each plane takes; they add up to those of `data`.
        data: the planes, one after the other.
        size: bytes of the block.

    Raises:
        ValueError: a plane is not what it should be; says which, and how long it is.
    """
    planes: list[Union[bytes, memoryview]] = []
    view, position = memoryview(data), 0
    for number, (length, needed) in enumerate(zip(lengths, plane_sizes(size, len(lengths)))):
        taken = view[position : position + length]
        position += length
        try:
            planes.append(taken if length == needed else _inflate(taken, needed))
        except ValueError as error:
            raise ValueError(f"plane {number}: {error}") from error
    return join_planes(planes, size)


def workers() -> int:
    """Threads that decode or encode side by side: one per core, up to where the rest of the program is the limit."""
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)


def decoded(read: Callable[[int], bytes], packed: int, size: int, pool: Executor) -> Iterator[bytes]:
    """The bytes of a compressed segment, block by block.

    Args:
        read: gives exactly that many of the next bytes of what it takes; fewer only at its end.
        packed: bytes that it takes.
        size: bytes that it holds.
        pool: blocks are decoded there side by side; at most nine for each of `workers` threads are in memory.

    Raises:
        ValueError: it is not what it should be; says which block.
    """
    pending: deque[Future[list[bytes]]] = deque()
    blocks = -(-size // BLOCK)
    group: list[_Block] = []
    try:
        for number in range(blocks):
            block, packed = _read_block(read, packed, number, size)
            group.append(block)
            if len(group) == _GROUP or number == blocks - 1:
                pending.append(pool.submit(_decode_group, group))
                group = []
            if len(pending) > _AHEAD * workers():
                yield from pending.popleft().result()
        if packed:
            raise ValueError(f"{packed} bytes follow its last block")
        while pending:
            yield from pending.popleft().result()
    finally:
        for each in pending:
            each.cancel()


def decoded_range(read: Callable[[int], bytes], packed: int, size: int, begin: int, count: int) -> bytes:
    """`count` of the segment's bytes from `begin` on; only their blocks are decoded. Otherwise as `decoded`."""
    found = []
    for number in range(-(-(begin + count) // BLOCK)):
        block, packed = _read_block(read, packed, number, size)
        if begin < number * BLOCK + block.size:
            found.append(block.decoded())
    start = begin % BLOCK
    return b"".join(found)[start : start + count]


class ChunkReader:
    """Gives bytes that come in chunks of any size by as many as are asked for."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._chunk, self._at = iter(chunks), b"", 0

    def take(self, size: int) -> Iterator[bytes]:
        """The next `size` bytes in chunks; fewer only at the end."""
        while size:
            if self._at == len(self._chunk):
                self._chunk, self._at = next(self._chunks, b""), 0
            head = self._chunk[self._at : self._at + size]  # the whole chunk, uncopied, where it is all wanted
            if not head:
                return
            self._at += len(head)
            size -= len(head)
            yield head

    def read(self, size: int) -> bytes:
        """The same at once."""
        return b"".join(self.take(size))


@record
class _Block:
    """A block still compressed: its number of how many, bytes that it holds, bytes of each plane, the planes."""

    number: int
    blocks: int
    size: int
    lengths: tuple[int, ...]
    data: bytes

    def decoded(self) -> bytes:
        try:
            return decode_block(self.lengths, self.data, self.size)
        except ValueError as error:
            raise _numbered(self.number, self.blocks, error) from error


def _read_block(read: Callable[[int], bytes], left: int, number: int, whole: int) -> tuple[_Block, int]:
    """The next block, of a segment of `whole` bytes, and the compressed bytes `left` in it after that."""
    blocks, size = -(-whole // BLOCK), min(BLOCK, whole - number * BLOCK)
    try:
        (width,) = struct.unpack("<I", _exactly(read, 4, left))
        if width not in WIDTHS:
            raise ValueError(f"it has {width} planes, needed one of {', '.join(map(str, WIDTHS))}")
        left -= 4
        lengths = struct.unpack(f"<{width}I", _exactly(read, 4 * width, left))
        left -= 4 * width
        for plane, (length, needed) in enumerate(zip(lengths, plane_sizes(size, width))):
            if length > needed:
                raise ValueError(f"plane {plane} takes {length} bytes, and holds {needed}")
        data = _exactly(read, sum(lengths), left)
    except ValueError as error:
        raise _numbered(number, blocks, error) from error
    return _Block(number, blocks, size, lengths, data), left - len(data)


def _numbered(number: int, blocks: int, error: ValueError) -> ValueError:
    return ValueError(f"block {number} of {blocks}: {error}")


def _decode_group(group: Sequence[_Block]) -> list[bytes]:
    return [block.decoded() for block in group]


def _exactly(read: Callable[[int], bytes], wanted: int, left: int) -> bytes:
    if wanted > left:
        raise ValueError(f"it needs {wanted} more bytes, and the segment has {left}")
    data = read(wanted)
    if len(data) != wanted:
        raise ValueError(f"{len(data)} bytes came, needed {wanted}")
    return data


def _inflate(data: memoryview, size: int) -> bytes:
    """`size` bytes from a whole DEFLATE stream; never makes more than one byte beyond."""
    stream = zlib.decompressobj(_WINDOW)
    try:
        made = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error
    if len(made) > size:
        raise ValueError(f"it holds more than the {size} bytes needed")
    if len(made) != size or not stream.eof:
        raise ValueError(f"it ends after {len(made)} bytes, needed {size}")
    if stream.unused_data:
        raise ValueError(f"{len(stream.unused_data)} bytes follow its end")
    return made
