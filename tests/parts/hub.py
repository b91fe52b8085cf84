"""A small model hub that speaks the Hugging Face hub's HTTP API, as far as its real client reads models.

Repositories are directories. A commit is made of a directory's content; branches point to commits, and older
commits stay readable. Large files (or those of the usual binary suffixes) are served the LFS way: metadata with a
SHA-256, and a redirect to another path on the same server. Faults are set per file.
"""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

LFS_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt")
LFS_FROM = 1 << 20
CHUNK = 1 << 16
PAGE = 50


@dataclass(frozen=True)
class HubFile:
    """One file of a commit: where its bytes are, and what git and LFS call it."""

    path: Path
    size: int
    blob_id: str
    sha256: str
    lfs: bool

    @property
    def etag(self) -> str:
        """What the hub names its content by: SHA-256 for LFS files, the git blob id for others."""
        return self.sha256 if self.lfs else self.blob_id


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong while a file is sent.

    Attributes:
        kind: ``wrong-byte`` flips the byte at `offset` · ``truncate`` ends the answer after `offset` bytes while
            announcing only those · ``drop`` cuts the connection after `offset` bytes · ``unavailable`` answers 503.
        offset: in bytes of this answer's file.
        times: how many answers are spoiled; afterwards all is well.
    """

    kind: str
    offset: int = 0
    times: int = 1


@dataclass
class Repository:
    commits: dict[str, dict[str, HubFile]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    gated: bool = False


@dataclass(frozen=True)
class Seen:
    """One request that the hub answered: method, path, the Range header or "", status, bytes of body sent."""

    method: str
    path: str
    range: str
    status: int
    sent: int


class ModelHub:
    """See the module's text; hubs that speak another language have another `handler`.

    Attributes:
        url: for HF_ENDPOINT or ``HfApi(endpoint=…)``.
        token: the one token that opens gated repositories.
        outsider_token: a valid token of someone without access.
        requests: every request so far.
    """

    token = "hf_" + "a" * 34
    outsider_token = "hf_" + "b" * 34

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self._repositories: dict[str, Repository] = {}
        self._faults: dict[tuple[str, str], Fault] = {}
        self._lock = threading.Lock()
        handler = type("Handler", (self.handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, directory: Path, *, branch: str = "main", gated: bool = False) -> str:
        """Commit a directory to a branch of ``org/name``; returns the commit's id (40 hexadecimal digits).

        The files are read when they are served: leave them as they are while the hub runs.
        """
        files = {
            path.relative_to(directory).as_posix(): _hub_file(path)
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        }
        tree = "".join(f"{path} {file.blob_id}\n" for path, file in files.items())
        commit = hashlib.sha1(f"{name}\n{tree}".encode()).hexdigest()
        repository = self._repositories.setdefault(name, Repository())
        repository.commits[commit] = files
        repository.branches[branch] = commit
        repository.gated = gated
        return commit

    def fail(self, name: str, path: str, fault: Fault) -> None:
        """Spoil the next answers that carry this file's bytes."""
        self._faults[name, path] = fault

    def downloads(self, path: str) -> list[Seen]:
        """The requests that carried bytes of a file with this path."""
        suffix = urllib.parse.quote(path)
        return [seen for seen in self.requests if seen.method == "GET" and seen.path.endswith(suffix) and seen.sent]

    def take_fault(self, name: str, path: str) -> Fault | None:
        """The fault for this answer, counted down."""
        with self._lock:
            fault = self._faults.pop((name, path), None)
            if fault is not None and fault.times > 1:
                self._faults[name, path] = Fault(fault.kind, fault.offset, fault.times - 1)
        return fault

    def find(self, name: str) -> Repository | None:
        """A repository by name."""
        return self._repositories.get(name)

    @property
    def handler(self) -> type[Handler]:
        """What answers its requests."""
        return Handler


@contextmanager
def running() -> Iterator[ModelHub]:
    """An empty hub on a free port of loopback."""
    hub = ModelHub()
    try:
        yield hub
    finally:
        hub.close()


