"""Writes the joined payload into parts and hashes them behind the writer.

The kernel copies content from file to file. Two threads read what then stands in the parts, still in memory, and hash
it: one whole parts, one their pieces of 64 MiB. A hash is so of the bytes in the part and not of those that were
meant for it, and the SHA-256 of a file that the cache has proven is not computed again.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.payload import Part

_CHUNK = 1024 * 1024
_STEP = 4 * _CHUNK  # bytes written before those who hash are told
_LEAD = 256 * _CHUNK  # bytes the writer may be ahead of them: they are to find the bytes in memory
_FLUSH = 128 * _CHUNK  # bytes after which the kernel is asked to write to the disk, so that the last sync is short
_OPEN = 64  # parts that may wait for their sync; each is an open file
_NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # filesystems between which the kernel copies nothing


def part_sizes(total: int, part_size: int) -> list[int]:
    """Sizes of the parts of a payload of `total` bytes; `part_size` 0 means one part."""
    if part_size <= 0 or part_size >= total:
        return [total]
    whole, rest = divmod(total, part_size)
    return [part_size] * whole + ([rest] if rest else [])


class PartWriter:
    """Takes a payload of known size from its first byte to its last.

    Args:
        directory: an existing directory for the parts.
        sizes: of the parts, in bytes, in order.
        advance: told the number of bytes as they are written.
    """

    def __init__(self, directory: Path, sizes: list[int], advance: Callable[[int], None]) -> None:
        self._directory, self._sizes, self._advance = directory, sizes, advance
        self._unflushed = self._unseen = self._index = 0
        self._left = sizes[0]
        self._file = self._open()
        self._progress = _Progress()
        self._syncs: deque[Future[None]] = deque()
        self._syncing = ThreadPoolExecutor(1, thread_name_prefix="sync")
        hashing = _Hashing(directory, sizes, self._progress)
        self._wholes = _Aside("parts", lambda: hashing.run(hashing.parts))
        self._pieces = _Aside("pieces", lambda: hashing.run(hashing.later_pieces))

    def write(self, data: bytes) -> None:
        """Append bytes in memory."""
        view = memoryview(data)
        while view:
            room = self._room()
            count = self._file.write(view[:room])
            view = view[count:]
            self._added(count)

    def copy(self, source: int, offset: int, size: int) -> int:
        """Append up to `size` bytes of an open file from `offset` on; returns how many there were.

        Args:
            source: the file's descriptor.
        """
        done = 0
        while done < size:
            room = self._room()
            count = _send(source, offset + done, self._file.fileno(), min(size - done, room, _STEP))
            if not count:
                break
            done += count
            self._added(count)
        return done

    def finish(self) -> tuple[Part, ...]:
        """Have everything synced, and say what was written. Raises OSError when that, or reading it, failed."""
        self._progress.wrote(self._unseen)
        self._close_part()
        while self._syncs:
            self._syncs.popleft().result()
        pieces = iter(self._pieces.result())
        made = []
        for index, (size, found) in enumerate(zip(self._sizes, _pairs(self._wholes.result()), strict=True)):
            first, whole = found
            rest = [next(pieces) for _ in part_sizes(size, layout.PIECE_SIZE)[1:]]
            made.append(Part(layout.part_name(index), size, whole, (first, *rest)))
        return tuple(made)

    def close(self) -> None:
        """Release files and threads, whatever happened before."""
        self._progress.stop()
        self._wholes.join()
        self._pieces.join()
        self._syncing.shutdown()
        self._file.close()

    def _open(self) -> io.FileIO:
        return (self._directory / layout.part_name(self._index)).open("wb", buffering=0)

    def _room(self) -> int:
        """Bytes that the current part still takes, after a new one was begun if need be."""
        if not self._left:
            self._close_part()
            self._index += 1
            self._left, self._unflushed = self._sizes[self._index], 0
            self._file = self._open()
        return self._left

    def _added(self, count: int) -> None:
        self._left -= count
        self._unflushed += count
        self._unseen += count
        self._advance(count)
        if self._unflushed >= _FLUSH:
            self._later(_write_out)
            self._unflushed = 0
        if self._unseen >= _STEP:
            self._progress.wrote(self._unseen)
            self._unseen = 0

    def _close_part(self) -> None:
        self._later(_sync_and_close)

    def _later(self, action: Callable[[io.FileIO], None]) -> None:
        """Do this with the current part aside, in order."""
        self._syncs.append(self._syncing.submit(action, self._file))
        if len(self._syncs) > _OPEN:
            self._syncs.popleft().result()


class _Aside:
    """Work in a thread of its own, whose end no program waits for: a Ctrl-C between the thread's start and the `try`
    that would stop it leaves a thread that waits for bytes for ever, as one of a pool would keep the process alive."""

    def __init__(self, name: str, work: Callable[[], list[str]]) -> None:
        self._future: Future[list[str]] = Future()
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], list[str]]) -> None:
        try:
            self._future.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised where the result is asked for
            self._future.set_exception(error)

    def result(self) -> list[str]:
        return self._future.result()

    def join(self) -> None:
        self._thread.join()


class _Stopped(Exception):
    """The writer gave up."""


class _Progress:
    """How far the writer is, and those who hash behind it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._written, self._stopped = 0, False
        self._read: dict[int, int] = {}

    def wrote(self, count: int) -> None:
        """More bytes stand in the parts. Waits until nobody is too far behind."""
        with self._changed:
            self._written += count
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._stopped or self._written - min(self._read.values(), default=0) <= _LEAD
            )

    def wait(self, position: int) -> int:
        """How many bytes follow `position`, once there are any; all before it was read. Raises _Stopped."""
        with self._changed:
            self._read[threading.get_ident()] = position
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopped or self._written > position)
            if self._written > position:
                return self._written - position
            raise _Stopped

    def leave(self) -> None:
        """This thread reads no more."""
        with self._changed:
            self._read.pop(threading.get_ident(), None)
            self._changed.notify_all()

    def stop(self) -> None:
        """Nothing more is written, and nobody waits any longer."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class _Hashing:
    """Reads parts while they grow. The first piece of a part begins its hash, so it needs no reading of its own."""

    def __init__(self, directory: Path, sizes: list[int], progress: _Progress) -> None:
        self._directory, self._sizes, self._progress = directory, sizes, progress

    def run(self, digests: Callable[[], Iterator[str]]) -> list[str]:
        """All digests, in order."""
        try:
            return list(digests())
        except OSError:
            self._progress.stop()
            raise
        finally:
            self._progress.leave()

    def parts(self) -> Iterator[str]:
        """Of each part the digest of its first piece, and its own."""
        for file, begin, size in self._files():
            hasher, head = hashlib.sha256(), min(size, layout.PIECE_SIZE)
            self._feed(hasher, file, begin, 0, head)
            yield hasher.hexdigest()
            self._feed(hasher, file, begin, head, size)
            yield hasher.hexdigest()

    def later_pieces(self) -> Iterator[str]:
        """The digests of every part's pieces from the second on."""
        for file, begin, size in self._files():
            for start in range(layout.PIECE_SIZE, size, layout.PIECE_SIZE):
                hasher = hashlib.sha256()
                self._feed(hasher, file, begin, start, min(start + layout.PIECE_SIZE, size))
                yield hasher.hexdigest()

    def _files(self) -> Iterator[tuple[io.FileIO, int, int]]:
        """Each part once something stands in it: the file, where it begins in the payload, and its size."""
        begin = 0
        for index, size in enumerate(self._sizes):
            self._progress.wait(begin)
            with (self._directory / layout.part_name(index)).open("rb", buffering=0) as file:
                yield file, begin, size
            begin += size

    def _feed(self, hasher: hashlib._Hash, file: io.FileIO, begin: int, start: int, end: int) -> None:
        """Hash a range of a part that begins at `begin`."""
        buffer = memoryview(bytearray(_CHUNK))
        while start < end:
            there = self._progress.wait(begin + start)
            count = os.preadv(file.fileno(), [buffer[: min(there, end - start)]], start)
            if not count:
                raise OSError(errno.EIO, "what was written cannot be read back", file.name)
            hasher.update(buffer[:count])
            start += count


def _pairs(digests: list[str]) -> Iterator[tuple[str, str]]:
    return zip(digests[::2], digests[1::2], strict=True)


def _send(source: int, offset: int, target: int, size: int) -> int:
    """Copy from one file to another inside the kernel, where it can; returns the bytes copied, 0 at the end."""
    try:
        return os.sendfile(target, source, offset, size)
    except OSError as error:
        if error.errno not in _NO_SENDFILE:
            raise
    return os.write(target, os.pread(source, min(size, _CHUNK), offset))


def _write_out(file: io.FileIO) -> None:
    os.fdatasync(file.fileno())


def _sync_and_close(file: io.FileIO) -> None:
    os.fsync(file.fileno())
    file.close()
