"""A company's web proxy: the only way to its own package index, whose TLS it ends with a CA that nobody else knows."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from parts.wheels import Handler, WheelIndex

HOST = "wheels.example"  # resolves nowhere (RFC 2606): it is reached through the proxy, or not at all


@dataclass
class Proxy:
    """A running proxy.

    Attributes:
        url: for https_proxy; `ca`: PEM file of its CA.
        index: answers at ``https://wheels.example/simple``; other names are tunnelled.
        beyond: URL of the machine's own proxy, or empty.
        asked: names that it was asked for, each with its port.
    """

    url: str
    ca: Path
    index: WheelIndex
    beyond: str
    asked: list[str] = field(default_factory=list)


@contextmanager
def proxy(directory: Path) -> Iterator[Proxy]:
    """Run one on a free port of loopback, with an index over ``directory/wheels``."""
    index = WheelIndex(directory / "wheels", f"https://{HOST}/simple")
    index.directory.mkdir(parents=True)
    own = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY") or ""
    made = Proxy("", directory / "ca.pem", index, own)
    handler = type("Bound", (_Handler,), {"proxy": made, "tls": _certified(directory, made.ca)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: ClassVar[Proxy]
    tls: ClassVar[ssl.SSLContext]

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence: the tests read `Proxy.asked`."""

    def do_CONNECT(self) -> None:
        self.proxy.asked.append(self.path)
        self.close_connection = True
        if self.path == f"{HOST}:443":
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with suppress(OSError), self.tls.wrap_socket(self.connection, server_side=True) as opened:
                type("Bound", (Handler,), {"index": self.proxy.index})(opened, self.client_address, self.server)
            return
        with suppress(OSError), _onwards(self.path, self.proxy.beyond) as far:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pump, args=(far, self.connection), daemon=True)
            back.start()
            _pump(self.connection, far)
            back.join()


def _onwards(place: str, own_proxy: str) -> socket.socket:
    """A connection to ``host:port``, by the machine's own proxy where it has one."""
    beyond = urlsplit(own_proxy)
    host, _, port = place.rpartition(":")
    far = socket.create_connection((beyond.hostname or host, beyond.port or int(port)), timeout=60)
    if beyond.hostname:
        far.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n") and (piece := far.recv(1)):
            answer += piece
    return far


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _certified(directory: Path, ca: Path) -> ssl.SSLContext:
    """A server's context with a certificate for `HOST`, and the CA that signed it as a file."""
    now = datetime.datetime.now(datetime.UTC)
    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Example Inspecting CA")])

    def signed(subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        made = builder.add_extension(extension, critical=True).sign(authority, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM)

    ca.write_bytes(signed(issuer, authority, x509.BasicConstraints(ca=True, path_length=None)))
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    key = own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = directory / "server.pem"
    pem.write_bytes(key + signed(subject, own, x509.SubjectAlternativeName([x509.DNSName(HOST)])))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
