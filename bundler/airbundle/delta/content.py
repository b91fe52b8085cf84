"""Content as ranges of files: a file in the cache, or one that lies somewhere in the parts of a bundle."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from airbundle.assemble import Extent, extents_within
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.payload import FileEntry
from airbundle_onsite.errors import IntegrityError

CHUNK = 1 << 20
Extents = tuple[Extent, ...]


def of_file(path: Path, size: int) -> Extents:
    """The whole of a file."""
    return (Extent(path, 0, size),) if size else ()


def in_bundle(directory: Path, manifest: BundleManifest, entry: FileEntry) -> Extents | None:
    """Where a file of the payload lies in the bundle's parts; None when the bundle leaves some of it to its base."""
    if entry.from_base:
        return None
    parts = tuple(Extent(directory / part.name, 0, part.size) for part in manifest.payload.parts)
    return tuple(
        extent for segment in entry.segments for extent in extents_within(parts, segment.offset, segment.packed)
    )


def stream(extents: Sequence[Extent]) -> Iterator[bytes]:
    """All of a content, at most 1 MiB at a time.

    Raises:
        IntegrityError: a file is shorter than it should be.
        OSError: from the file.
    """
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


def read_at(extents: Sequence[Extent], offset: int, size: int) -> bytes:
    """A range of a content; shorter only at its end."""
    return b"".join(stream(tuple(extents_within(extents, offset, size))))
