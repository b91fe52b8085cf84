"""The Docker Engine API client against a small server on a unix socket that answers as told."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from airbundle_onsite.dockerapi import DockerClient, DockerError, demultiplex, socket_path
from airbundle_onsite.errors import ExitCode, IntegrityError

VERSION = {"ApiVersion": "1.43", "MinAPIVersion": "1.12", "Components": [{"Name": "Engine", "Version": "24.0.7"}]}
Answer = tuple[int, bytes]


class Engine:
    """Answers by method and path; keeps what was asked and what was uploaded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Answer] = {"GET /version": (200, json.dumps(VERSION).encode())}
        self.asked: list[str] = []
        self.uploaded: list[int] = []
        self.hang_up_after = -1

    def client(self, timeout: float = 5) -> DockerClient:
        return DockerClient(self.path, timeout=timeout)


def _handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def _upload(self) -> None:
            if self.headers.get("Transfer-Encoding") != "chunked":
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                return
            total = 0
            while size := int(self.rfile.readline(), 16):
                total += len(self.rfile.read(size))
                self.rfile.readline()
                if 0 <= engine.hang_up_after < total:
                    break
            engine.uploaded.append(total)

        def _answer(self) -> None:
            engine.asked.append(f"{self.command} {self.path}")
            self._upload()
            status, body = engine.answers.get(
                f"{self.command} {self.path.split('?')[0]}", (404, b'{"message":"no such thing"}')
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True

        do_GET = do_POST = do_DELETE = _answer

    return Handler


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what some of the tests are about."""


@pytest.fixture
def engine(short_directory: Path) -> Iterator[Engine]:
    made = Engine(short_directory / "docker.sock")
    server = _Server(str(made.path), _handler(made))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """The name of a unix socket has at most 107 bytes, which pytest's own directories can exceed."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ab-") as path:
        yield Path(path)


def test_speaks_the_engine_s_own_version(engine: Engine) -> None:
    engine.answers["GET /v1.43/info"] = (200, b'{"Driver": "overlay2"}')
    client = engine.client()
    assert client.info() == {"Driver": "overlay2"}
    assert client.info() == {"Driver": "overlay2"}
    assert engine.asked == ["GET /version", "GET /v1.43/info", "GET /v1.43/info"]
    assert client.components() == {"Engine": "24.0.7"}


def test_an_engine_that_is_too_old_is_named(engine: Engine) -> None:
    engine.answers["GET /version"] = (200, b'{"ApiVersion": "1.38"}')
    with pytest.raises(DockerError, match=r"API version is 1\.38; 1\.40 or later is needed"):
        engine.client().info()


def test_the_engine_s_words_and_status_are_kept(engine: Engine) -> None:
    engine.answers["POST /v1.43/containers/create"] = (409, b'{"message":"the name is taken"}')
    with pytest.raises(DockerError) as caught:
        engine.client().post("/containers/create", {"Image": "x"}, operation="create container x", query={"name": "x"})
    assert (caught.value.status, caught.value.message) == (409, "the name is taken")
    assert caught.value.summary == "docker: could not create container x: HTTP 409: the name is taken"
    assert engine.asked[-1] == "POST /v1.43/containers/create?name=x"


def test_what_is_not_there_is_none_or_false(engine: Engine) -> None:
    assert engine.client().find_json("/images/x/json", operation="look") is None
    assert engine.client().delete("/containers/x", operation="remove") is False
    engine.answers["DELETE /v1.43/containers/x"] = (204, b"")
    assert engine.client().delete("/containers/x", operation="remove") is True
    engine.answers["GET /v1.43/images/x/json"] = (500, b"boom")
    with pytest.raises(DockerError, match="HTTP 500: boom"):
        engine.client().find_json("/images/x/json", operation="look")


def test_an_archive_is_streamed_and_progress_passed_on(engine: Engine) -> None:
    lines = [
        {"status": "Loading layer", "id": "abc", "progressDetail": {"current": 1, "total": 2}},
        {"stream": "Loaded"},
    ]
    engine.answers["POST /v1.43/images/load"] = (200, b"\r\n".join(json.dumps(line).encode() for line in lines))
    seen: list[object] = []
    engine.client().load((bytes(1000) for _ in range(50)), seen.append)
    assert engine.uploaded == [50_000]
    assert seen == lines


def test_an_error_inside_a_good_answer_is_an_error(engine: Engine) -> None:
    body = b'{"stream":"x"}\n{"errorDetail":{"message":"write /layer.tar: no space left on device"},"error":"write"}\n'
    engine.answers["POST /v1.43/images/load"] = (200, body)
    with pytest.raises(DockerError, match="no space left on device") as caught:
        engine.client().load([b"x"], lambda _event: None)
    assert "free space" in caught.value.remedy


def test_an_engine_that_refuses_while_it_is_sent_to_is_heard(engine: Engine) -> None:
    engine.answers["POST /v1.43/images/load"] = (500, b'{"message":"no space left on device"}')
    engine.hang_up_after = 1000
    with pytest.raises(DockerError, match="HTTP 500: no space left on device"):
        engine.client().load((bytes(100_000) for _ in range(500)), lambda _event: None)


@pytest.mark.parametrize("error", [IntegrityError("payload.tar.003 is damaged"), OSError("the stick was pulled out")])
def test_an_archive_that_breaks_passes_its_own_error_on(engine: Engine, error: Exception) -> None:
    def archive() -> Iterator[bytes]:
        yield bytes(1000)
        raise error

    with pytest.raises(type(error)) as caught:
        engine.client().load(archive(), lambda _event: None)
    assert caught.value is error


def test_a_silent_engine_ends_at_the_deadline(engine: Engine, short_directory: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short_directory / "silent.sock"))
        silent.listen()
        with pytest.raises(DockerError, match=r"no answer within 0\.2 s"):
            DockerClient(short_directory / "silent.sock", timeout=0.2).version()


def _refused(directory: Path) -> Path:
    import socket

    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(directory / "gone.sock"))
    return directory / "gone.sock"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (lambda directory: directory / "none.sock", "there is no socket at"),
        (_refused, "nothing listens at"),
    ],
)
def test_no_engine_is_told_apart(short_directory: Path, path: Callable[[Path], Path], words: str) -> None:
    with pytest.raises(DockerError, match=words) as caught:
        DockerClient(path(short_directory)).version()
    assert caught.value.exit_code == ExitCode.PREFLIGHT
    assert caught.value.remedy


def test_proxy_variables_change_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert engine.client().version()["ApiVersion"] == "1.43"


def test_which_socket() -> None:
    assert socket_path("unix:///a/b.sock", {"DOCKER_HOST": "unix:///c.sock"}) == Path("/a/b.sock")
    assert socket_path("", {"DOCKER_HOST": "unix:///c.sock"}) == Path("/c.sock")
    for address in ("tcp://10.0.0.1:2375", "ssh://host", "unix://", "/var/run/docker.sock"):
        with pytest.raises(DockerError, match="is not a unix socket"):
            socket_path(address, {})
    known = socket_path("", {})
    assert known.name in ("docker.sock", "podman.sock")


def test_log_frames_are_joined_and_other_text_is_kept() -> None:
    frame = b"\x01\0\0\0\0\0\0\x06hello\n" + b"\x02\0\0\0\0\0\0\x04bad\n"
    assert demultiplex(frame) == b"hello\nbad\n"
    assert demultiplex(frame[:-2]) == b"hello\nba"
    assert demultiplex(b"plain text of a terminal") == b"plain text of a terminal"
    assert demultiplex(b"") == b""
