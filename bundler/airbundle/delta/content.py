"""Content as ranges of files: a file in the cache, or one that lies somewhere in the parts of a bundle."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from airbundle.assemble import Extent, extents_within
from airbundle_onsite import planes
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.payload import FileEntry, Segment
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import IntegrityError

CHUNK = 1 << 20
Extents = tuple[Extent, ...]


@record
class Compressed:
    """A file of which some segments are compressed.

    Attributes:
        parts: the joined payload.
        segments: what the file is made of, all of it in the payload.
    """

    parts: Extents
    segments: tuple[Segment, ...]


Content = Extents | Compressed


def of_file(path: Path, size: int) -> Extents:
    """The whole of a file."""
    return (Extent(path, 0, size),) if size else ()


def in_bundle(directory: Path, manifest: BundleManifest, entry: FileEntry) -> Content | None:
    """Where a file of the payload lies in the bundle's parts; None when the bundle leaves some of it to its base."""
    if entry.from_base:
        return None
    parts = tuple(Extent(directory / part.name, 0, part.size) for part in manifest.payload.parts)
    if entry.is_compressed:
        return Compressed(parts, entry.segments)
    return tuple(
        extent for segment in entry.segments for extent in extents_within(parts, segment.offset, segment.packed)
    )


def stream(content: Content) -> Iterator[bytes]:
    """All of a content, at most 1 MiB at a time.

    Raises:
        IntegrityError: a file is shorter than it should be, or what is compressed cannot be decompressed.
        OSError: from the file.
    """
    if not isinstance(content, Compressed):
        yield from _stream_ranges(content)
        return
    with ThreadPoolExecutor(planes.workers(), thread_name_prefix="planes") as pool:
        for segment in content.segments:
            ranges = tuple(extents_within(content.parts, segment.offset, segment.packed))
            if segment.compressed is None:
                yield from _stream_ranges(ranges)
                continue
            try:
                yield from planes.decoded(
                    planes.ChunkReader(_stream_ranges(ranges)).read, segment.compressed, segment.size, pool
                )
            except ValueError as error:
                raise _damaged(content, error) from error


def read_at(content: Content, offset: int, size: int) -> bytes:
    """A range of a content; shorter only at its end. Raises as `stream`."""
    if not isinstance(content, Compressed):
        return b"".join(_stream_ranges(tuple(extents_within(content, offset, size))))
    found, begin = [], 0
    for segment in content.segments:
        low, high = max(offset, begin), min(offset + size, begin + segment.size)
        if low < high:
            found.append(_read_segment(content, segment, low - begin, high - low))
        begin += segment.size
    return b"".join(found)


def _read_segment(content: Compressed, segment: Segment, offset: int, size: int) -> bytes:
    ranges = tuple(extents_within(content.parts, segment.offset, segment.packed))
    if segment.compressed is None:
        return b"".join(_stream_ranges(tuple(extents_within(ranges, offset, size))))
    read = planes.ChunkReader(_stream_ranges(ranges)).read
    try:
        return planes.decoded_range(read, segment.compressed, segment.size, offset, size)
    except ValueError as error:
        raise _damaged(content, error) from error


def _damaged(content: Compressed, error: ValueError) -> IntegrityError:
    places = ", ".join(dict.fromkeys(str(extent.path) for extent in itertools.islice(content.parts, 3)))
    return IntegrityError(
        f"a compressed file in {places} cannot be decompressed: {error}",
        remedy="`airbundle verify` says whether the bundle is damaged; if it is whole, build it again",
    )


def _stream_ranges(extents: Sequence[Extent]) -> Iterator[bytes]:
    for extent in extents:
        with extent.path.open("rb", buffering=0) as handle:
            os.posix_fadvise(handle.fileno(), extent.offset, extent.size, os.POSIX_FADV_SEQUENTIAL)
            handle.seek(extent.offset)
            left = extent.size
            while left:
                chunk = handle.read(min(CHUNK, left))
                if not chunk:
                    raise IntegrityError(
                        f"{extent.path} ends {left} bytes too early", remedy="copy it again from where it was made"
                    )
                left -= len(chunk)
                yield chunk
