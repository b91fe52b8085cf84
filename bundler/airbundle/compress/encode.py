"""Blocks of byte planes from weights: the other direction of `airbundle_onsite.planes`, whose text has the format.

How many planes a block has is found by trying them on a sample, not read from the file's header: so any format of
weights compresses, and where one tensor ends and the next begins is of no account. Planes are only Huffman coded:
weights repeat nothing, and looking for repetitions costs twice the time and makes the result larger.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.planes import WIDTHS, decode_block

_SAMPLE = 16 * 1024
_WORTH = 0.95  # a plane that takes more than this of its bytes stays as it is: reading it must cost nothing then
_MEMORY = 9  # DEFLATE's memLevel: the most symbols that share a Huffman code


def encode_block(data: bytes) -> bytes:
    """A block of 1 to 262,144 bytes with its header; the same bytes always give the same block.

    Raises:
        IntegrityError: decoded again it is not what went in.
    """
    tried = planes_worth(data)
    planes = split_planes(data, len(tried))
    packed = [_deflated(plane) if worth else plane for plane, worth in zip(planes, tried, strict=True)]
    lengths = [len(each) for each in packed]
    body = b"".join(packed)
    if decode_block(lengths, body, len(data)) != data:
        raise IntegrityError(
            "weights that were compressed do not come back as they were", remedy="build without --compress"
        )
    return struct.pack(f"<I{len(planes)}I", len(planes), *lengths) + body


def split_planes(data: bytes, width: int) -> list[bytes]:
    """The planes of a block, not compressed."""
    return [data] if width == 1 else [data[number::width] for number in range(width)]


def planes_worth(data: bytes) -> tuple[bool, ...]:
    """For each plane of the block whether it is worth compressing, in the number of planes that makes it smallest; as
    far as 16 KiB from its middle tell."""
    begin = max(0, (len(data) - _SAMPLE) // 2) & ~(max(WIDTHS) - 1)
    sample = data[begin : begin + _SAMPLE]
    best: tuple[bool, ...] = (False,)
    least = len(sample)
    for width in WIDTHS:
        planes = split_planes(sample, width)
        made = [len(_deflated(plane)) for plane in planes]
        if sum(made) < least:
            best, least = tuple(size < len(plane) for size, plane in zip(made, planes, strict=True)), sum(made)
    return best


def share_left(blocks: Sequence[bytes]) -> float:
    """What part of these blocks' bytes is left when they are compressed; 1.0 when nothing is gained."""
    size = sum(len(block) for block in blocks)
    return sum(min(len(encode_block(block)), len(block)) for block in blocks) / size if size else 1.0


def _deflated(plane: bytes) -> bytes:
    """The plane compressed, or itself when that is not worth it."""
    stream = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, _MEMORY, zlib.Z_HUFFMAN_ONLY)
    made = stream.compress(plane) + stream.flush()
    return made if len(made) <= len(plane) * _WORTH else plane
