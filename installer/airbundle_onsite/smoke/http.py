"""HTTP to an engine on this machine. Proxy variables are never looked at: a proxy cannot reach our loopback."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Optional, Protocol

from airbundle_onsite.contract.record import record

_MAX_BODY = 4 * 1024 * 1024
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}


@record
class Reply:
    """What came back.

    Attributes:
        status: HTTP status; 0 when there was no whole answer, and `error` says why.
        body: decoded as UTF-8 with replacement.
        seconds: from the request to the whole answer.
        refused: nothing listens there (yet).
    """

    status: int
    body: str = ""
    seconds: float = 0.0
    error: str = ""
    refused: bool = False

    def json(self) -> Any:
        """The body decoded; None when it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def reason(self) -> str:
        """Why this is not a good answer, in the engine's words where it has any."""
        if not self.status:
            return self.error
        message = _message(self.json()) or self.body.strip()[:300]
        return f"HTTP {self.status}" + (f": {message}" if message else "")


@record
class Streamed:
    """An answer that came piece by piece.

    Attributes:
        status: HTTP status; 0 when there was no answer, or none that ended in time, and `error` says why.
        lines: each with the seconds from the request to its coming.
        error: empty when the answer is whole.
    """

    status: int
    lines: tuple[tuple[float, str], ...] = ()
    error: str = ""


class Requests(Protocol):
    """Sends requests to one engine."""

    def send(self, method: str, path: str, body: Optional[Mapping[str, Any]], seconds: float) -> Reply:
        """One request; the whole answer must be there within `seconds`. Never raises for what the engine does."""
        ...


class LoopbackRequests:
    """The real `Requests`. An engine bound to every address is asked at the loopback one."""

    def __init__(self, host: str, port: int) -> None:
        self._host = _EVERYWHERE.get(host, host)
        self._port = port

    def send(self, method: str, path: str, body: Optional[Mapping[str, Any]], seconds: float) -> Reply:
        begun = time.monotonic()
        connection = _TimedConnection(self._host, self._port, begun + seconds)
        try:
            response = _sent(connection, method, path, body)
            text = _read(response, begun + seconds).decode("utf-8", "replace")
            return Reply(response.status, text, time.monotonic() - begun)
        except socket.timeout:
            return Reply(0, seconds=time.monotonic() - begun, error=f"no whole answer within {seconds:g} s")
        except ConnectionRefusedError:
            error = f"nothing listens at {self._host}:{self._port}"
            return Reply(0, seconds=time.monotonic() - begun, error=error, refused=True)
        except (OSError, http.client.HTTPException) as error:
            return Reply(0, seconds=time.monotonic() - begun, error=f"the connection broke: {error!r}")
        finally:
            connection.close()

    def stream(self, path: str, body: Mapping[str, Any], seconds: float) -> Streamed:
        """POST, and note when each line of the answer came; the last one must be there within `seconds`."""
        begun = time.monotonic()
        connection = _TimedConnection(self._host, self._port, begun + seconds)
        try:
            response = _sent(connection, "POST", path, body)
            lines: list[tuple[float, str]] = []
            rest = b""
            for piece in _pieces(response, begun + seconds):
                moment = time.monotonic() - begun
                *whole, rest = (rest + piece).split(b"\n")
                lines += [(moment, line.decode("utf-8", "replace").rstrip("\r")) for line in whole]
            lines.append((time.monotonic() - begun, rest.decode("utf-8", "replace")))
            return Streamed(response.status, tuple(lines))
        except socket.timeout:
            return Streamed(0, error=f"no whole answer within {seconds:g} s")
        except (OSError, http.client.HTTPException) as error:
            return Streamed(0, error=f"the connection broke: {error!r}")
        finally:
            connection.close()


class _TimedSocket(socket.socket):
    """Receives against one deadline: a socket's own timeout begins anew with every byte, headers' bytes included."""

    deadline = 0.0

    def recv_into(self, *words: Any) -> int:
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise socket.timeout
        self.settimeout(remaining)
        return super().recv_into(*words)


class _TimedConnection(http.client.HTTPConnection):
    """A connection whose answer must have come by `deadline`, of the monotonic clock."""

    def __init__(self, host: str, port: int, deadline: float) -> None:
        super().__init__(host, port, timeout=max(0.001, deadline - time.monotonic()))
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        plain = self.sock
        self.sock = _TimedSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.sock.deadline = self._deadline
        self.sock.settimeout(self.timeout)


def _sent(
    connection: http.client.HTTPConnection, method: str, path: str, body: Optional[Mapping[str, Any]]
) -> http.client.HTTPResponse:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Connection": "close", **({} if data is None else {"Content-Type": "application/json"})}
    connection.request(method, path, data, headers)
    return connection.getresponse()


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    return b"".join(_pieces(response, deadline))


def _pieces(response: http.client.HTTPResponse, deadline: float) -> Iterator[bytes]:
    """The body as it comes."""
    size, announced = 0, response.length
    while size < (_MAX_BODY if announced is None else min(announced, _MAX_BODY)):
        if time.monotonic() >= deadline:
            raise socket.timeout
        piece = response.read1(65536)
        if not piece:
            if announced is not None:
                raise http.client.IncompleteRead(b"", announced - size)
            break
        size += len(piece)
        yield piece


def _message(value: Any) -> str:
    """The message in an error body, in the shapes that engines use."""
    if not isinstance(value, dict):
        return ""
    for key in ("error", "message", "detail"):
        found = value.get(key)
        if isinstance(found, dict):
            found = found.get("message")
        if found:
            return str(found)[:500]
    return ""
