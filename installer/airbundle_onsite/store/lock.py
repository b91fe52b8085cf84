"""One kernel lock per installation root."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import stat
from pathlib import Path
from types import TracebackType
from typing import Optional

from airbundle_onsite.errors import BusyError, IntegrityError
from airbundle_onsite.store.disk import FILE_MODE, make_directory


class Lock:
    """Held by whatever changes the store; the kernel lets go of it when the holder dies, however it dies.

    The file holds the holder's process id as text, for people and for the message of the next one. Commands that
    only read do not take it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: Optional[int] = None

    def __enter__(self) -> Lock:
        """Take the lock without waiting.

        Raises:
            BusyError: another process holds it.
            IntegrityError: something that is no file is in its place.
        """
        make_directory(self._path.parent, self._path.parent)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a named pipe has no text, and cannot be cut
            os.close(descriptor)
            raise IntegrityError(f"{self._path} is no regular file", remedy=f"rm {shlex.quote(str(self._path))}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise BusyError(str(self._path.parent), int(holder) if holder.isdigit() else None) from None
        with contextlib.suppress(OSError):  # the text is for people only; a full disk must not keep it from being taken
            os.ftruncate(descriptor, 0)
            os.fchmod(descriptor, FILE_MODE)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # also for a child that was forked meanwhile
            os.close(self._descriptor)
            self._descriptor = None
