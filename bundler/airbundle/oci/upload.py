"""Pushing to a registry: blobs that are not there yet, in chunks that go on where a broken connection stopped."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from urllib.parse import urljoin, urlsplit

import requests
import urllib3.exceptions

from airbundle import web
from airbundle.oci.client import Access, Place, read_login
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError
from airbundle_onsite.system import Clock, SystemClock

CHUNK = 64 * 1024 * 1024
_TIMEOUT = (15.0, 120.0)  # seconds to connect, and without an answer
_ATTEMPTS = 5  # in a row, without a new byte at the registry
_RANGE = re.compile(r"(?:bytes=)?0-(\d+)")
_PASSING = frozenset({408, 416, 425, 429, 500, 502, 503, 504})


@record
class Outgoing:
    """A blob to push.

    Attributes:
        name: for messages.
        digest: ``sha256:…``
        size: bytes.
        read: gives its bytes from an offset on, in blocks.
    """

    name: str
    digest: str
    size: int
    read: Callable[[int], Iterator[bytes]]


class _Again(Exception):
    """This try failed; another may not."""


class RegistryUploader:
    """Pushes to one repository, with the login of docker's own configuration.

    Args:
        place: the repository.
        environ: reads one variable; see `web.new_session`.
        clock: for the pauses between tries.
    """

    def __init__(self, place: Place, environ: Callable[[str], str | None], *, clock: Clock | None = None) -> None:
        self._place, self._session = place, web.new_session(environ)
        self._access = Access(
            self._session, place.host, lambda: read_login(place.host, environ), insecure=place.insecure
        )
        self._clock = clock or SystemClock()

    def has(self, digest: str, name: str) -> bool:
        """Whether the repository holds the blob. Raises FetchError."""
        answer = self._persist(name, lambda: self._send("HEAD", f"{self._place.url}/blobs/{digest}"))
        if answer.status_code not in (200, 404):
            raise self._refused(name, answer)
        return answer.status_code == 200

    def blob(self, blob: Outgoing, advance: Callable[[int], None]) -> bool:
        """Push a blob; False when it was there. Raises FetchError."""
        if self.has(blob.digest, blob.name):
            advance(blob.size)
            return False
        state = _Upload(self._begin(blob.name), 0)
        failures = 0
        while True:
            before = state.done
            try:
                self._go_on(blob, state, advance)
                return True
            except _Again as error:
                problem = str(error)
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                problem = web.reason(error)
            failures = failures + 1 if state.done == before else 1
            if failures == _ATTEMPTS:
                raise FetchError(f"{blob.name} to {self._place}: {problem}", remedy=_GO_ON)
            self._clock.sleep(2.0 ** (failures - 1))
            self._find_out(blob, state, advance)

    def manifest(self, reference: str, data: bytes, media_type: str) -> str:
        """Push a manifest under a tag; returns its digest as the registry says it. Raises FetchError."""

        def once() -> requests.Response:
            headers = {"Content-Type": media_type}
            return self._send("PUT", f"{self._place.url}/manifests/{reference}", data=data, headers=headers)

        answer = self._persist(reference, once)
        if answer.status_code not in (200, 201):
            raise self._refused(f"the manifest {reference}", answer)
        return str(answer.headers.get("Docker-Content-Digest", ""))

    def _begin(self, name: str) -> str:
        answer = self._persist(name, lambda: self._send("POST", f"{self._place.url}/blobs/uploads/"))
        if answer.status_code != 202 or "Location" not in answer.headers:
            raise self._refused(name, answer)
        return self._location(answer)

    def _go_on(self, blob: Outgoing, state: _Upload, advance: Callable[[int], None]) -> None:
        blocks = _Chunks(blob.read(state.done))
        while state.done < blob.size:
            end = min(state.done + CHUNK, blob.size)
            headers = {"Content-Type": "application/octet-stream", "Content-Range": f"{state.done}-{end - 1}"}
            answer = self._send("PATCH", state.location, data=_Body(blocks, end - state.done), headers=headers)
            if answer.status_code in _PASSING:
                raise _Again(f"HTTP {answer.status_code} {answer.reason}")
            if answer.status_code not in (202, 204):
                raise self._refused(blob.name, answer)
            advance(end - state.done)
            state.location, state.done = self._location(answer), end
        joint = "&" if urlsplit(state.location).query else "?"
        answer = self._send("PUT", f"{state.location}{joint}digest={blob.digest}")
        if answer.status_code in _PASSING:
            raise _Again(f"HTTP {answer.status_code} {answer.reason}")
        if answer.status_code != 201:
            raise self._refused(blob.name, answer)

    def _find_out(self, blob: Outgoing, state: _Upload, advance: Callable[[int], None]) -> None:
        """Ask how much arrived; begin again where the registry has forgotten the upload."""
        try:
            answer = self._send("GET", state.location)
        except requests.RequestException:
            return
        match = _RANGE.fullmatch(answer.headers.get("Range", ""))
        if answer.status_code == 204:
            arrived = min(int(match[1]) + 1, blob.size) if match else 0
            arrived = 0 if arrived == 1 else arrived  # "0-0" is how an empty upload reads
            state.location = self._location(answer) if "Location" in answer.headers else state.location
        else:
            arrived, state.location = 0, self._begin(blob.name)
        advance(arrived - state.done)
        state.done = arrived

    def _location(self, answer: requests.Response) -> str:
        return urljoin(answer.url, answer.headers.get("Location", ""))

    def _send(
        self, method: str, url: str, *, data: _Body | bytes | None = None, headers: dict[str, str] | None = None
    ) -> requests.Response:
        """One request, and once more with credentials when asked for them; a body that was begun is not repeated."""
        own = urlsplit(url).netloc == self._place.api
        for last in (False, True):
            answer = self._session.request(
                method,
                url,
                data=data,
                headers=headers,
                timeout=_TIMEOUT,
                auth=self._access if own else None,
                allow_redirects=False,
            )
            if answer.status_code != 401 or not own or last or not self._access.challenge(answer):
                return answer
            if isinstance(data, _Body):
                raise _Again("the registry wants new credentials")
        raise AssertionError("unreachable")

    def _persist(self, name: str, once: Callable[[], requests.Response]) -> requests.Response:
        for attempt in range(_ATTEMPTS):
            try:
                answer = once()
            except requests.RequestException as error:
                problem = web.reason(error)
                if web.is_hopeless(error):
                    break
            else:
                if answer.status_code not in _PASSING:
                    return answer
                problem = f"HTTP {answer.status_code} {answer.reason}"
            if attempt + 1 < _ATTEMPTS:
                self._clock.sleep(2.0**attempt)
        raise FetchError(f"{name} to {self._place}: {problem}", remedy=_GO_ON)

    def _refused(self, name: str, answer: requests.Response) -> FetchError:
        words = f"docker login {self._place.host}"
        cures = {
            401: f"run `{words}` with an account that may write there",
            403: f"run `{words}` with an account that may write there",
            404: "check the name of the repository: the registry has none like it",
            413: "the registry, or a proxy before it, takes no blob of this size: build with smaller parts",
        }
        said = answer.text[:200].strip()
        return FetchError(
            f"{name} to {self._place}: HTTP {answer.status_code} {answer.reason}" + (f": {said}" if said else ""),
            remedy=cures.get(answer.status_code, "see the registry's own log"),
        )


_GO_ON = "when the registry can be reached again, run the same command: what arrived whole is not sent again"


class _Upload:
    """One upload under way: where the next bytes go, and how many are there."""

    def __init__(self, location: str, done: int) -> None:
        self.location, self.done = location, done


class _Chunks:
    """Blocks, from which bodies of any size are taken one after the other."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def take(self, size: int) -> bytes:
        """At most `size` bytes; empty at the end."""
        block = self._rest or next(self._blocks, b"")
        self._rest = block[size:]
        return block[:size]


class _Body(io.RawIOBase):
    """A request's body of a known length."""

    def __init__(self, chunks: _Chunks, size: int) -> None:
        self._chunks, self._left, self._size = chunks, size, size

    def __len__(self) -> int:
        return self._size

    def tell(self) -> int:  # without it, `requests` does not trust the length
        return self._size - self._left

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._chunks.take(min(self._left, size) if size >= 0 else self._left)
        self._left -= len(data)
        return data
