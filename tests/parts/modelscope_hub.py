"""A small model hub that speaks ModelScope's HTTP interface, as far as its real client lists and downloads models.

Repositories, commits and faults are those of `parts.hub`. As on the real one, the list of files gives the SHA-256 of
each, names the latest commit by its short form alone, and is cut off without a word after `limit` entries.
"""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from parts.hub import Handler, HubFile, ModelHub, Refusal, Repository

LIMIT = 3000


class ModelScopeHub(ModelHub):
    """See the module's text.

    Attributes:
        token: the one that opens gated repositories, in a header or in a cookie.
        limit: entries of a list before it is cut off.
        silent: hashes that the list leaves out, of ``sha256`` and ``commit``.
    """

    token = "ms-" + "a" * 32
    outsider_token = "ms-" + "b" * 32

    def __init__(self) -> None:
        super().__init__()
        self.limit = LIMIT
        self.silent: frozenset[str] = frozenset()

    @property
    def handler(self) -> type[Handler]:
        return _Handler


@contextmanager
def running() -> Iterator[ModelScopeHub]:
    """An empty hub on a free port of loopback."""
    hub = ModelScopeHub()
    try:
        yield hub
    finally:
        hub.close()


class _Handler(Handler):
    hub: ModelScopeHub  # type: ignore[misc]

    def route(self, words: list[str], query: Mapping[str, list[str]], body: Mapping[str, object] | None) -> None:
        match words:
            case ["api", "v1", "models", org, name, "repo", "files"]:
                self._files(f"{org}/{name}", query)
            case ["api", "v1", "models", org, name, "repo"]:
                self._file(f"{org}/{name}", _one(query, "Revision"), _one(query, "FilePath"), direct=False)
            case ["lfs", org, name, commit, *path] if path:
                self._file(f"{org}/{name}", commit, "/".join(path), direct=True)
            case _:
                raise Refusal(404, "", "not found")

    def refuse(self, refusal: Refusal) -> None:
        body = {"Code": 10010205001, "Message": refusal.message, "RequestId": "r", "Success": False}
        self.json(body, status=refusal.status)

    def open(self, name: str, revision: str) -> tuple[Repository, str, dict[str, HubFile]]:
        sent = {self.headers.get("Authorization", "").removeprefix("Bearer ")}
        cookies = self.headers.get("Cookie", "").split("; ")
        sent |= {cookie.removeprefix("m_session_id=") for cookie in cookies if cookie.startswith("m_session_id=")}
        repository = self.hub.find(name)
        if repository is None:
            raise Refusal(404, "", "record not found")
        if repository.gated and self.hub.token not in sent:
            raise Refusal(403 if sent - {""} else 404, "", "access denied")
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            raise Refusal(404, "", f"revision {revision} not found")
        return repository, commit, repository.commits[commit]

    def _files(self, name: str, query: Mapping[str, list[str]]) -> None:
        _, commit, files = self.open(name, _one(query, "Revision") or "master")
        root, recursive = _one(query, "Root"), _one(query, "Recursive").lower() == "true"
        entries = [self._entry(path, file, commit) for path, file in files.items() if _is_under(path, root, recursive)]
        entries += [
            {"Path": path, "Name": path.rpartition("/")[2], "Type": "tree", "Size": 0, "Sha256": ""}
            for path in _folders(files, root, recursive)
        ]
        latest = {"Id": "", "ShortId": commit[:8], "Message": "upload"}
        data = {"Files": entries[: self.hub.limit], "IsVisual": 0, "LatestCommitter": latest}
        self.json({"Code": 200, "Data": data, "Message": "success", "RequestId": "r", "Success": True})

    def _entry(self, path: str, file: HubFile, commit: str) -> dict[str, object]:
        # Files that a later commit left alone name the commit that brought them.
        revision = commit if "commit" not in self.hub.silent else hashlib.sha1(file.sha256.encode()).hexdigest()
        return {
            "Path": path,
            "Name": path.rpartition("/")[2],
            "Type": "blob",
            "Size": file.size,
            "Sha256": "" if "sha256" in self.hub.silent else file.sha256,
            "Id": "" if file.lfs else file.blob_id,
            "Revision": revision,
            "IsLFS": file.lfs,
        }

    def _file(self, name: str, revision: str, path: str, *, direct: bool) -> None:
        repository = self.hub.find(name)
        if repository and "commit" in self.hub.silent:
            for commit, files in repository.commits.items():
                if path in files and hashlib.sha1(files[path].sha256.encode()).hexdigest() == revision:
                    revision = commit
        _, commit, files = self.open(name, revision) if not direct else (None, revision, self._held(name, revision))
        if path not in files:
            raise Refusal(404, "", "file not found")
        file = files[path]
        headers = {"Accept-Ranges": "bytes", "ETag": f'"{file.etag}"'}
        if file.lfs and not direct:
            location = f"{self.hub.url}/lfs/{name}/{commit}/{urllib.parse.quote(path)}"
            self.answer(302, b"", {**headers, "X-Linked-ETag": f'"{file.sha256}"', "Location": location})
            return
        fault = self.hub.take_fault(name, path) if self.command == "GET" else None
        if fault is not None and fault.kind == "unavailable":
            self.answer(503, b"busy", {"Retry-After": "0"})
            return
        self.send_file(file, headers, fault)

    def _held(self, name: str, commit: str) -> dict[str, HubFile]:
        """What a signed address opens, whoever asks."""
        repository = self.hub.find(name)
        return repository.commits[commit] if repository else {}


def _one(query: Mapping[str, list[str]], key: str) -> str:
    return query.get(key, [""])[0]


def _is_under(path: str, root: str, recursive: bool) -> bool:
    rest = path.removeprefix(f"{root}/") if root else path
    return (not root or path.startswith(f"{root}/")) and (recursive or "/" not in rest)


def _folders(files: Mapping[str, HubFile], root: str, recursive: bool) -> list[str]:
    found = {path[:place] for path in files for place, letter in enumerate(path) if letter == "/"}
    return sorted(path for path in found if _is_under(path, root, recursive))
