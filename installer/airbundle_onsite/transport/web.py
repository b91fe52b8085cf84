"""A bundle's directory on a plain HTTP server, read in ranges where the server knows them, else in order.

One connection at a time, and a piece after the other: a network is slower than one core hashes. A connection that
breaks is made again where it broke, with growing pauses. Proxy variables are never looked at; a proxy is used when it
is named.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional
from urllib.parse import urlsplit

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError, UsageError
from airbundle_onsite.system import Clock
from airbundle_onsite.verify import checksums, media
from airbundle_onsite.verify.source import Copy

SMALL_LIMIT = 64 * 1024 * 1024
"""Bytes that a file beside the parts may have."""

_TIMEOUT = 30.0  # seconds without a byte
_WAITS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # seconds before each further try, as long as nothing new arrives
_TRIES_AT_FIRST = 2  # further ones, of a server that never answered: its name may be wrong
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_GONE = frozenset({404, 410})
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_FETCHES = 2  # of a piece that arrives spoiled
_CURE = "see that the file server runs and can be reached from here, and run the same command again"


def is_url(place: str) -> bool:
    """Whether a place is named by a URL."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", place) is not None


class _Absent(media.Unreadable):
    """The server answered that it has no such file."""


@record
class _Answer:
    """An open body, and how many bytes the file has; None when the server does not say."""

    body: http.client.HTTPResponse
    total: Optional[int]


class WebFolder:
    """A `PartSource` that reads parts from a server. Not for several threads at once.

    Args:
        url: of the bundle's directory, http or https.
        clock: for the pauses between tries.
        proxy: URL of a proxy; empty for none, whatever the environment says.

    Raises:
        UsageError: the URL cannot be used.
    """

    readers: Optional[int] = 1

    def __init__(self, url: str, clock: Clock, proxy: str = "") -> None:
        self.url, self._clock = _checked(url), clock
        self._opener = _opener(proxy)
        self._sizes: dict[str, Optional[int]] = {}
        self._absent: set[str] = set()
        self._open: Optional[tuple[str, int, _Answer]] = None  # name, position, body
        self._met, self._dead = False, ""

    @property
    def places(self) -> Sequence[str]:
        return (self.url,)

    def copies(self, name: str) -> Sequence[Copy]:
        if self.size(name) is None and name in self._absent:
            return ()
        return [_WebCopy(self, name)] * _FETCHES

    def size(self, name: str) -> Optional[int]:
        """Bytes of a file, as the server says; None when it does not, or there is none."""
        if name not in self._sizes:
            self._sizes[name] = None
            request = urllib.request.Request(self.url + name, method="HEAD", headers=_HEADERS)
            try:
                with self._opener.open(request, timeout=_TIMEOUT) as answer:
                    self._met = True
                    self._sizes[name] = _number(answer.headers.get("Content-Length"))
            except urllib.error.HTTPError as error:
                if error.code in _GONE:
                    self._absent.add(name)
            except (OSError, http.client.HTTPException):
                pass  # reading it will try harder, and say why
        return self._sizes[name]

    def blocks(self, name: str, offset: int, size: int) -> Iterator[bytes]:
        """A range of a file, at most 1 MiB at a time; it ends early where the file does.

        Raises:
            Unreadable: the server cannot be reached, or has no such file.
        """
        if self._dead:
            raise media.Unreadable(self._dead)
        done = failures = 0
        while done < size:
            try:
                block = self._read(name, offset + done, min(media.CHUNK, size - done))
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if failures == (len(_WAITS) if self._met else _TRIES_AT_FIRST) or _is_hopeless(error):
                    self._dead = f"{self.url}{name}: {_why(error)}"
                    raise media.Unreadable(self._dead) from error
                self._clock.sleep(_WAITS[failures])
                failures += 1
                continue
            if not block:
                return
            failures = 0
            done += len(block)
            yield block

    def small(self, name: str, limit: int = SMALL_LIMIT) -> bytes:
        """The whole of a file of at most `limit` bytes.

        Raises:
            Unreadable: as `blocks`, or it is larger.
        """
        data = b"".join(self.blocks(name, 0, limit + 1))
        if len(data) > limit:
            raise media.Unreadable(f"found more than {limit} bytes")
        return data

    def close(self) -> None:
        """Let go of the connection."""
        if self._open is not None:
            self._open[2].body.close()
            self._open = None

    def _read(self, name: str, position: int, size: int) -> bytes:
        if self._open is None or self._open[:2] != (name, position):
            self.close()
            answer = self._ask(name, position)
            if answer is None:
                return b""
            self._open = (name, position, answer)
        answer = self._open[2]
        block = answer.body.read(size)
        if not block:
            self.close()
            if answer.total is not None and position < answer.total:
                raise ConnectionResetError(f"the connection closed at byte {position} of {answer.total}")
            return b""
        self._open = (name, position + len(block), answer)
        return block

    def _ask(self, name: str, position: int) -> Optional[_Answer]:
        """An open body at that position; None when the file ends there or before."""
        headers = {**_HEADERS, **({"Range": f"bytes={position}-"} if position else {})}
        try:
            body = self._opener.open(urllib.request.Request(self.url + name, headers=headers), timeout=_TIMEOUT)
            self._met = True
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                return None
            if error.code in _PASSING:
                raise ConnectionError(f"the server says {error.code} {error.reason}") from error
            raise _Absent(f"{self.url}{name}: the server says {error.code} {error.reason}") from error
        if body.headers.get("Content-Encoding", "identity") != "identity":
            body.close()
            raise _Absent(f"{self.url}{name}: the server sends it compressed")
        match = _RANGE.fullmatch(body.headers.get("Content-Range", ""))
        if match is not None and body.status == 206 and int(match[1]) == position:
            return _Answer(body, _number(match[2]))
        if body.status != 200:
            body.close()
            raise ConnectionError("the server sent another range than was asked for")
        return self._skipped(_Answer(body, _number(body.headers.get("Content-Length"))), position)

    def _skipped(self, answer: _Answer, position: int) -> Optional[_Answer]:
        """The same body, of a server that does not know ranges, after its first bytes were passed over."""
        left = position
        while left:
            block = answer.body.read(min(media.CHUNK, left))
            if not block:
                answer.body.close()
                if answer.total is None or answer.total <= position:
                    return None
                raise ConnectionResetError("the connection closed")
            left -= len(block)
        return answer


