"""The parts around a rehearsal: processes found by their sockets, the engine's proxy, logs, tries, files in parts."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import socket
import socketserver
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from airbundle.rehearse import payload, tries
from airbundle.rehearse.apiproxy import ApiProxy
from airbundle.rehearse.askers import ProcAskers, without_secrets
from airbundle.rehearse.dockertry import image_archive
from airbundle.rehearse.packets import Flow
from airbundle.rehearse.room import namespaces
from airbundle.rehearse.run import allowed_by_spec
from airbundle.rehearse.site import engine_log, scan
from airbundle.rehearse.venvtry import find_python
from airbundle_onsite.contract.launch import LaunchPlan, LogPattern
from airbundle_onsite.errors import IntegrityError, PreflightError
from airbundle_onsite.system import Completed, SystemRunner
from airbundle_onsite.verify.bundle import trust
from parts.bundles import make_bundle
from parts.sites import release_bundle

# --- who asks ---------------------------------------------------------------------------------------------


@pytest.fixture
def askers() -> ProcAskers:
    return ProcAskers(lambda _source: os.getpid())


def test_the_process_of_a_connection_is_found(askers):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        home, port = client.getsockname()
        found = askers.find("tcp", Flow(home, port, *server.getsockname()))
    assert found.pid == os.getpid()
    assert found.argv == tuple(Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0"))


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")])
def test_the_process_of_a_datagram_is_found(askers, family, host):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.bind((host, 0))
        found = askers.find("udp", Flow("127.0.0.1", sock.getsockname()[1], "192.0.2.2", 53))
    assert found.pid == os.getpid()


def test_nobody_is_found_for_a_port_nobody_has(askers):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert askers.find("tcp", Flow("127.0.0.1", port, "192.0.2.2", 1)).pid == 0
    assert ProcAskers(lambda _source: None).find("tcp", Flow("127.0.0.1", port, "192.0.2.2", 1)).argv == ()


def write_proc(root: Path, pid: int, udp: list[str], sockets: list[int], argv: str) -> None:
    """A process of a container, as /proc shows it."""
    for name in ("net", "ns", "fd"):
        (root / str(pid) / name).mkdir(parents=True)
    (root / str(pid) / "net" / "udp").write_text("\n".join(["header", *udp]))
    (root / str(pid) / "ns" / "net").symlink_to("net:[42]")
    for number, inode in enumerate(sockets):
        (root / str(pid) / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
    (root / str(pid) / "cmdline").write_bytes(argv.replace(" ", "\0").encode())


@pytest.mark.parametrize("remote", ["0B00007F:0035", "00000000:0000"])
def test_who_asked_a_container_s_resolver_is_found(tmp_path, remote):
    def row(local: str, far: str, inode: int) -> str:
        return f"1: {local} {far} 01 00:00 00:00 00 0 0 {inode} 2 0 0"

    rows = [row("020012C6:9C40", "020012C6:0035", 900), row("020012C6:8000", remote, 901)]
    write_proc(tmp_path, 10, rows, [], "init")
    write_proc(tmp_path, 11, rows, [901], "python3 engine.py")
    found = ProcAskers(lambda _source: 10, tmp_path).find("udp", Flow("198.18.0.2", 0x9C40, "198.18.0.2", 53))
    assert (found.pid, found.argv) == (11, ("python3", "engine.py"))


def test_command_lines_keep_no_secrets():
    words = ["serve", "--api-key", "abc", "--api-key=def", "HF_TOKEN=ghi", "--key", "--flag", "x" * 300]
    assert without_secrets(words)[:7] == [
        "serve",
        "--api-key",
        "***",
        "--api-key=***",
        "HF_TOKEN=***",
        "--key",
        "--flag",
    ]
    assert len(without_secrets(words)[7]) == 201


# --- the engine's proxy -----------------------------------------------------------------------------------


class _Engine(BaseHTTPRequestHandler):
    """Answers with what it was sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            answer: dict[str, Any] = {"size": len(body)}
        else:
            answer = {"body": json.loads(self.rfile.read(int(self.headers["Content-Length"])))}
        self.reply({**answer, "path": self.path, "connection": self.headers["Connection"]})

    def do_GET(self) -> None:
        self.reply({"path": self.path})

    def reply(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_words: object) -> None:
        pass

    def address_string(self) -> str:
        return "unix"


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect(str(self._path))


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ApiProxy]:
    def add_resolver(name: str, body: dict[str, Any]) -> Mapping[str, Any]:
        if name == "bad":
            raise PreflightError("this one is not wanted")
        return {**body, "Dns": ["198.18.0.2"], "seen": name}

    server = socketserver.ThreadingUnixStreamServer(str(tmp_path / "engine.sock"), _Engine)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = ApiProxy(tmp_path / "proxy.sock", tmp_path / "engine.sock", {"/containers/create": add_resolver})
    yield made
    made.close()
    server.shutdown()
    server.server_close()


