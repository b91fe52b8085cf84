"""A file server on loopback whose answers go wrong on request: dropped, cut short, spoiled, refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

CHUNK = 1 << 16


@dataclass(frozen=True)
class Spoil:
    """One answer that goes wrong.

    Attributes:
        kind: ``drop`` cuts the connection after `after` bytes · ``status`` answers with the status `after` ·
            ``flip`` spoils the first byte sent · ``whole`` ignores the range asked for · ``gone`` answers 416.
        after: bytes, or a status.
    """

    kind: str
    after: int = 0


@dataclass
class FileServer:
    """A running server.

    Attributes:
        files: content by name.
        spoils: by name, what the next answers do, in order; afterwards all is well.
        url: with a final slash.
        pause: seconds to wait after each piece of a body.
        ranges: whether ranges are served at all.
        resumed_by: If-Range headers that came.
        authorized: Authorization headers that came.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    spoils: dict[str, list[Spoil]] = field(default_factory=dict)
    url: str = ""
    pause: float = 0
    ranges: bool = True
    resumed_by: list[str] = field(default_factory=list)
    authorized: list[str] = field(default_factory=list)
    _answered: list[tuple[str, str, int]] = field(default_factory=list)
    _settled: threading.Condition = field(default_factory=threading.Condition)
    _sending: int = 0

    @property
    def requests(self) -> list[tuple[str, str, int]]:
        """``(name, Range header or "", bytes of body sent)``; a client has the last byte before this has the answer,
        so that answers which are being sent are waited for, a while."""
        with self._settled:
            self._settled.wait_for(lambda: not self._sending, timeout=10)
        return self._answered

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Around an answer that will be among `requests`."""
        with self._settled:
            self._sending += 1
        try:
            yield
        finally:
            with self._settled:
                self._sending -= 1
                self._settled.notify_all()

    def sent(self, name: str) -> int:
        """Bytes of a file sent so far, over all answers."""
        return sum(count for each, _, count in self.requests if each == name)


@contextmanager
def serving() -> Iterator[FileServer]:
    """A server on a free port of loopback."""
    state = FileServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}/"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: ClassVar[FileServer]

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence: the tests read `FileServer.requests`."""

    def do_GET(self) -> None:
        state, name = self.state, self.path.partition("?")[0].lstrip("/")
        if self.headers.get("Authorization"):
            state.authorized.append(str(self.headers["Authorization"]))
        planned = state.spoils.get(name) or []
        spoil = planned.pop(0) if planned else Spoil("none")
        if name not in state.files or spoil.kind in ("status", "gone"):
            status = 416 if spoil.kind == "gone" else spoil.after or 404
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with state.answering():
            self._send(name, state.files[name], spoil)

    def _send(self, name: str, data: bytes, spoil: Spoil) -> None:
        asked, start = self.headers.get("Range") or "", 0
        if self.headers.get("If-Range"):
            self.state.resumed_by.append(str(self.headers["If-Range"]))
        if asked and self.state.ranges and spoil.kind != "whole":
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("ETag", f'"{len(data)}"')
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        body = bytearray(data[start:])
        if spoil.kind == "flip":
            body[0] ^= 0xFF
        if spoil.kind == "drop":
            del body[spoil.after :]
            self.close_connection = True
        sent = 0
        try:
            for at in range(0, len(body), CHUNK):
                self.wfile.write(body[at : at + CHUNK])
                sent += len(body[at : at + CHUNK])
                time.sleep(self.state.pause)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        self.state._answered.append((name, asked, sent))
