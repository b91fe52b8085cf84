"""Reading what lies on the media: regular files only, never followed elsewhere, never changed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Optional

CHUNK = 1024 * 1024
"""Bytes per read: small enough to stay in a core's cache, large enough that hashlib releases the GIL."""

READ_AHEAD = 16 * 1024 * 1024
"""Bytes that the kernel is asked for ahead of a range that is read by several threads at once."""

RECOPY = "copy it again from where the bundle was built; nothing on the media was changed"

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a character device"),
)


class Unreadable(Exception):
    """A file of the bundle could not be read; the text says why, as in ``found a directory``."""


def kind_of(mode: int) -> str:
    """What `st_mode` says an entry is, with its article; empty for a regular file."""
    return next((name for test, name in _KINDS if test(mode)), "")


@contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """A descriptor for reading a regular file.

    Raises:
        Unreadable: it is missing, a link, a directory or anything else, or may not be read.
    """
    try:
        # O_NONBLOCK: a named pipe in place of the file must not block; it means nothing for a regular file.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Unreadable(_why_not_opened(path, error)) from error
    try:
        kind = kind_of(os.fstat(descriptor).st_mode)
        if kind:
            raise Unreadable(f"found {kind}, needed a file")
        yield descriptor
    finally:
        os.close(descriptor)


def read_small(path: Path, limit: int) -> bytes:
    """The whole of a file of at most `limit` bytes.

    Raises:
        Unreadable: as `open_regular`; also when it is larger, or the media fail.
    """
    with open_regular(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise Unreadable(f"found {size} bytes, needed at most {limit}")
        try:
            with os.fdopen(os.dup(descriptor), "rb") as handle:
                return handle.read(limit)
        except OSError as error:
            raise Unreadable(f"reading it failed: {error.strerror}") from error


def hash_file(path: Path) -> tuple[int, str]:
    """Size in bytes and SHA-256 of a file. Raises Unreadable."""
    with open_regular(path) as descriptor:
        size = os.fstat(descriptor).st_size
        buffer = memoryview(bytearray(min(CHUNK, max(size, 1))))
        digest, done = hash_range(descriptor, 0, size, buffer)
        if done != size:
            raise Unreadable(f"it shrank to {done} bytes while it was read, needed {size}")
        return size, digest


def hash_range(descriptor: int, offset: int, size: int, buffer: memoryview) -> tuple[str, int]:
    """SHA-256 of a range of an open file, and how many of its bytes there were; a file's end is no error.

    Raises:
        Unreadable: the media fail.
    """
    hasher, done = hashlib.sha256(), 0
    while done < size:
        count = read_at(descriptor, buffer[: size - done], offset + done)
        if not count:
            break
        hasher.update(buffer[:count])
        done += count
    return hasher.hexdigest(), done


def read_range(descriptor: int, offset: int, size: int) -> tuple[deque[bytes], str]:
    """A range of an open file as blocks of at most 1 MiB, and its SHA-256.

    Raises:
        Unreadable: the media fail, or the file ends before.
    """
    blocks: deque[bytes] = deque()
    hasher, done = hashlib.sha256(), 0
    while done < size:
        try:
            block = os.pread(descriptor, min(CHUNK, size - done), offset + done)
        except OSError as error:
            raise _failed(offset + done, error) from error
        if not block:
            raise Unreadable(f"it ends after {done} of {size} bytes")
        hasher.update(block)
        blocks.append(block)
        done += len(block)
    return blocks, hasher.hexdigest()


def read_at(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fill `buffer` from byte `offset` on, as far as one read goes. Returns the bytes read.

    Raises:
        Unreadable: the media fail.
    """
    try:
        return os.preadv(descriptor, [buffer], offset)
    except OSError as error:
        raise _failed(offset, error) from error


def _failed(offset: int, error: OSError) -> Unreadable:
    return Unreadable(f"reading it failed at byte {offset}: {error.strerror}")


def will_need(descriptor: int, offset: int, size: int) -> None:
    """Ask the kernel to read ahead; where it does not know how, nothing is lost."""
    with suppress(OSError):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)


def _why_not_opened(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is missing"
    found = _lstat_mode(path)
    kind = kind_of(found) if found is not None else ""
    if kind:
        return f"found {kind}, needed a file"
    if isinstance(error, PermissionError):
        return "this user may not read it"
    return f"it cannot be opened: {error.strerror}"


def _lstat_mode(path: Path) -> Optional[int]:
    try:
        return path.lstat().st_mode
    except OSError:
        return None
