"""The content-addressed cache: every fetched file once, under its SHA-256.

A file enters it only after its bytes were hashed and compared, by a rename inside the cache; so what stands
under ``blobs/`` is whole. What was proven is remembered with the file's size, modification time and inode; when
those still agree it is not hashed again.

Layout: ``blobs/`` whole files, ``partial/`` downloads under way, ``scratch/`` files of a hash not yet known,
``proofs/`` what was proven.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from airbundle_onsite.errors import FetchError

CHUNK = 1024 * 1024
_FICLONE = 0x40049409  # ioctl that shares a file's blocks, on xfs and btrfs


def default_root(environ: os._Environ[str] | dict[str, str] = os.environ) -> Path:
    """``$AIRBUNDLE_CACHE``, else ``$XDG_CACHE_HOME/airbundle``, else ``~/.cache/airbundle``."""
    if environ.get("AIRBUNDLE_CACHE"):
        return Path(environ["AIRBUNDLE_CACHE"])
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "airbundle"


class WrongBytes(FetchError):
    """Bytes arrived, but not the ones that were wanted.

    Attributes:
        found, needed: SHA-256, in hexadecimal.
        size: bytes that arrived.
    """

    def __init__(self, found: str, needed: str, size: int, needed_size: int) -> None:
        super().__init__(
            f"{needed[:12]}…: received {size} bytes with SHA-256 {found}",
            details=(f"needed {needed_size} bytes with SHA-256 {needed}",),
        )
        self.found, self.needed, self.size = found, needed, size


class Partial:
    """A file on its way into the cache; appended to, hashed while it grows, and committed or kept for resuming.

    Attributes:
        sha256: wanted.
        done: bytes already there; where to go on.
        whole: the file came into the cache while this process waited for its turn; there is nothing to do.
    """

    def __init__(self, sha256: str, handle: IO[bytes], whole: bool) -> None:
        self.sha256, self.whole, self.done = sha256, whole, 0
        self._handle, self._hasher = handle, hashlib.sha256()

    def rehash(self) -> None:
        """Hash what an earlier try left."""
        self._handle.seek(0)
        for chunk in iter(lambda: self._handle.read(CHUNK), b""):
            self._hasher.update(chunk)
            self.done += len(chunk)

    def write(self, data: bytes) -> None:
        """Append."""
        self._handle.write(data)
        self._hasher.update(data)
        self.done += len(data)

    def restart(self) -> None:
        """Throw away what is there: the server cannot resume."""
        self._handle.seek(0)
        self._handle.truncate()
        self._hasher = hashlib.sha256()
        self.done = 0

    def digest(self) -> str:
        return self._hasher.hexdigest()


class Cache:
    """See the module's text. Safe for several processes: each commit is one rename of a whole file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha256: str) -> Path:
        """Where the file with this hash is, or would be."""
        return self.root / "blobs" / sha256[:2] / sha256

    def has(self, sha256: str, size: int, *, paranoid: bool = False) -> bool:
        """Whether a proven file of `size` bytes is there; one that changed since it was proven is hashed again."""
        path = self.path(sha256)
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
        if status.st_size != size:
            path.unlink(missing_ok=True)
            return False
        if not paranoid and self._proof(sha256) == _stamp(status):
            return True
        if hash_file(path) == sha256:
            self._remember(sha256)
            return True
        path.unlink(missing_ok=True)
        return False

    @contextmanager
    def partial(self, sha256: str, size: int) -> Iterator[Partial]:
        """Open a partial file for appending; on leaving it without an error, check and commit it.

        Bytes already there from an earlier try are hashed first, so that `Partial.done` is where to go on. One
        thread of one process works on a file at a time; the others wait here and then find it whole.

        Raises:
            WrongBytes: the bytes do not have this hash; they are thrown away.
        """
        path = self.root / "partial" / sha256
        with _locked(path) as handle:
            partial = Partial(sha256, handle, whole=self.has(sha256, size))
            if partial.whole:
                path.unlink()
                yield partial
                return
            partial.rehash()
            if partial.done > size:
                partial.restart()
            yield partial
            handle.flush()
            os.fsync(handle.fileno())
            if partial.digest() != sha256:
                path.unlink()
                raise WrongBytes(partial.digest(), sha256, partial.done, size)
            self._commit(path, sha256)

    def add_chunks(self, sha256: str, size: int, chunks: Iterable[bytes]) -> None:
        """Put a file of `size` bytes in from a stream that cannot be resumed. Raises FetchError as `partial` does."""
        with self.partial(sha256, size) as partial:
            if partial.whole:
                return
            partial.restart()
            for chunk in chunks:
                partial.write(chunk)

    def add_bytes(self, data: bytes) -> str:
        """Put a small file in; returns its SHA-256."""
        sha256 = hashlib.sha256(data).hexdigest()
        if not self.has(sha256, len(data)):
            self.add_chunks(sha256, len(data), [data])
        return sha256

    def add_stream(self, chunks: Iterable[bytes]) -> tuple[str, int]:
        """Put a file of unknown hash in, from a stream. Returns SHA-256 and size; nothing is kept on an error."""
        hasher, size = hashlib.sha256(), 0
        with tempfile.NamedTemporaryFile(dir=self.scratch("streams"), delete=False) as handle:
            path = Path(handle.name)
            fcntl.flock(handle, fcntl.LOCK_EX)  # so that `prune` sees that it is in use
            try:
                for chunk in chunks:
                    handle.write(chunk)
                    hasher.update(chunk)
                    size += len(chunk)
                handle.flush()
                self._take(path, hasher.hexdigest(), size)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        return hasher.hexdigest(), size

    def share(self, source: Path, advance: Callable[[int], None]) -> tuple[str, int]:
        """Put somebody's own file in without taking it away: shared blocks, else a hard link, else a copy.

        A hard link costs no space and outlives the name it was made from. Should the file be changed in place
        later, its stamp changes too, so `has` hashes it again and no longer counts it as here.

        Args:
            source: a regular file.
            advance: told the bytes hashed, as they are.

        Returns:
            SHA-256 and size.

        Raises:
            FetchError: the file changed while it was read.
        """
        before, hasher, done = source.stat(), hashlib.sha256(), 0
        with source.open("rb") as handle:
            while done <= before.st_size and (chunk := handle.read(CHUNK)):
                hasher.update(chunk)
                done += len(chunk)
                advance(len(chunk))
        sha256, size = hasher.hexdigest(), before.st_size
        if _stamp(source.stat()) != _stamp(before):
            raise _changed(source)
        if not self.has(sha256, size):
            path = self._share_as(source)
            if _stamp(source.stat()) != _stamp(before):
                path.unlink()
                raise _changed(source)
            self._take(path, sha256, size, own=path.stat().st_nlink == 1)
        return sha256, size

    def _share_as(self, source: Path) -> Path:
        """A new name in scratch for the bytes of `source`."""
        with tempfile.NamedTemporaryFile(dir=self.scratch("shared"), delete=False) as handle:
            path = Path(handle.name)
            with source.open("rb") as original:
                try:
                    fcntl.ioctl(handle.fileno(), _FICLONE, original.fileno())
                    return path
                except OSError:
                    pass
        path.unlink()
        try:
            path.hardlink_to(source.resolve())
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP):
                raise
            shutil.copyfile(source, path)
        return path

    def _take(self, path: Path, sha256: str, size: int, *, own: bool = True) -> None:
        """Move a finished file from scratch to its place, or drop it when one like it is there."""
        if self.has(sha256, size):
            path.unlink()
            return
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
        self._commit(path, sha256, own=own)

    def missing_bytes(self, sha256: str, size: int) -> int:
        """Bytes still to come for this file: 0 when it is whole, less what an earlier try left behind."""
        if self.has(sha256, size):
            return 0
        try:
            return max(0, size - (self.root / "partial" / sha256).stat().st_size)
        except FileNotFoundError:
            return size

    def drop(self, sha256: str) -> None:
        """Take one file out, if it is there."""
        self.path(sha256).unlink(missing_ok=True)
        self._proof_path(sha256).unlink(missing_ok=True)

    def scratch(self, name: str) -> Path:
        """A directory of this name on the cache's filesystem, for files on their way into it."""
        path = self.root / "scratch" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _commit(self, source: Path, sha256: str, *, own: bool = True) -> None:
        target = self.path(sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
        if own:  # a hard link shares its mode with the file of the person it belongs to
            source.chmod(0o444)
        source.replace(target)
        self._remember(sha256)

    def _proof_path(self, sha256: str) -> Path:
        return self.root / "proofs" / sha256[:2] / sha256

    def _proof(self, sha256: str) -> list[int] | None:
        try:
            proof: list[int] = json.loads(self._proof_path(sha256).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return proof

    def _remember(self, sha256: str) -> None:
        path = self._proof_path(sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        temporary.write_text(json.dumps(_stamp(self.path(sha256).stat())))
        temporary.replace(path)


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """Open for appending and hold the file's lock; the file that has the name once the lock is ours is the one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a+b") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            try:
                mine = os.fstat(handle.fileno()).st_ino == path.stat().st_ino
            except FileNotFoundError:
                mine = False
            if mine:
                yield handle
                return


def _changed(source: Path) -> FetchError:
    return FetchError(f"{source}: changed while it was read", remedy="wait until it is written, then try again")


def _stamp(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ino]
