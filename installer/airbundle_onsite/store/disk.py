"""Durable file operations that do not depend on the umask and do not follow links planted under the root."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Optional

from airbundle_onsite.errors import IntegrityError

DIRECTORY_MODE = 0o755
FILE_MODE = 0o644
WEIGHT_MODE = 0o444
SECRET_MODE = 0o600
_FLUSH = 128 * 1024 * 1024
"""Bytes of a growing file after which the disk is set to work, so that the sync at the end is short."""
_NO_MODES = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL})


def make_directory(path: Path, base: Path) -> None:
    """Make `path` and what is missing between it and `base`, each readable by everyone.

    Raises:
        IntegrityError: something on the way is a symbolic link or no directory.
        OSError: as the system says.
    """
    base.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    step = base
    for name in path.relative_to(base).parts:
        step = step / name
        try:
            step.mkdir()
        except FileExistsError:
            if not stat.S_ISDIR(step.lstat().st_mode):
                raise IntegrityError(
                    f"{step} should be a directory of the store, but is a link or a file",
                    remedy="move it away; to keep the store elsewhere, pass that place as --root",
                ) from None
        else:
            step.chmod(DIRECTORY_MODE)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's content durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Make every file and name under `directory` durable.

    Files are synced after all were written, so that the disk has long been writing the first while the last
    arrived: this costs little over one flush at the end, and touches no other program's data.
    """
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if path.is_symlink():
                continue
            sync_file(path)
        sync_directory(Path(folder))


def write_new(path: Path, chunks: Iterable[bytes], mode: int) -> int:
    """Write a file that does not exist yet; on any failure nothing is left. Returns the bytes written."""
    count = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, SECRET_MODE)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file, _Flushing(descriptor) as flushing:
            for chunk in chunks:
                view = memoryview(chunk)
                while view:
                    written = file.write(view)
                    count += written
                    view = view[written:]
                flushing.wrote(len(chunk))
            _set_mode(descriptor, mode)
    except BaseException:
        path.unlink()
        raise
    return count


class _Flushing:
    """Writes a growing file to the disk from a thread of its own, while more of it arrives. A context manager."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._unflushed = descriptor, 0
        self._pool: Optional[ThreadPoolExecutor] = None
        self._flush: Optional[Future[None]] = None

    def __enter__(self) -> _Flushing:
        return self

    def wrote(self, count: int) -> None:
        """More bytes stand in the file. Raises OSError when the disk did not take earlier ones."""
        self._unflushed += count
        if self._unflushed < _FLUSH or (self._flush is not None and not self._flush.done()):
            return
        self._settle()
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._flush = self._pool.submit(os.fdatasync, self._descriptor)
        self._unflushed = 0

    def __exit__(self, kind: object, *_error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        if kind is None:
            self._settle()

    def _settle(self) -> None:
        if self._flush is not None:
            self._flush.result()


def _set_mode(descriptor: int, mode: int) -> None:
    """Give a file its mode where there are modes: a file that is written onto a stick may find none."""
    try:
        os.fchmod(descriptor, mode)
    except OSError as error:
        if error.errno not in _NO_MODES:
            raise


def write_atomic(path: Path, data: bytes, mode: int = FILE_MODE) -> None:
    """Replace a small file's content, durably: readers see the old content or the new, never a mixture."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    write_new(temporary, (data,), mode)
    sync_file(temporary)
    temporary.replace(path)
    sync_directory(path.parent)


def link_atomic(path: Path, target: str) -> None:
    """Point the symbolic link `path` at `target`, replacing what it pointed at in one step, durably."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(path)
    sync_directory(path.parent)


def remove_tree(path: Path) -> None:
    """Remove a file or a directory with all it holds; links are removed, not followed. Absent is fine."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def tree_bytes(path: Path) -> int:
    """Bytes that removing `path` would free: files with other hard links outside are not counted."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            facts = Path(folder, name).lstat()
            if facts.st_nlink == 1:
                total += facts.st_size
    return total
