"""One file over HTTP into the cache: resumed, retried and hashed.

Retries live in one loop here. urllib3's own end where a body begins, and it is in the middle of bodies that
long downloads break; here a broken one goes on where it stopped.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import requests
import urllib3.exceptions

from airbundle import web
from airbundle.cache import CHUNK, Cache, Partial, WrongBytes
from airbundle.contract.lock import LockedFile
from airbundle_onsite.errors import FetchError
from airbundle_onsite.system import Clock, SystemClock
from airbundle_onsite.units import human_bytes

T = TypeVar("T")
Advance = Callable[[int], None]

_ATTEMPTS = 5  # without a single new byte between them
_LONGEST_WAIT = 60.0  # seconds, whatever a Retry-After asks for
_TIMEOUT = (15.0, 60.0)  # seconds to connect, and between two pieces of a body
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class Credentials(Protocol):
    """Signs requests, as `requests` wants it from its ``auth``, and answers a 401."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest: ...

    def challenge(self, response: requests.Response) -> bool:
        """Take in a 401. Returns whether the request is worth sending again."""
        ...


class Refused(FetchError):
    """The server answered, and not with the file. `status` is HTTP's."""

    status = 0


class _Again(Exception):
    """This try failed, another may not. `wait` is what the server asked for, in seconds."""

    def __init__(self, reason: str, wait: float = 0) -> None:
        super().__init__(reason)
        self.wait = wait


class _WrongSize(Exception):
    """The place holds a file of another size."""


class Downloader:
    """Downloads over HTTP into the cache."""

    def __init__(self, cache: Cache, session: requests.Session, *, clock: Clock | None = None) -> None:
        self._cache, self._session, self._clock = cache, session, clock or SystemClock()

    def download(self, item: LockedFile, url: str, advance: Advance, credentials: Credentials | None = None) -> None:
        """Bring a file into the cache: resumed, retried, and once fetched anew when its bytes were wrong.

        Args:
            item: path (for messages), SHA-256 and size.
            url: where it is.
            advance: told new bytes as they arrive, those of an earlier try first; negative when they were thrown away.
            credentials: for the first host only; redirects to another host go without.

        Raises:
            FetchError: naming the file, the place, what was found and what was needed.
        """
        meter = _Meter(advance)
        with disk_full(self._cache, item):
            try:
                self._try(item, url, meter, credentials)
            except (WrongBytes, _WrongSize):
                meter.back()
                try:
                    self._try(item, url, meter, credentials)
                except (WrongBytes, _WrongSize) as error:
                    raise _wrong(item, url, error) from error

    def read(
        self,
        name: str,
        url: str,
        *,
        limit: int,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
    ) -> tuple[bytes, Mapping[str, str]]:
        """A small document of unknown hash, and its response headers.

        Raises:
            FetchError: it cannot be had, or has more than `limit` bytes.
        """

        def once() -> tuple[bytes, Mapping[str, str]]:
            with self._get(name, url, headers or {}, credentials) as response:
                data = response.raw.read(limit + 1, decode_content=True)
                if len(data) > limit:
                    raise FetchError(f"{name} at {web.without_secrets(url)}: more than {human_bytes(limit)}")
                return data, response.headers

        return self._persist(name, url, once, lambda: 0)

    def head(self, name: str, url: str, count: int, credentials: Credentials | None = None) -> bytes:
        """The first `count` bytes of a file, or all of a shorter one; nothing proves them. Raises FetchError."""

        def once() -> bytes:
            headers = {"Accept-Encoding": "identity", "Range": f"bytes=0-{max(0, count - 1)}"}
            with self._get(name, url, headers, credentials) as response:
                if response.status_code == 416:  # an empty file has no first byte
                    return b""
                data: bytes = response.raw.read(count, decode_content=False)
                return data

        return self._persist(name, url, once, lambda: 0)

    def part(self, name: str, url: str, start: int, count: int) -> bytes | None:
        """`count` bytes of a file from `start` on; nothing proves them. None when the server gives no parts.

        Raises:
            FetchError: it cannot be had.
        """

        def once() -> bytes | None:
            headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{start + count - 1}"}
            with self._get(name, url, headers, None) as response:
                if response.status_code != 206:
                    return None
                data: bytes = response.raw.read(count, decode_content=False)
                return data

        return self._persist(name, url, once, lambda: 0)

    def size(self, name: str, url: str, credentials: Credentials | None = None) -> int:
        """Bytes of a file, from its headers. Raises FetchError when the place does not say."""

        def once() -> int:
            with self._get(name, url, {"Accept-Encoding": "identity"}, credentials) as response:
                return int(response.headers.get("Content-Length", -1))

        found = self._persist(name, url, once, lambda: 0)
        if found < 0:
            raise FetchError(f"{name} at {web.without_secrets(url)}: the server does not say how large it is")
        return found

    def _try(self, item: LockedFile, url: str, meter: _Meter, credentials: Credentials | None) -> None:
        with self._cache.partial(item.sha256, item.size) as partial:
            if partial.whole:
                meter(item.size)
                return
            meter(partial.done)
            state = _State()
            while partial.done < item.size:
                self._persist(
                    item.path,
                    url,
                    lambda: self._go_on(item, url, partial, state, meter, credentials),
                    lambda: partial.done,
                )

    def _go_on(
        self,
        item: LockedFile,
        url: str,
        partial: Partial,
        state: _State,
        meter: _Meter,
        credentials: Credentials | None,
    ) -> None:
        """One request, from where the partial file ends to where the answer ends."""
        headers = {"Accept-Encoding": "identity"}
        if partial.done:
            headers["Range"] = f"bytes={partial.done}-"
            if state.etag:
                headers["If-Range"] = state.etag
        with self._get(item.path, url, headers, credentials) as response:
            _position(response, partial, item, meter)
            state.etag = _strong(response.headers.get("ETag", ""))
            for chunk in response.raw.stream(CHUNK, decode_content=False):
                partial.write(chunk)
                meter(len(chunk))
                if partial.done > item.size:
                    raise _too_large(partial, item)
        if partial.done < item.size:
            raise _Again(f"the connection closed after {partial.done} of {item.size} bytes")

    def _get(
        self, name: str, url: str, headers: Mapping[str, str], credentials: Credentials | None
    ) -> requests.Response:
        """An answer worth reading: 200, 206 or 416. Raises _Again or FetchError otherwise."""
        for last in (False, True):
            response = self._session.get(url, headers=headers, stream=True, timeout=_TIMEOUT, auth=credentials)
            if response.status_code in (200, 206, 416):
                return response
            response.close()
            if last or response.status_code != 401 or credentials is None or not credentials.challenge(response):
                raise refusal(name, url, response)
        raise AssertionError("unreachable")

    def _persist(self, name: str, url: str, once: Callable[[], T], done: Callable[[], int]) -> T:
        """Call `once` until it succeeds or fails `_ATTEMPTS` times in a row without `done` growing."""
        failures = 0
        while True:
            before = done()
            try:
                return once()
            except _Again as problem:
                failures, why, wait = failures + 1, str(problem), problem.wait
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                failures, why, wait = failures + 1, web.reason(error), 0
                if web.is_hopeless(error):
                    failures = _ATTEMPTS
            if done() > before:
                failures = min(failures, 1)
            if failures >= _ATTEMPTS:
                raise FetchError(
                    f"{name} from {web.without_secrets(url)}: {why}",
                    remedy="when the place can be reached again, run the same command; it goes on where it stopped",
                )
            self._clock.sleep(min(_LONGEST_WAIT, wait or 2.0 ** (failures - 1)))


