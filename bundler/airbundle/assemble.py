"""Lays out the payload as one plain tar and writes it in parts, hashing as it goes.

The layout is computed before a byte is written, so sizes and offsets are known to `plan`, and the same members
always give the same bytes. Writing reads each member once; two threads hash what the main thread writes (one for
the parts, one for their 64 MiB pieces), so the SHA-256 of a file that the cache has proven is not computed again.
"""

from __future__ import annotations

import hashlib
import io
import os
import queue
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.payload import FileEntry, Part, Payload, Role, Segment
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import IntegrityError, UsageError

_BLOCK = 512
_CHUNK = 1024 * 1024
_BUFFERS = 16
_FLUSH = 128 * 1024 * 1024
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
    """

    path: str
    role: Role
    size: int
    sha256: str
    content: Path | bytes | tuple[Extent, ...]
    segments: tuple[Segment, ...] = ()

    @property
    def runs(self) -> tuple[Segment, ...]:
        """`segments`, also for a file that is packed whole."""
        return self.segments or ((Segment(self.size, 0),) if self.size else ())

    def entry(self, offset: int) -> FileEntry:
        """What the manifest says of it when what is packed of it begins at `offset` in the payload."""
        made = []
        for segment in self.runs:
            if segment.base is None:
                segment = Segment(segment.size, offset)
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


def part_sizes(total: int, part_size: int) -> list[int]:
    """Sizes of the parts of a payload of `total` bytes; `part_size` 0 means one part."""
    if part_size <= 0 or part_size >= total:
        return [total]
    whole, rest = divmod(total, part_size)
    return [part_size] * whole + ([rest] if rest else [])


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
    writer = _PartWriter(directory, part_sizes(plan.size, part_size), advance)
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
    writer = _PartWriter(directory, part_sizes(size, part_size), advance)
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


def _copy_content(member: Member, writer: _PartWriter) -> None:
    """Write what is packed of a member."""
    wanted = [segment for segment in member.runs if segment.base is None]
    if isinstance(member.content, bytes):
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
    path: Path, ranges: Sequence[tuple[int, int]], writer: _PartWriter, *, whole: int | None = None
) -> None:
    """Write ranges (offset and size) of a file that must have `whole` bytes, where given."""
    with path.open("rb", buffering=0) as source:
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        short = False
        for offset, size in ranges:
            source.seek(offset)
            short = short or writer.write_from(source.readinto, size) != size
        found = os.fstat(source.fileno()).st_size
        if short or whole not in (None, found):
            needed = whole if whole is not None else max(offset + size for offset, size in ranges)
            raise IntegrityError(
                f"{path} changed while it was packed: {found} bytes found, {needed} needed",
                remedy="let nothing write to it, then build again",
            )


class _Hasher(threading.Thread):
    """Hashes buffers in order on its own core; a digest ends every `unit` bytes and at every part's end."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self.digests: list[str] = []
        self._sizes = iter(sizes)
        self._queue: queue.Queue[tuple[memoryview, Callable[[], None]] | None] = queue.Queue()
        self._left = next(self._sizes)
        self._hash = hashlib.sha256()

    def put(self, data: memoryview, release: Callable[[], None]) -> None:
        """Hash `data`, then call `release`."""
        self._queue.put((data, release))

    def end(self) -> None:
        """Wait until everything is hashed."""
        self._queue.put(None)
        self.join()

    def run(self) -> None:
        for data, release in iter(self._queue.get, None):
            self._feed(data)
            release()

    def _feed(self, data: memoryview) -> None:
        while data:
            head = data[: self._left]
            self._hash.update(head)
            self._left -= len(head)
            data = data[len(head) :]
            if not self._left:
                self.digests.append(self._hash.hexdigest())
                self._hash, self._left = hashlib.sha256(), next(self._sizes, -1)


def _piece_sizes(sizes: Sequence[int]) -> Iterator[int]:
    for size in sizes:
        yield from part_sizes(size, layout.PIECE_SIZE)


class _Buffer:
    """A block of memory that returns to the pool when both hashers are done with it."""

    def __init__(self, pool: queue.Queue[_Buffer]) -> None:
        self.view = memoryview(bytearray(_CHUNK))
        self._pool, self._users, self._lock = pool, 0, threading.Lock()

    def lend(self, users: int) -> None:
        self._users = users

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            free = not self._users
        if free:
            self._pool.put(self)


