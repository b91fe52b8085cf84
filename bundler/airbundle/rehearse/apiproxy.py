"""Stands between the bundle's installer and the container engine: passes everything on, changes two kinds of requests.

A container about to be created is told to resolve names at the sinkhole, and a network may be given its gateway.
Everything else, image archives of any size included, goes through unread.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import AirbundleError

_CHUNK = 1 << 18
_HEAD = 1 << 16  # bytes of a request's head at most
_VERSION = re.compile(r"^/v[0-9.]+(?=/)")
Change = Callable[[str, dict[str, Any]], Mapping[str, Any]]


@record
class _Request:
    """A request's head: its first line, header lines, and what came of the body already."""

    first: str
    headers: tuple[str, ...]
    rest: bytes

    @property
    def method(self) -> str:
        return self.first.split(" ")[0]

    @property
    def path(self) -> str:
        """Without the API version and the query."""
        return _VERSION.sub("", urlsplit(self.first.split(" ")[1]).path)

    @property
    def name(self) -> str:
        """The query's ``name``."""
        return parse_qs(urlsplit(self.first.split(" ")[1]).query).get("name", [""])[0]

    def header(self, name: str) -> str:
        """A header's value; empty without it."""
        start = f"{name.lower()}:"
        return next((line.partition(":")[2].strip() for line in self.headers if line.lower().startswith(start)), "")

    def encode(self, size: int | None = None) -> bytes:
        """The head again, for one request per connection; with another length of the body, if given."""
        dropped = ("connection:", *(("content-length:",) if size is not None else ()))
        kept = [line for line in self.headers if not line.lower().startswith(dropped)]
        sized = [] if size is None else [f"Content-Length: {size}"]
        return "\r\n".join([self.first, *kept, *sized, "Connection: close", "", ""]).encode("latin-1")


class ApiProxy:
    """Serves `path` until `close`.

    Args:
        path: of the socket to make; its name has at most 107 bytes.
        engine: the engine's socket.
        changes: for ``/containers/create`` and ``/networks/create``, what makes the body to send from a container's
            or network's name and its body; an AirbundleError raised there refuses the request, and is kept.
    """

    def __init__(self, path: Path, engine: Path, changes: Mapping[str, Change]) -> None:
        self._engine, self._changes = engine, changes
        self.failure: AirbundleError | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(64)
        threading.Thread(target=self._serve, daemon=True, name="engine proxy").start()

    def close(self) -> None:
        """Take no more requests."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._handle, args=(client,), daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as engine, contextlib.suppress(OSError):
            request = _read_head(client)
            if request is None:
                return
            change = self._changes.get(request.path) if request.method == "POST" else None
            head, body = request.encode(), request.rest
            if change is not None:
                try:
                    body = _changed(client, request, change)
                except AirbundleError as error:
                    self.failure = self.failure or error
                    client.sendall(_refusal(error))
                    return
                head = request.encode(len(body))
            engine.connect(str(self._engine))
            engine.sendall(head + body)
            upload = threading.Thread(target=_copy, args=(client, engine), daemon=True)
            upload.start()
            _copy(engine, client)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)  # ends the upload, too
            upload.join()


def _read_head(client: socket.socket) -> _Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(_CHUNK)
        if not more or len(data) > _HEAD:
            return None
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *headers = head.decode("latin-1").split("\r\n")
    return _Request(first, tuple(headers), rest) if first.count(" ") == 2 else None


def _changed(client: socket.socket, request: _Request, change: Change) -> bytes:
    body, size = request.rest, int(request.header("Content-Length") or 0)
    while len(body) < size:
        more = client.recv(_CHUNK)
        if not more:
            break
        body += more
    value = json.loads(body)
    return json.dumps(change(request.name or str(value.get("Name", "")), value)).encode()


def _refusal(error: AirbundleError) -> bytes:
    body = json.dumps({"message": error.summary}).encode()
    head = f"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
