"""The content-addressed cache: every fetched file once, under its SHA-256.

A file enters it only after its bytes were hashed and compared, by a rename inside the cache; so what stands
under ``blobs/`` is whole. What was proven is remembered with the file's size, modification time and inode; when
those still agree it is not hashed again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError

CHUNK = 1024 * 1024


def default_root(environ: os._Environ[str] | dict[str, str] = os.environ) -> Path:
    """``$AIRBUNDLE_CACHE``, else ``$XDG_CACHE_HOME/airbundle``, else ``~/.cache/airbundle``."""
    if environ.get("AIRBUNDLE_CACHE"):
        return Path(environ["AIRBUNDLE_CACHE"])
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "airbundle"


@record
class CacheUse:
    """How much the cache holds: files and bytes, whole and partial."""

    root: str
    files: int
    size: int
    partial_files: int
    partial_size: int


class Partial:
    """A file on its way into the cache; appended to, hashed while it grows, and committed or kept for resuming."""

    def __init__(self, cache: Cache, sha256: str, handle: IO[bytes], done: int, hasher: hashlib._Hash) -> None:
        self._cache, self.sha256, self._handle, self.done, self._hasher = cache, sha256, handle, done, hasher

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
        """Whether a whole, proven file is there; one that changed since it was proven is hashed again."""
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

        Bytes already there from an earlier try are hashed first, so that `Partial.done` is where to go on.

        Raises:
            FetchError: the bytes do not have this hash; they are thrown away.
        """
        partial_path = self.root / "partial" / sha256
        partial_path.parent.mkdir(parents=True, exist_ok=True)
        with partial_path.open("a+b") as handle:
            handle.seek(0)
            hasher, done = hashlib.sha256(), 0
            for chunk in iter(lambda: handle.read(CHUNK), b""):
                hasher.update(chunk)
                done += len(chunk)
            partial = Partial(self, sha256, handle, done, hasher)
            if done > size:
                partial.restart()
            yield partial
            handle.flush()
            os.fsync(handle.fileno())
        if partial.digest() != sha256:
            partial_path.unlink(missing_ok=True)
            raise FetchError(
                f"{sha256[:12]}…: received {partial.done} bytes with SHA-256 {partial.digest()}",
                details=(f"needed {size} bytes with SHA-256 {sha256}",),
            )
        self._commit(partial_path, sha256)

    def add_chunks(self, sha256: str, size: int, chunks: Iterable[bytes]) -> None:
        """Put a file in from a stream that cannot be resumed. Raises FetchError as `partial` does."""
        with self.partial(sha256, size) as partial:
            partial.restart()
            for chunk in chunks:
                partial.write(chunk)

    def add_bytes(self, data: bytes) -> str:
        """Put a small file in; returns its SHA-256."""
        sha256 = hashlib.sha256(data).hexdigest()
        if not self.has(sha256, len(data)):
            self.add_chunks(sha256, len(data), [data])
        return sha256

    def adopt(self, source: Path) -> tuple[str, int]:
        """Put a file of unknown hash in, moving it; it must be in `scratch`. Returns SHA-256 and size."""
        size, sha256 = source.stat().st_size, hash_file(source)
        if self.has(sha256, size):
            source.unlink()
        else:
            self._commit(source, sha256)
        return sha256, size

    def scratch(self, name: str) -> Path:
        """A directory of this name on the cache's filesystem, for files that are adopted later."""
        path = self.root / "scratch" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def use(self) -> CacheUse:
        """How much it holds."""
        blobs, partials = _sizes(self.root / "blobs"), _sizes(self.root / "partial")
        return CacheUse(str(self.root), len(blobs), sum(blobs), len(partials), sum(partials))

    def _commit(self, source: Path, sha256: str) -> None:
        target = self.path(sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
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
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(_stamp(self.path(sha256).stat())))
        temporary.replace(path)


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _stamp(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _sizes(directory: Path) -> list[int]:
    return [path.stat().st_size for path in directory.rglob("*") if path.is_file()] if directory.is_dir() else []
