"""A token server for a registry: signs what a login may do, as the registry's token authentication wants it."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

from parts import need

SERVICE, ISSUER, LOGIN = "airbundle-tests", "airbundle-tests-issuer", "me:secret"


@dataclass
class TokenServer:
    """A running token server.

    Attributes:
        access: the ``auth`` section for the registry's configuration.
        key, certificate: what it signs with.
        lifetime: seconds that a token is good for.
        failures: how many of the next requests are answered with status 503.
        granted: the scope of every token given.
    """

    access: str
    key: Path
    certificate: Path
    lifetime: int = 300
    failures: int = 0
    granted: list[str] = field(default_factory=list)

    def token(self, scope: str) -> str:
        """A signed token for ``repository:NAME:ACTIONS``."""
        kind, _, rest = scope.partition(":")
        name, _, actions = rest.rpartition(":")
        now = int(time.time())
        der = base64.b64encode(base64.b64decode("".join(self.certificate.read_text().splitlines()[1:-1]))).decode()
        header = {"typ": "JWT", "alg": "RS256", "x5c": [der]}
        claims = {
            "iss": ISSUER,
            "sub": "me",
            "aud": SERVICE,
            "iat": now,
            "nbf": now - 10,
            "exp": now + self.lifetime,
            "jti": secrets.token_hex(8),
            "access": [{"type": kind, "name": name, "actions": actions.split(",")}] if scope else [],
        }
        text = f"{_b64(json.dumps(header).encode())}.{_b64(json.dumps(claims).encode())}"
        argv = [need.program("openssl"), "dgst", "-sha256", "-sign", str(self.key)]
        signature = subprocess.run(argv, input=text.encode(), capture_output=True, check=True, timeout=20).stdout
        return f"{text}.{_b64(signature)}"


@contextmanager
def serving(directory: Path) -> Iterator[TokenServer]:
    """A token server on loopback, with a key and a certificate made in this directory."""
    key, certificate = directory / "token.key", directory / "token.crt"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=airbundle tests"]
    argv = [need.program("openssl"), *words, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(argv, capture_output=True, check=True, timeout=60)
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    realm = f"http://127.0.0.1:{server.server_address[1]}/token"
    settings = f"realm: {realm}, service: {SERVICE}, issuer: {ISSUER}, rootcertbundle: {certificate}"
    state = TokenServer(f"auth: {{token: {{{settings}}}}}\n", key, certificate)
    handler.state = state  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: ClassVar[TokenServer]

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence: the tests read `TokenServer.granted`."""

    def do_GET(self) -> None:
        state = self.state
        scope = parse_qs(urlsplit(self.path).query).get("scope", [""])[0]
        wanted = f"Basic {base64.b64encode(LOGIN.encode()).decode()}"
        if state.failures:
            state.failures -= 1
            self._answer(503, {})
        elif self.headers.get("Authorization") != wanted:
            self._answer(401, {})
        else:
            state.granted.append(scope)
            self._answer(200, {"token": state.token(scope), "expires_in": state.lifetime})

    def _answer(self, status: int, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
