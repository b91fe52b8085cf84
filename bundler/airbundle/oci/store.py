"""Where an image on a disk has its files: a directory, or a tar that is read in place."""

from __future__ import annotations

import posixpath
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from airbundle.cache import CHUNK, Cache, WrongBytes
from airbundle_onsite.errors import FetchError, UsageError

Advance = Callable[[int], None]
_LARGEST_DOCUMENT = 8 * 1024 * 1024  # bytes
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd", b"BZ": "bzip2", b"\xfd7": "xz"}


class Store(Protocol):
    """Files by their path inside. `label` is for messages."""

    label: str

    def size(self, path: str) -> int | None:
        """Bytes of a file; None when there is none."""
        ...

    def read(self, path: str) -> bytes:
        """A small document. Raises FetchError when it is missing or too large."""
        ...

    def add(self, path: str, cache: Cache, advance: Advance) -> tuple[str, int]:
        """Put a file into the cache; returns SHA-256 and size."""
        ...


class DirectoryStore:
    """A directory; its files are shared with the cache, not copied, where the filesystem can."""

    def __init__(self, root: Path, label: str) -> None:
        self.label, self._root = label, root

    def size(self, path: str) -> int | None:
        """See `Store.size`."""
        file = self._root / path
        return file.stat().st_size if file.is_file() else None

    def read(self, path: str) -> bytes:
        """See `Store.read`."""
        with self._open(path) as handle:
            return _small(handle, path, self.label)

    def add(self, path: str, cache: Cache, advance: Advance) -> tuple[str, int]:
        """See `Store.add`."""
        return cache.share(self._root / path, advance)

    def _open(self, path: str) -> IO[bytes]:
        try:
            return (self._root / path).open("rb")
        except OSError as error:
            raise FetchError(f"{self.label}: {path}: {error.strerror}", remedy=WHOLE) from error


class TarStore:
    """A tar file; its list of members is read once, its links are followed inside it. Safe for several threads."""

    def __init__(self, path: Path, label: str, *, packed: bool = False) -> None:
        """Open and list it.

        Args:
            packed: whether a tar packed with gzip will do. Reading here and there in it is slow.

        Raises:
            FetchError: it cannot be read, or breaks off.
            UsageError: it is packed.
        """
        self.label, self._lock = label, threading.Lock()
        try:
            form = _PACKED.get(_begin(path))
            if form and not (packed and form == "gzip"):
                raise UsageError(
                    f"{label}: packed with {form}", remedy=f"unpack it first ({form} -d), and name the tar"
                )
            self._tar = tarfile.open(path, "r:gz" if form else "r:", bufsize=CHUNK)  # noqa: SIM115 (kept open)
            self._members = {posixpath.normpath(member.name): member for member in self._tar}
        except OSError as error:
            raise FetchError(f"{label}: {error.strerror or error}", remedy="check the path") from error
        except (tarfile.TarError, EOFError) as error:
            raise FetchError(f"{label}: not a whole tar ({error})", remedy=WHOLE) from error

    def close(self) -> None:
        """Close the file."""
        self._tar.close()

    def size(self, path: str) -> int | None:
        """See `Store.size`."""
        member = self._find(path)
        return member.size if member else None

    def place(self, path: str) -> int:
        """Where a file begins in the tar: reading in this order never goes back."""
        member = self._find(path)
        return member.offset_data if member else 0

    def read(self, path: str) -> bytes:
        """See `Store.read`."""
        with self._lock, self._open(path) as handle:
            return _small(handle, path, self.label)

    def add(self, path: str, cache: Cache, advance: Advance) -> tuple[str, int]:
        """See `Store.add`."""

        def chunks() -> Iterator[bytes]:
            with self._open(path) as handle:
                while chunk := handle.read(CHUNK):
                    advance(len(chunk))
                    yield chunk

        try:
            with self._lock:
                return cache.add_stream(chunks())
        except (tarfile.TarError, EOFError) as error:
            raise FetchError(f"{self.label}: {path} breaks off ({error})", remedy=WHOLE) from error

    def _find(self, path: str) -> tarfile.TarInfo | None:
        path = posixpath.normpath(path)
        for _ in range(len(self._members)):
            member = self._members.get(path)
            if member is None or member.isreg():
                return member
            if member.issym():
                path = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
            elif member.islnk():
                path = posixpath.normpath(member.linkname)
            else:
                return None
        return None

    def _open(self, path: str) -> IO[bytes]:
        member = self._find(path)
        handle = self._tar.extractfile(member) if member else None
        if handle is None:
            raise FetchError(f"{self.label}: has no {path}", remedy=WHOLE)
        return handle


def split_path(text: str, base: Path) -> tuple[Path, str]:
    """``PATH[:NAME]``: the longest beginning that is there, and the rest; all of it when nothing is there."""
    parts = text.split(":")
    for count in range(len(parts), 0, -1):
        path = base / Path(":".join(parts[:count])).expanduser()
        if path.exists():
            return path, ":".join(parts[count:])
    return base / Path(text).expanduser(), ""


def add_blob(store: Store, path: str, sha256: str, size: int, cache: Cache, advance: Advance) -> None:
    """Put a blob of known digest into the cache. Raises FetchError when its bytes are others."""
    found, found_size = store.add(path, cache, advance)
    if found != sha256:
        cache.drop(found)
        wrong = WrongBytes(found, sha256, found_size, size)
        raise FetchError(f"{store.label}: {path} is damaged: {wrong.summary}", details=wrong.details, remedy=WHOLE)


def _begin(path: Path) -> bytes:
    with path.open("rb") as handle:
        return handle.read(2)


def _small(handle: IO[bytes], path: str, label: str) -> bytes:
    data = handle.read(_LARGEST_DOCUMENT + 1)
    if len(data) > _LARGEST_DOCUMENT:
        raise FetchError(f"{label}: {path} is larger than any document of an image", remedy=WHOLE)
    return data


WHOLE = "copy or save the image again, whole"