def ask(tmp_path: Path, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    with contextlib.closing(_Connection(tmp_path / "proxy.sock")) as connection:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def test_a_container_s_body_is_changed_and_the_rest_is_not(proxy, tmp_path):
    made = ask(tmp_path, "POST", "/v1.41/containers/create?name=engine", json.dumps({"Image": "中"}).encode())
    assert made[1]["body"] == {"Image": "中", "Dns": ["198.18.0.2"], "seen": "engine"}
    assert made[1]["connection"] == "close"
    other = ask(tmp_path, "POST", "/v1.41/containers/engine/start", b"{}")
    assert other[1]["body"] == {}
    assert ask(tmp_path, "GET", "/v1.41/containers/create")[1] == {"path": "/v1.41/containers/create"}


def test_an_archive_streams_through(proxy, tmp_path):
    chunks = (bytes(300_000) for _ in range(20))
    with contextlib.closing(_Connection(tmp_path / "proxy.sock")) as connection:
        headers = {"Transfer-Encoding": "chunked"}
        connection.request("POST", "/v1.41/images/load", chunks, headers, encode_chunked=True)
        assert json.loads(connection.getresponse().read())["size"] == 6_000_000


def test_a_refusal_reaches_the_client_and_is_kept(proxy, tmp_path):
    status, answer = ask(tmp_path, "POST", "/v1.41/containers/create?name=bad", b"{}")
    assert (status, answer) == (500, {"message": "this one is not wanted"})
    assert isinstance(proxy.failure, PreflightError)


def test_a_client_that_says_nothing_or_nonsense_does_no_harm(proxy, tmp_path):
    for words in (b"", b"nonsense\r\n\r\n", b"x" * 100):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(tmp_path / "proxy.sock"))
            sock.sendall(words)
    assert ask(tmp_path, "GET", "/version")[0] == 200


# --- files, logs, tries -----------------------------------------------------------------------------------


def test_files_are_read_where_they_lie_in_the_parts(tmp_path):
    files = {"config/a": b"a" * 3000, "images/oci-layout": b"{}", "images/blobs/sha256/x": bytes(range(256)) * 9}
    bundle = make_bundle(tmp_path / "bundle", files, part_size=1500)
    manifest = trust(bundle).manifest
    assert len(manifest.payload.parts) > 3
    for path, data in files.items():
        entry = payload.find(manifest, path)
        assert entry is not None
        assert payload.content(bundle, manifest, entry) == data
    payload.extract(bundle, manifest, tmp_path / "out", frozenset({"config"}))
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == ["a"]
    with tarfile.open(fileobj=io.BytesIO(b"".join(image_archive(bundle, manifest)))) as archive:
        assert archive.getnames() == ["oci-layout", "blobs/sha256/x"]
        handle = archive.extractfile("blobs/sha256/x")
        assert handle is not None
        assert handle.read() == files["images/blobs/sha256/x"]
    (bundle / "payload.tar.001").write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"payload\.tar\.001 ends 1500 bytes too early"):
        payload.extract(bundle, manifest, tmp_path / "again", frozenset({"config"}))


@pytest.mark.parametrize(
    ("lock", "expected"),
    [
        (None, ()),
        ({"lock_version": 1, "spec": {"rehearsal": {"allow": ["a.test"]}}, "of": "another version"}, ("a.test",)),
        ({"lock_version": 99}, ()),
    ],
)
def test_the_spec_in_the_bundle_says_what_is_allowed(tmp_path, lock, expected):
    files = {"config/x": b"x"} | ({"config/bundle.lock.json": json.dumps(lock).encode()} if lock else {})
    bundle = make_bundle(tmp_path / "bundle", files)
    assert allowed_by_spec(bundle, trust(bundle).manifest) == expected


def test_a_log_is_read_for_downgrades_and_for_a_network_that_is_not_there(tmp_path):
    patterns = [
        LogPattern("x.slow", "falling back", "warn", "it is slow", "change it"),
        LogPattern("x.fact", "using", "fact", "a fact"),
        LogPattern("x.bad", "no kernel image", "fail", "it cannot run"),
    ]
    log = "using CPU\nfalling back to eager\nurllib3: Max retries exceeded with url: /api\nfalling back again\n"
    found = {check.id: check for check in scan(log, [*patterns, *patterns])}
    assert set(found) == {"log.x.slow", "log.network"}
    assert found["log.x.slow"].evidence == ("falling back to eager", "falling back again")
    assert scan("RuntimeError: no kernel image", patterns)[0].status == "fail"
    manifest = trust(release_bundle(tmp_path, "v1")).manifest
    with tarfile.open(tmp_path / "support.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("airbundle-support/demo/v1/engine.log")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"ok"))
    assert engine_log(tmp_path / "support.tar.gz", manifest) == "ok"


def plan(engine: str = "nobody knows") -> LaunchPlan:
    argv = ("{python}", "serve.py", "--port", "{port}")
    return LaunchPlan("gpu", engine, "1", "venv", argv, model="m", env={"HF_HOME": "{state}/hub"})


def test_without_an_engine_s_own_tries_its_command_line_is_read_by_itself():
    (only,) = tries.tries_for(plan())
    assert only.argv == ("{python}", "serve.py", "--port", "{port}", "--help")
    assert not only.binding


class _Knowing:
    """An engine that knows how to be tried."""

    def rehearsal_tries(self, launch: LaunchPlan) -> list[tries.Try]:
        return [tries.Try("import", ("{python}", "-c", "import engine"), "the engine imports")]


def test_an_engine_may_know_its_own_tries():
    assert isinstance(_Knowing(), tries.KnowsTries)
    assert not isinstance(object(), tries.KnowsTries)


def test_a_python_that_fits_is_found():
    environment = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"}
    assert find_python(">=3.9", environment, SystemRunner()) is not None
    assert find_python(">=3.99", environment, SystemRunner()) is None
    assert find_python("nonsense", environment, SystemRunner()) is None


class _Refuses:
    """A kernel that makes no namespaces."""

    def run(self, argv: list[str], **_more: object) -> Completed:
        return Completed(tuple(argv), 1, "", "unshare: unshare failed: Operation not permitted")


def test_where_the_network_cannot_be_cut_nothing_is_rehearsed():
    with pytest.raises(PreflightError) as caught:
        namespaces(_Refuses())  # type: ignore[arg-type]
    assert "Operation not permitted" in caught.value.details[0]
    assert "user.max_user_namespaces" in caught.value.remedy
