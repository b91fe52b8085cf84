"""Lays out the payload as one plain tar and writes it in parts.

The layout is computed before a byte is written, so sizes and offsets are known to `plan`, and the same members
always give the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from airbundle.partwriter import PartWriter, part_sizes
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.payload import FileEntry, Payload, Role, Segment
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import IntegrityError, UsageError

_BLOCK = 512
_END = bytes(2 * _BLOCK)


@record
class Extent:
    """A range of a file: `size` bytes from `offset` on."""

    path: Path
    offset: int
    size: int


@record
class Member:
    """A file that goes into the payload.

    Attributes:
        path: inside the payload.
        role: what it belongs to.
        size: bytes.
        sha256: of its content, already proven.
        content: where its bytes are: a file, the bytes themselves, or ranges of files that make it when joined.
        segments: for a file that takes bytes from a base: what it is made of, in order. The offset of a segment
            without a base is within the content. Empty: it is packed whole.
        carried: for a file that is compressed: ranges of files that hold what is packed of it, in order.
    """

    path: str
    role: Role
    size: int
    sha256: str
    content: Path | bytes | tuple[Extent, ...]
    segments: tuple[Segment, ...] = ()
    carried: tuple[Extent, ...] = ()

    @property
    def runs(self) -> tuple[Segment, ...]:
        """`segments`, also for a file that is packed whole."""
        return self.segments or ((Segment(self.size, 0),) if self.size else ())

    def entry(self, offset: int) -> FileEntry:
        """What the manifest says of it when what is packed of it begins at `offset` in the payload."""
        made = []
        for segment in self.runs:
            if segment.base is None:
                segment = dataclasses.replace(segment, offset=offset)
                offset += segment.packed
            made.append(segment)
        return FileEntry(self.path, self.role, self.size, self.sha256, tuple(made))


def bytes_member(path: str, role: Role, data: bytes) -> Member:
    """A member made of bytes in memory."""
    return Member(path, role, len(data), hashlib.sha256(data).hexdigest(), data)


@record
class Placed:
    """A member with the tar header before it, and where its content begins in the joined payload.

    Attributes:
        header: empty when nothing of it is packed.
        size: bytes of it that are packed.
    """

    member: Member
    header: bytes
    offset: int
    size: int

    @property
    def padding(self) -> int:
        """Zero bytes after the content, up to the next block."""
        return -self.size % _BLOCK


@record
class PayloadPlan:
    """The layout of the payload: `size` bytes in all."""

    placed: tuple[Placed, ...]
    size: int

    def entries(self) -> tuple[FileEntry, ...]:
        """The manifest's view of it."""
        return tuple(item.member.entry(item.offset) for item in self.placed)


def plan_payload(members: Sequence[Member], mtime: int) -> PayloadPlan:
    """Lay members out in the order given.

    Args:
        members: files with unique, valid payload paths.
        mtime: seconds since the epoch, written into every header.

    Raises:
        UsageError: a path cannot stand in a payload.
    """
    bad = [member.path for member in members if not layout.is_payload_path(member.path)]
    if bad:
        raise UsageError(
            f"{len(bad)} file name(s) cannot go into a bundle",
            details=[repr(path) for path in bad],
            remedy="rename them: no control characters, no backslash, at most 255 bytes per component",
        )
    placed, position = [], 0
    for member in members:
        header, size = _tar_header(member, mtime), sum(segment.packed for segment in member.runs)
        position += len(header)
        item = Placed(member, header, position, size)
        placed.append(item)
        position += size + item.padding
    return PayloadPlan(tuple(placed), position + len(_END))


def write_payload(
    plan: PayloadPlan, directory: Path, *, part_size: int, advance: Callable[[int], None] = lambda _: None
) -> Payload:
    """Write the parts into `directory`, each synced to disk.

    Args:
        plan: the layout.
        directory: an existing directory; the parts get their final names, so it must not be the bundle's own yet.
        part_size: bytes per part, 0 for a single one.
        advance: told the number of bytes as they are written.

    Raises:
        IntegrityError: a member changed its size while it was read.
        OSError: reading or writing failed.
    """
    writer = PartWriter(directory, part_sizes(plan.size, part_size), advance)
    try:
        for item in plan.placed:
            writer.write(item.header)
            _copy_content(item.member, writer)
            writer.write(bytes(item.padding))
        writer.write(_END)
        parts = writer.finish()
    finally:
        writer.close()
    return Payload(plan.size, parts)


def write_stream(
    blocks: Iterable[bytes],
    size: int,
    directory: Path,
    *,
    part_size: int,
    advance: Callable[[int], None] = lambda _: None,
) -> Payload:
    """Write a payload of `size` bytes that exists already into parts; otherwise as `write_payload`."""
    writer = PartWriter(directory, part_sizes(size, part_size), advance)
    try:
        for block in blocks:
            writer.write(block)
        return Payload(size, writer.finish())
    finally:
        writer.close()


def _tar_header(member: Member, mtime: int) -> bytes:
    """Empty for a member that has no entry in the tar."""
    entry = member.entry(0)
    if not entry.member:
        return b""
    info = tarfile.TarInfo(entry.member)
    info.size, info.mtime, info.mode = entry.packed, mtime, 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _copy_content(member: Member, writer: PartWriter) -> None:
    """Write what is packed of a member."""
    wanted = [segment for segment in member.runs if segment.base is None]
    if member.carried:
        for extent in member.carried:
            _copy_ranges(extent.path, [(extent.offset, extent.size)], writer)
    elif isinstance(member.content, bytes):
        for segment in wanted:
            writer.write(member.content[segment.offset : segment.offset + segment.size])
    elif isinstance(member.content, Path):
        _copy_ranges(member.content, [(segment.offset, segment.size) for segment in wanted], writer, whole=member.size)
    else:
        for segment in wanted:
            for extent in extents_within(member.content, segment.offset, segment.size):
                _copy_ranges(extent.path, [(extent.offset, extent.size)], writer)


def extents_within(extents: Sequence[Extent], offset: int, size: int) -> Iterator[Extent]:
    """The part of a joined content that begins at `offset` and has `size` bytes."""
    begin = 0
    for extent in extents:
        low, high = max(offset, begin), min(offset + size, begin + extent.size)
        if low < high:
            yield Extent(extent.path, extent.offset + low - begin, high - low)
        begin += extent.size


def _copy_ranges(
    path: Path, ranges: Sequence[tuple[int, int]], writer: PartWriter, *, whole: int | None = None
) -> None:
    """Write ranges (offset and size) of a file that must have `whole` bytes, where given."""
    with path.open("rb", buffering=0) as source:
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        short = False
        for offset, size in ranges:
            short = short or writer.copy(source.fileno(), offset, size) != size
        found = os.fstat(source.fileno()).st_size
        if short or whole not in (None, found):
            needed = whole if whole is not None else max(offset + size for offset, size in ranges)
            raise IntegrityError(
                f"{path} changed while it was packed: {found} bytes found, {needed} needed",
                remedy="let nothing write to it, then build again",
            )