@record
class _WebCopy:
    """A part on a server."""

    folder: WebFolder
    name: str

    @property
    def place(self) -> str:
        return self.folder.url

    @property
    def piece(self) -> Optional[int]:
        return None

    def size(self) -> Optional[int]:
        return self.folder.size(self.name)

    def hash_range(self, offset: int, size: int, buffer: memoryview) -> tuple[str, int]:
        hasher, done = hashlib.sha256(), 0
        for block in self.folder.blocks(self.name, offset, size):
            hasher.update(block)
            done += len(block)
        return hasher.hexdigest(), done

    def read_range(self, offset: int, size: int) -> tuple[deque[bytes], str]:
        hasher, blocks, done = hashlib.sha256(), deque[bytes](), 0
        for block in self.folder.blocks(self.name, offset, size):
            hasher.update(block)
            blocks.append(block)
            done += len(block)
        if done < size:
            raise media.Unreadable(f"it ends after {done} of {size} bytes")
        return blocks, hasher.hexdigest()


def fetch_small_files(folder: WebFolder, target: Path) -> None:
    """Copy what stands beside the parts into the directory `target`; nothing is believed of it yet.

    Raises:
        FetchError: the server cannot be reached, or there is no bundle.
    """
    try:
        sums = folder.small(layout.CHECKSUMS, checksums.LIMIT)
        (target / layout.CHECKSUMS).write_bytes(sums)
        names = [name for name in checksums.parse(sums)[0] if not layout.PART_PATTERN.fullmatch(name)]
        for name in dict.fromkeys([layout.MANIFEST, *names]):
            (target / name).write_bytes(folder.small(name))
    except media.Unreadable as error:
        raise FetchError(f"no bundle could be read from {folder.url}: {error}", remedy=_CURE) from error
    try:
        (target / layout.SIGNATURE).write_bytes(folder.small(layout.SIGNATURE))
    except _Absent:
        pass  # an unsigned bundle; whether that will do is not decided here
    except media.Unreadable as error:
        raise FetchError(f"{layout.SIGNATURE} could not be read: {error}", remedy=_CURE) from error


_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "airbundle"}


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"{url!r} is no http or https URL", remedy="write http://SERVER/PATH/ of the bundle's directory"
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError(
            f"{parts.scheme}://{parts.hostname}…: a password, a query or a fragment in a URL is not supported",
            remedy="serve the bundle's directory where this machine may read it by its plain path",
        )
    return url if url.endswith("/") else f"{url}/"


def _opener(proxy: str) -> urllib.request.OpenerDirector:
    """Opens http and https and nothing else that a redirect could name; certificates are held against the system's."""
    opener = urllib.request.OpenerDirector()
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else {}),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ]
    if hasattr(urllib.request, "HTTPSHandler"):  # absent from a Python without TLS
        handlers.append(urllib.request.HTTPSHandler())
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def _is_hopeless(error: Exception) -> bool:
    return "CERTIFICATE_VERIFY_FAILED" in str(error) or "unknown url type" in str(error)


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    text = getattr(reason, "strerror", None) or str(reason or error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text.upper():
        return "its certificate is not trusted here (SSL_CERT_FILE names a file of further authorities)"
    return text


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and text.isdecimal() else None
