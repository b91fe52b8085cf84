"""METADATA of a wheel: from the file beside it, else from its end by range requests, else from the wheel itself."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from airbundle.contract.lock import LockedFile
from airbundle.download import Downloader, Refused
from airbundle_onsite.errors import FetchError

_LIMIT = 16 << 20  # bytes of METADATA
_TAIL = 128 << 10  # bytes at the end of a wheel; holds the directory and METADATA of most
_BUFFER = 64 << 10
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)


class MetadataReader:
    """Reads METADATA with as few bytes as the place of each wheel allows.

    Args:
        downloader: for the index.
        fetch: brings a whole wheel into the cache; the last resort.
    """

    def __init__(self, downloader: Downloader, fetch: Callable[[LockedFile], Path]) -> None:
        self._downloader, self._fetch = downloader, fetch
        self._without: set[str] = set()  # hosts that have nothing beside their wheels

    def read(self, wheel: LockedFile) -> bytes:
        """METADATA of a wheel with an ``origin["url"]``. Raises FetchError when it cannot be had, or is no wheel."""
        data = self._beside(wheel.path, wheel.origin["url"])
        if data is not None:
            return data
        try:
            remote = _Remote(self._downloader, wheel.path, wheel.origin["url"], wheel.size)
        except _NoParts:
            with self._fetch(wheel).open("rb") as handle:
                return _metadata(handle, wheel.path)
        return _metadata(io.BufferedReader(remote, _BUFFER), wheel.path)

    def _beside(self, name: str, url: str) -> bytes | None:
        host = urlsplit(url).netloc
        if host in self._without:
            return None
        try:
            return self._downloader.read(f"{name}.metadata", f"{url}.metadata", limit=_LIMIT)[0]
        except Refused as error:
            if error.status not in (403, 404, 410):
                raise
            self._without.add(host)
            return None


def _metadata(handle: IO[bytes], name: str) -> bytes:
    try:
        with zipfile.ZipFile(handle) as archive:
            for member in archive.namelist():
                if member.endswith(".dist-info/METADATA") and member.count("/") == 1:
                    return archive.read(member)
    except _BROKEN as error:
        raise FetchError(f"{name}: the wheel is damaged ({error})", remedy="see what the index serves") from error
    raise FetchError(f"{name}: has no METADATA", remedy="see what the index serves, or rebuild it with a current tool")


class _NoParts(Exception):
    """The server gives whole files only."""


class _Remote(io.RawIOBase):
    """A file at a URL, read in parts; its end is read at once."""

    def __init__(self, downloader: Downloader, name: str, url: str, size: int) -> None:
        self._downloader, self._name, self._url, self._size = downloader, name, url, size
        self._at = 0
        self._tail_start = max(0, size - _TAIL)
        self._tail = self._part(self._tail_start, size - self._tail_start)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = min(len(buffer), self._size - self._at)
        if count <= 0:
            return 0
        if self._at >= self._tail_start:
            data = self._tail[self._at - self._tail_start :][:count]
        else:
            data = self._part(self._at, min(count, self._tail_start - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _part(self, start: int, count: int) -> bytes:
        data = self._downloader.part(self._name, self._url, start, count)
        if data is None:
            raise _NoParts
        return data