class _State:
    """What is remembered between two requests for one file."""

    etag = ""


class _Meter:
    """Passes progress on, and can take it back."""

    def __init__(self, advance: Advance) -> None:
        self._advance, self._told = advance, 0

    def __call__(self, count: int) -> None:
        self._told += count
        self._advance(count)

    def back(self) -> None:
        self(-self._told)


def _position(response: requests.Response, partial: Partial, item: LockedFile, meter: _Meter) -> None:
    """Make the partial file end where the answer begins, and see that the answer is about a file of this size."""
    if response.status_code == 416:
        _restart(partial, meter)
        raise _Again("the server has fewer bytes than were fetched before")
    total = response.headers.get("Content-Length", "*")
    if response.status_code == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != partial.done:
            _restart(partial, meter)
            raise _Again("the server sent another piece than was asked for")
        total = match[2]
    elif partial.done:
        _restart(partial, meter)
    if total != "*" and not response.headers.get("Content-Encoding") and int(total) != item.size:
        partial.restart()
        raise _WrongSize(f"found {total} bytes")


def _restart(partial: Partial, meter: _Meter) -> None:
    meter(-partial.done)
    partial.restart()


def _too_large(partial: Partial, item: LockedFile) -> _WrongSize:
    partial.restart()
    return _WrongSize(f"found more than {item.size} bytes")


def _strong(etag: str) -> str:
    """The tag, when it promises identical bytes."""
    return "" if etag.startswith("W/") else etag


def _wrong(item: LockedFile, url: str, error: Exception) -> FetchError:
    found = f"found {error.size} bytes with SHA-256 {error.found}" if isinstance(error, WrongBytes) else str(error)
    return FetchError(
        f"{item.path} from {web.without_secrets(url)}: wrong bytes, twice",
        details=(found, f"needed {item.size} bytes with SHA-256 {item.sha256}"),
        remedy="the place, or a proxy on the way, serves another file than was locked: try another network or mirror, "
        "or lock again if the file was replaced on purpose",
    )


def refusal(name: str, url: str, response: requests.Response) -> Exception:
    """What an HTTP status other than success means: worth another try, or not."""
    status, place = response.status_code, web.without_secrets(url)
    if status in _PASSING:
        return _Again(f"HTTP {status} {response.reason}", _seconds(response.headers.get("Retry-After", "")))
    remedies = {
        401: "it wants credentials: log in with the place's own client, or put them in netrc",
        403: "these credentials, or this network, may not read it",
        404: "it is gone, or hidden from these credentials: check its name, then lock again",
        407: "the proxy wants credentials: see http_proxy and https_proxy",
        410: "it was removed: lock again",
    }
    refused = Refused(
        f"{name} from {place}: HTTP {status} {response.reason}",
        remedy=remedies.get(status, "see what the place says about it in a browser"),
    )
    refused.status = status
    return refused


def _seconds(retry_after: str) -> float:
    return float(retry_after) if retry_after.isdecimal() else 0


class disk_full:
    """Turns "no space left" into a FetchError that says where and what; the partial file stays for the next try."""

    def __init__(self, cache: Cache, item: LockedFile) -> None:
        self._cache, self._item = cache, item

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            missing = self._cache.missing_bytes(self._item.sha256, self._item.size)
            raise FetchError(
                f"{self._item.path}: the disk of the cache {self._cache.root} is full, "
                f"{human_bytes(missing)} of {human_bytes(self._item.size)} are missing",
                remedy=ROOM,
            ) from error


ROOM = "make room (`airbundle cache prune` helps), or set AIRBUNDLE_CACHE to a larger disk; what is whole is kept"