class _Flusher(threading.Thread):
    """Has the kernel write to the disk while later bytes are still being hashed, so that the last sync is short."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        # Bounded: every part in it is an open file, and a slow disk must not use all that a process may have.
        self._queue: queue.Queue[tuple[io.FileIO, bool] | None] = queue.Queue(maxsize=64)
        self._error: OSError | None = None

    def put(self, file: io.FileIO, *, last: bool) -> None:
        """Write out what the file holds; with `last`, sync it and close it."""
        self._queue.put((file, last))

    def end(self) -> None:
        """Wait until everything is on the disk. Raises OSError when something could not be written."""
        self._queue.put(None)
        self.join()
        if self._error:
            raise self._error

    def run(self) -> None:
        for file, last in iter(self._queue.get, None):
            try:
                (os.fsync if last else os.fdatasync)(file.fileno())
                if last:
                    file.close()
            except OSError as error:
                self._error = self._error or error


class _PartWriter:
    """Collects bytes into buffers; a full one is written to the current part and handed to the hashers."""

    def __init__(self, directory: Path, sizes: list[int], advance: Callable[[int], None]) -> None:
        self._directory, self._sizes, self._advance = directory, sizes, advance
        self._pool: queue.Queue[_Buffer] = queue.Queue()
        for _ in range(_BUFFERS):
            self._pool.put(_Buffer(self._pool))
        self._hashers = (_Hasher(sizes), _Hasher(list(_piece_sizes(sizes))))
        for hasher in self._hashers:
            hasher.start()
        self._flusher = _Flusher()
        self._flusher.start()
        self._buffer, self._fill = self._pool.get(), 0
        self._index, self._left, self._unflushed = 0, sizes[0], 0
        self._file = self._open()

    def write(self, data: bytes) -> None:
        """Append a few bytes."""
        view = memoryview(data)
        while view:
            count = min(len(view), _CHUNK - self._fill)
            self._buffer.view[self._fill : self._fill + count] = view[:count]
            view = view[count:]
            self._added(count)

    def write_from(self, readinto: Callable[[memoryview], int | None], size: int) -> int:
        """Append up to `size` bytes from a reader, without another copy; returns how many there were."""
        done = 0
        while done < size:
            count = readinto(self._buffer.view[self._fill : min(_CHUNK, self._fill + size - done)])
            if not count:
                break
            done += count
            self._added(count)
        return done

    def finish(self) -> tuple[Part, ...]:
        """Flush, sync, and say what was written."""
        self._flush()
        for hasher in self._hashers:
            hasher.end()
        self._flusher.put(self._file, last=True)
        self._flusher.end()
        whole, pieces = (hasher.digests for hasher in self._hashers)
        parts, start = [], 0
        for index, size in enumerate(self._sizes):
            end = start + len(part_sizes(size, layout.PIECE_SIZE))
            parts.append(Part(layout.part_name(index), size, whole[index], tuple(pieces[start:end])))
            start = end
        return tuple(parts)

    def close(self) -> None:
        """Release files and threads, whatever happened before."""
        for thread in (*self._hashers, self._flusher):
            if thread.is_alive():
                thread.end()
        self._file.close()

    def _open(self) -> io.FileIO:
        return (self._directory / layout.part_name(self._index)).open("wb", buffering=0)

    def _added(self, count: int) -> None:
        self._fill += count
        if self._fill == _CHUNK:
            self._flush()

    def _flush(self) -> None:
        buffer, view = self._buffer, self._buffer.view[: self._fill]
        buffer.lend(len(self._hashers))
        for hasher in self._hashers:
            hasher.put(view, buffer.release)
        self._store(view)
        self._advance(len(view))
        self._buffer, self._fill = self._pool.get(), 0

    def _store(self, view: memoryview) -> None:
        while view:
            if not self._left:
                self._next_part()
            count = self._file.write(view[: self._left])
            self._left -= count
            self._unflushed += count
            view = view[count:]
        if self._unflushed >= _FLUSH:
            self._flusher.put(self._file, last=False)
            self._unflushed = 0

    def _next_part(self) -> None:
        self._flusher.put(self._file, last=True)
        self._index += 1
        self._left, self._unflushed = self._sizes[self._index], 0
        self._file = self._open()
