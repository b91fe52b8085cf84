"""An engine that answers without end: one deadline holds for every byte, and no shape of JSON is a fault of ours."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from airbundle_onsite.smoke.http import LoopbackRequests, Reply

_SECONDS = 0.4


@contextlib.contextmanager
def _dripping(first: bytes, drip: bytes) -> Iterator[int]:
    """A server that sends `first`, then `drip` again and again, sooner than any socket's own timeout."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer, contextlib.suppress(OSError):
                peer.sendall(first)
                until = time.monotonic() + 30
                while time.monotonic() < until:
                    peer.sendall(drip)
                    time.sleep(0.05)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)


@pytest.mark.parametrize(
    ("first", "drip"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"a"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"a"),
    ],
    ids=["header", "headers", "continue", "chunk", "body"],
)
def test_one_deadline_for_every_byte(first: bytes, drip: bytes) -> None:
    with _dripping(first, drip) as port:
        begun = time.monotonic()
        reply = LoopbackRequests("127.0.0.1", port).send("GET", "/health", None, _SECONDS)
        assert time.monotonic() - begun < 20
    assert (reply.status, reply.error) == (0, f"no whole answer within {_SECONDS:g} s")


def test_json_nested_without_end_is_no_json() -> None:
    reply = Reply(500, "[" * 200_000)
    assert reply.json() is None
    assert reply.reason().startswith("HTTP 500: [[[")
