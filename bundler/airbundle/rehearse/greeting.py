"""What the first bytes of a connection tell: the server name of a TLS handshake, host and path of an HTTP request."""

from __future__ import annotations

import re
import struct

from airbundle_onsite.contract.record import record

ENOUGH = 16384
"""Bytes after which a connection that has not said what it wants is not listened to any longer."""

_REQUEST = re.compile(rb"([A-Z]{3,10}) (\S{1,4000}) HTTP/1\.[01]\r?\n")
_HOST = re.compile(rb"\r?\nHost:[ \t]*([^\r\n]*)", re.IGNORECASE)
_PREFACE = b"PRI * HTTP/2.0\r\n"


@record
class Greeting:
    """What a client wants: `protocol` is ``tls``, ``http`` or ``other``; `name` the server it means, if it said so."""

    protocol: str
    name: str = ""
    request: str = ""


def read(data: bytes) -> Greeting | None:
    """Read what has come so far; None when more is needed to tell."""
    if not data:
        return None
    if data[0] == 22 and (len(data) < 2 or data[1] == 3):
        return _tls(data)
    if data.startswith(_PREFACE[: len(data)]):
        return Greeting("http", request="HTTP/2 without TLS") if len(data) >= len(_PREFACE) else None
    if re.match(rb"[A-Z]{1,10}( |$)", data):
        return _http(data)
    return Greeting("other")


def _http(data: bytes) -> Greeting | None:
    head, ended, _ = data.partition(b"\r\n\r\n")
    if not ended and len(data) < ENOUGH:
        return None
    request, host = _REQUEST.match(data), _HOST.search(head)
    if request is None:
        return Greeting("other")
    method, path = (part.decode("ascii", "backslashreplace") for part in request.groups())
    name = host[1].decode("ascii", "backslashreplace").strip() if host else ""
    if method == "CONNECT":
        name = path
    # A query may hold a key.
    return Greeting("http", _without_port(name), f"{method} {path.partition('?')[0]}")


def _without_port(host: str) -> str:
    return re.sub(r":\d+$", "", host).strip("[]").lower()


def _tls(data: bytes) -> Greeting | None:
    hello, at = b"", 0
    while at + 5 <= len(data) and data[at] == 22:  # a handshake message may come in several records
        (size,) = struct.unpack_from("!H", data, at + 3)
        hello += data[at + 5 : at + 5 + size]
        at += 5 + size
    wanted = int.from_bytes(hello[1:4], "big") + 4 if len(hello) >= 4 else 4
    if len(hello) < wanted and len(data) < ENOUGH:
        return None
    try:
        return Greeting("tls", _server_name(hello))
    except (struct.error, IndexError):
        return Greeting("tls")


def _server_name(hello: bytes) -> str:
    if hello[0] != 1:
        return ""
    at = 4 + 2 + 32  # message header, version, random
    at += 1 + hello[at]  # session id
    at += 2 + struct.unpack_from("!H", hello, at)[0]  # cipher suites
    at += 1 + hello[at]  # compression methods
    end = at + 2 + struct.unpack_from("!H", hello, at)[0]
    at += 2
    while at + 4 <= end:
        kind, size = struct.unpack_from("!HH", hello, at)
        if kind == 0:  # server_name: list length, type, name length
            (length,) = struct.unpack_from("!H", hello, at + 7)
            return hello[at + 9 : at + 9 + length].decode("ascii", "backslashreplace").lower()
        at += 4 + size
    return ""