class Refusal(Exception):
    """An answer other than success."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Handler(BaseHTTPRequestHandler):
    """Answers as the Hugging Face hub does; its parts serve other hubs too."""

    protocol_version = "HTTP/1.1"
    hub: ClassVar[ModelHub]

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence: the tests read `ModelHub.requests`."""

    def do_HEAD(self) -> None:
        self._dispatch()

    def do_GET(self) -> None:
        self._dispatch()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._dispatch(urllib.parse.parse_qs(body.decode()) if b"=" in body[:20] else json.loads(body or b"{}"))

    def _dispatch(self, body: Mapping[str, object] | None = None) -> None:
        address = urllib.parse.urlsplit(self.path)
        words = [urllib.parse.unquote(word) for word in address.path.strip("/").split("/")]
        query = urllib.parse.parse_qs(address.query)
        try:
            self.route(words, query, body)
        except Refusal as refusal:
            self.refuse(refusal)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def refuse(self, refusal: Refusal) -> None:
        """Say no, the hub's way."""
        headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
        self.answer(refusal.status, json.dumps({"error": refusal.message}).encode(), headers)

    def route(self, words: list[str], query: Mapping[str, list[str]], body: Mapping[str, object] | None) -> None:
        match words:
            case ["api", "models", org, name]:
                self._model_info(f"{org}/{name}", "main", "blobs" in query)
            case ["api", "models", org, name, "refs"]:
                self._refs(f"{org}/{name}")
            case ["api", "models", org, name, "revision", revision]:
                self._model_info(f"{org}/{name}", revision, "blobs" in query)
            case ["api", "models", org, name, "tree", revision, *under]:
                self._tree(f"{org}/{name}", revision, "/".join(under), query)
            case ["api", "models", org, name, "paths-info", revision]:
                self._paths_info(f"{org}/{name}", revision, body or {})
            case ["lfs", org, name, commit, *path] if path:
                self._content(f"{org}/{name}", commit, "/".join(path), direct=True)
            case [org, name, "resolve", revision, *path] if path:
                self._content(f"{org}/{name}", revision, "/".join(path), direct=False)
            case _:
                raise Refusal(404, "", "Sorry, we can't find the page you are looking for.")

    def open(self, name: str, revision: str) -> tuple[Repository, str, dict[str, HubFile]]:
        """The repository, commit and files asked for, when this caller may see them."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in (self.hub.token, self.hub.outsider_token):
            raise Refusal(401, "", "Invalid credentials in Authorization header")
        repository = self.hub.find(name)
        if repository is None:
            # As on the real hub, one who has not said who he is cannot tell absent from private.
            raise Refusal(404 if token else 401, "RepoNotFound", "Repository not found")
        if repository.gated and token != self.hub.token and not self.path.startswith("/api/"):
            who = "Please log in." if not token else "Visit the model's page to ask for access."
            raise Refusal(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted. {who}")
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repository, commit, repository.commits[commit]

    def _model_info(self, name: str, revision: str, blobs: bool) -> None:
        repository, commit, files = self.open(name, revision)
        siblings = [{"rfilename": path, **(_sibling(file) if blobs else {})} for path, file in files.items()]
        self.json(
            {
                "_id": commit[:24],
                "id": name,
                "modelId": name,
                "sha": commit,
                "private": False,
                "gated": "manual" if repository.gated else False,
                "disabled": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "lastModified": "2024-01-01T00:00:00.000Z",
                "createdAt": "2024-01-01T00:00:00.000Z",
                "siblings": siblings,
            }
        )

    def _refs(self, name: str) -> None:
        repository, _, _ = self.open(name, "main")
        branches = [
            {"name": branch, "ref": f"refs/heads/{branch}", "targetCommit": commit}
            for branch, commit in repository.branches.items()
        ]
        self.json({"branches": branches, "converts": [], "tags": []})

    def _tree(self, name: str, revision: str, under: str, query: Mapping[str, list[str]]) -> None:
        _, _, files = self.open(name, revision)
        entries = _tree_entries(files, under, recursive=query.get("recursive", [""])[0].lower() == "true")
        if under and not entries:
            raise Refusal(404, "EntryNotFound", f'Entry "{under}" does not exist on "{revision}"')
        start = int(query.get("cursor", ["0"])[0])
        headers = {}
        if start + PAGE < len(entries):
            rest = {key: values[0] for key, values in query.items()} | {"cursor": str(start + PAGE)}
            path = urllib.parse.urlsplit(self.path).path
            headers["Link"] = f'<{self.hub.url}{path}?{urllib.parse.urlencode(rest)}>; rel="next"'
        self.json(entries[start : start + PAGE], headers)

    def _paths_info(self, name: str, revision: str, body: Mapping[str, object]) -> None:
        _, _, files = self.open(name, revision)
        wanted = body.get("paths", [])
        paths = [wanted] if isinstance(wanted, str) else list(wanted)  # type: ignore[call-overload]
        self.json([_entry(path, files[path]) for path in paths if path in files])

    def _content(self, name: str, revision: str, path: str, *, direct: bool) -> None:
        _, commit, files = self.open(name, revision)
        file = files.get(path)
        if file is None:
            raise Refusal(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes", "ETag": f'"{file.etag}"'}
        if file.lfs and not direct:
            location = f"{self.hub.url}/lfs/{name}/{commit}/{urllib.parse.quote(path)}"
            headers |= {"X-Linked-Size": str(file.size), "X-Linked-ETag": f'"{file.etag}"', "Location": location}
            self.answer(302, b"", headers)
            return
        fault = self.hub.take_fault(name, path) if self.command == "GET" else None
        if fault is not None and fault.kind == "unavailable":
            self.answer(503, b"the hub is busy", {"Retry-After": "0"})
            return
        self.send_file(file, headers, fault)

    def send_file(self, file: HubFile, headers: dict[str, str], fault: Fault | None) -> None:
        start, end, status = 0, file.size, 200
        asked = self.headers.get("Range") or ""
        if asked.startswith("bytes="):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end, status = int(first), int(last) + 1 if last else file.size, 206
            if start >= file.size:
                self.answer(416, b"", {"Content-Range": f"bytes */{file.size}"})
                return
            end = min(end, file.size)
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
        if fault is not None and fault.kind == "truncate":
            end = min(end, max(start, fault.offset))
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(end - start)}.items():
            self.send_header(key, value)
        self.end_headers()
        sent = self._send_bytes(file.path, start, end, fault) if self.command == "GET" else 0
        self._note(status, sent)

    def _send_bytes(self, path: Path, start: int, end: int, fault: Fault | None) -> int:
        position = start
        with path.open("rb") as handle:
            handle.seek(start)
            while position < end:
                data = bytearray(handle.read(min(CHUNK, end - position)))
                if fault is not None and fault.kind == "drop" and position + len(data) > fault.offset:
                    data = data[: max(0, fault.offset - position)]
                    end = position + len(data)
                    self.close_connection = True
                if fault is not None and fault.kind == "wrong-byte" and position <= fault.offset < position + len(data):
                    data[fault.offset - position] ^= 0xFF
                self.wfile.write(data)
                position += len(data)
        return position - start

    def json(self, value: object, headers: Mapping[str, str] | None = None, *, status: int = 200) -> None:
        """Answer with a document."""
        self.answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self._note(status, 0)

    def _note(self, status: int, sent: int) -> None:
        path = urllib.parse.urlsplit(self.path).path
        self.hub.requests.append(Seen(self.command, path, self.headers.get("Range") or "", status, sent))


def _hub_file(path: Path) -> HubFile:
    size = path.stat().st_size
    sha256, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size)
    with path.open("rb") as handle:
        for chunk in iter(lambda: handle.read(1 << 20), b""):
            sha256.update(chunk)
            blob.update(chunk)
    lfs = size >= LFS_FROM or path.suffix in LFS_SUFFIXES
    blob_id = hashlib.sha1(_as_blob(_pointer(sha256.hexdigest(), size))).hexdigest() if lfs else blob.hexdigest()
    return HubFile(path, size, blob_id, sha256.hexdigest(), lfs)


def _pointer(sha256: str, size: int) -> bytes:
    """What git itself holds for an LFS file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def _as_blob(data: bytes) -> bytes:
    return b"blob %d\0" % len(data) + data


def _sibling(file: HubFile) -> dict[str, object]:
    facts: dict[str, object] = {"size": file.size, "blobId": file.blob_id}
    if file.lfs:
        pointer_size = len(_pointer(file.sha256, file.size))
        facts["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": pointer_size}
    return facts


def _entry(path: str, file: HubFile) -> dict[str, object]:
    facts: dict[str, object] = {"type": "file", "oid": file.blob_id, "size": file.size, "path": path}
    if file.lfs:
        pointer_size = len(_pointer(file.sha256, file.size))
        facts["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": pointer_size}
    return facts


def _tree_entries(files: Mapping[str, HubFile], under: str, *, recursive: bool) -> list[dict[str, object]]:
    prefix = f"{under}/" if under else ""
    folders: set[str] = set()
    entries = []
    for path, file in files.items():
        if not path.startswith(prefix):
            continue
        parts = path.removeprefix(prefix).split("/")
        depth = len(parts) if recursive else min(2, len(parts))
        folders.update(prefix + "/".join(parts[:count]) for count in range(1, depth))
        if recursive or len(parts) == 1:
            entries.append(_entry(path, file))
    directories = [
        {"type": "directory", "oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0, "path": name}
        for name in sorted(folders)
    ]
    return directories + entries
