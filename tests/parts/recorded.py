"""A package index as it was at some time: the pages and METADATA that resolving asked for, and a server of them."""

from __future__ import annotations

import json
import lzma
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
GOLDEN = Path(__file__).parent.parent / "golden" / "resolves"
ANSWERS, RECORDING = GOLDEN / "answers.json", GOLDEN / "index.json.xz"


@dataclass
class Recording:
    """What was asked for.

    Attributes:
        projects: the files of a project by its name, each as on the index's JSON page, without its URL.
        metadata: the telling lines of METADATA, by the file name of the wheel.
    """

    projects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    def page(self, project: str) -> list[dict[str, Any]] | None:
        """The files of a project, or None when there is no such project."""
        return self.projects.get(project)

    def beside(self, wheel: str) -> str | None:
        """METADATA of a wheel, or None."""
        return self.metadata.get(wheel)


def load(path: Path = RECORDING) -> Recording:
    """Read a recording."""
    plain = json.loads(lzma.decompress(path.read_bytes()))
    return Recording(plain["projects"], plain["metadata"])


def save(recording: Recording, path: Path = RECORDING) -> None:
    """Write a recording; the same content, the same bytes."""
    plain = {"projects": recording.projects, "metadata": recording.metadata}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


@contextmanager
def serving(recording: Recording) -> Iterator[str]:
    """Serve it on a free port of loopback; gives the URL for ``--index-url``."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"recording": recording}))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    finally:
        server.shutdown()
        server.server_close()


def _shown(file: dict[str, Any]) -> dict[str, Any]:
    return {**file, "url": f"/files/{file['filename']}", "core-metadata": file["filename"].endswith(".whl")}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may go away: no word of it on stderr."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet, else each answer waits for an acknowledgement
    recording: ClassVar[Recording]

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        match [unquote(word) for word in urlsplit(self.path).path.strip("/").split("/")]:
            case ["simple", project] if (files := self.recording.page(project)) is not None:
                shown = [_shown(each) for each in files]
                page = {"meta": {"api-version": "1.1"}, "name": project, "files": shown}
                self._answer(JSON_TYPE, json.dumps(page).encode())
            case ["files", name] if (text := self.recording.beside(name.removesuffix(".metadata"))) is not None:
                self._answer("application/octet-stream", text.encode())
            case _:
                self._answer("text/plain", b"not recorded\n", 404)

    def _answer(self, kind: str, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
