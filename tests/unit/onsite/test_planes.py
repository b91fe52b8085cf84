"""Compressed segments on the site: what is sound comes back, what is not is refused before memory grows."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from airbundle_onsite import planes
from airbundle_onsite.planes import BLOCK, ChunkReader, decoded, decoded_range, join_planes, plane_sizes


def deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    return stream.compress(data) + stream.flush()


def block(parts: Sequence[bytes]) -> bytes:
    return struct.pack(f"<I{len(parts)}I", len(parts), *map(len, parts)) + b"".join(parts)


def decode(data: bytes, size: int, packed: int | None = None, chunk: int = 1000) -> bytes:
    reader = ChunkReader(data[at : at + chunk] for at in range(0, len(data), chunk))
    with ThreadPoolExecutor(2) as pool:
        return b"".join(decoded(reader.read, len(data) if packed is None else packed, size, pool))


@pytest.mark.parametrize("width", planes.WIDTHS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1001])
def test_planes_are_joined(width: int, size: int) -> None:
    data = bytes(range(256)) * 4
    data = data[:size]
    assert plane_sizes(size, width) == tuple(len(data[at::width]) for at in range(width))
    assert join_planes([data[at::width] for at in range(width)], size) == data


@given(some.binary(min_size=1, max_size=300), some.sampled_from(planes.WIDTHS), some.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_any_bytes_come_back(data: bytes, width: int, chunk: int) -> None:
    parts = [data[at::width] for at in range(width)]
    packed = [made if len(made := deflate(part)) < len(part) else part for part in parts]
    assert decode(block(packed), len(data), chunk=chunk) == data


def test_blocks_follow_each_other_and_a_range_needs_only_its_own() -> None:
    data = bytes(BLOCK) + b"ab" * (BLOCK // 2) + b"tail"
    packed = block([deflate(bytes(BLOCK))]) + block([deflate(b"a" * (BLOCK // 2)), deflate(b"b" * (BLOCK // 2))])
    packed += block([b"tail"])
    assert decode(packed, len(data)) == data
    for begin, count in ((0, 8), (BLOCK - 2, 5), (BLOCK + 1, 7), (2 * BLOCK - 1, 5), (2 * BLOCK, 4)):
        reader = ChunkReader([packed])
        assert decoded_range(reader.read, len(packed), len(data), begin, count) == data[begin : begin + count]


BOMB = deflate(bytes(64 << 20))
SOUND = block([deflate(bytes(500)), bytes(range(250)) * 2])


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        (b"", 10, "block 0 of 1: it needs 4 more bytes, and the segment has 0"),
        (struct.pack("<I", 3), 10, "it has 3 planes, needed one of 1, 2, 4"),
        (struct.pack("<I", 0), 10, "it has 0 planes"),
        (struct.pack("<II", 2, 1), 10, "it needs 8 more bytes, and the segment has 4"),
        (struct.pack("<II", 1, 11) + bytes(11), 10, "plane 0 takes 11 bytes, and holds 10"),
        (struct.pack("<II", 1, 2**32 - 1), 10, "plane 0 takes 4294967295 bytes"),
        (block([b"\xff" * 9]), 10, "plane 0: it cannot be decompressed"),
        (block([deflate(bytes(9))]), 100, "plane 0: it ends after 9 bytes, needed 100"),
        (block([deflate(bytes(100))[:-1]]), 100, "plane 0: it ends after"),
        (block([deflate(bytes(101))]), 100, "plane 0: it holds more than the 100 bytes needed"),
        (block([deflate(bytes(100)) + b"x"]), 100, "plane 0: 1 bytes follow its end"),
        (SOUND + b"more", 1000, "4 bytes follow its last block"),
        (SOUND[:-1], 1000, "it needs"),
        (SOUND, 1001, "plane 0"),
        (SOUND, BLOCK + 1000, "block [01] of 2: "),
        (block([BOMB]), BLOCK, "plane 0: it holds more than the 262144 bytes needed"),
    ],
)
def test_what_is_unsound_is_named(data: bytes, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(data, size)


def test_a_stream_that_ends_too_early_is_named() -> None:
    with pytest.raises(ValueError, match="bytes came, needed"):
        decode(SOUND[:-10], 1000, packed=len(SOUND))


def test_a_bomb_takes_no_more_memory_than_a_block() -> None:
    data = block([BOMB, BOMB])
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="it holds more"):
            decode(data, BLOCK)
        assert tracemalloc.get_traced_memory()[1] < 8 * BLOCK
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_a_few_blocks() -> None:
    """However long the segment is, and though nobody takes what was decoded for a while."""
    one = block([deflate(bytes(BLOCK))])
    count = 300
    reader = ChunkReader(one for _ in range(count))
    tracemalloc.start()
    try:
        with ThreadPoolExecutor(planes.workers()) as pool:
            sizes = [len(chunk) for chunk in decoded(reader.read, count * len(one), count * BLOCK, pool)]
        assert sizes == [BLOCK] * count
        assert tracemalloc.get_traced_memory()[1] < (9 * planes.workers() + 8) * BLOCK
    finally:
        tracemalloc.stop()
