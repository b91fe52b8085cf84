"""``modelscope:ORG/NAME``: a model on ModelScope, or on the server that MODELSCOPE_ENDPOINT names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from airbundle import web
from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.download import Downloader, Refused
from airbundle.selection import choose
from airbundle.sources import hub
from airbundle.sources.base import SourceContext
from airbundle.weights import missing_shards, weight_format
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError, UsageError

SCHEME = "modelscope"
_ENDPOINT = "https://modelscope.cn"
_COOKIE = "m_session_id"  # older interfaces of the server read the token from it
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_ENTRIES = 3000  # the server cuts its list of files off here, without a word
_LARGEST_LIST = 64 * 1024 * 1024  # bytes


def create(context: SourceContext) -> ModelScopeSource:
    """See `airbundle.sources.base`."""
    return ModelScopeSource(context)


@record
class Listed:
    """A file as the server lists it.

    Attributes:
        path: inside the repository.
        size: bytes.
        sha256: of the content, or empty when the server does not tell.
        blob_id: git's hash of it, or empty.
        revision: the commit that last touched it, or empty.
    """

    path: str
    size: int
    sha256: str
    blob_id: str
    revision: str


class ModelScopeSource:
    """Lists and files come over ModelScope's HTTP interface, through airbundle's own downloader.

    Attributes:
        endpoint: URL of the server, without a slash at its end.
    """

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._downloader = Downloader(context.cache, web.new_session(context.environ))
        self.endpoint = _endpoint(context.environ)

    def lock_model(self, model: ModelTable) -> LockedModel:
        """See `Source.lock_model`. The server tells the SHA-256 of every file; small ones are fetched now."""
        repository = model.source.partition(":")[2]
        if not _REPOSITORY.fullmatch(repository):
            raise UsageError(f"{model.source}: not the name of a repository", remedy=f"write {SCHEME}:ORG/NAME")
        wanted = model.revision or "master"
        listed, commit = self._list(repository, wanted)
        chosen = choose({path: entry.size for path, entry in listed.items()}, model)
        lost = missing_shards(chosen.paths)
        if lost:
            raise FetchError(
                f"{model.source}: weights are missing on the hub", details=lost, remedy="name another revision"
            )
        files = tuple(self._lock_file(repository, commit or wanted, listed[path]) for path in chosen.paths)
        for item in hub.descriptions(files):
            if not self._context.cache.has(item.sha256, item.size):
                self.fetch(item, lambda count: None)
        locked = LockedModel(
            served_name=model.served_name,
            source=model.source,
            revision=commit or hub.listing_digest(files),
            format=weight_format(chosen.paths),
            files=files,
            entry=chosen.entry,
            license=model.license,
            skipped=chosen.skipped,
        )
        return hub.with_header(locked, self._head)

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """Refused: this source has models only."""
        raise UsageError(
            f"{image.source}: {SCHEME}: holds models only", remedy="write registry: or daemon: for an image"
        )

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`."""
        origin = item.origin
        url = self._url(origin["repo"], origin["revision"], origin["file"])
        try:
            self._downloader.download(item, url, advance, self._token())
        except Refused as error:
            raise self._explain(origin["repo"], error) from error

    def _head(self, item: LockedFile, count: int) -> bytes:
        url = self._url(item.origin["repo"], item.origin["revision"], item.origin["file"])
        try:
            return self._downloader.head(item.path, url, count, self._token())
        except Refused as error:
            raise self._explain(item.origin["repo"], error) from error

    def _list(self, repository: str, revision: str) -> tuple[dict[str, Listed], str]:
        """Files by path, and the full name of the commit that `revision` stands for, as far as the server tells."""
        data = self._ask(repository, revision, root="")
        entries = _entries(repository, data)
        if len(entries) >= _MOST_ENTRIES:
            entries = self._walk(repository, revision, "")
        files = {entry["Path"]: _listed(repository, entry) for entry in entries if entry.get("Type") != "tree"}
        return files, _commit(data, revision, [file.revision for file in files.values()])

    def _walk(self, repository: str, revision: str, root: str) -> list[Mapping[str, Any]]:
        """A tree too large for one answer, directory by directory."""
        entries = _entries(repository, self._ask(repository, revision, root, recursive=False))
        if len(entries) >= _MOST_ENTRIES:
            raise FetchError(
                f"{SCHEME}:{repository}: {root or 'its top'} holds more files than the server lists",
                remedy="download the model with the hub's own client and name it as local:",
            )
        found = [entry for entry in entries if entry.get("Type") != "tree"]
        for entry in entries:
            if entry.get("Type") == "tree":
                found += self._walk(repository, revision, entry["Path"])
        return found

    def _ask(self, repository: str, revision: str, root: str, *, recursive: bool = True) -> Mapping[str, Any]:
        query = {"Revision": revision, "Recursive": str(recursive), **({"Root": root} if root else {})}
        url = f"{self.endpoint}/api/v1/models/{repository}/repo/files?{urlencode(query)}"
        place = f"{SCHEME}:{repository} on {web.without_secrets(self.endpoint)}"
        try:
            body, _ = self._downloader.read(
                f"the list of files of {SCHEME}:{repository}", url, limit=_LARGEST_LIST, credentials=self._token()
            )
        except Refused as error:
            if error.status == 404:
                raise FetchError(
                    f"{place}: no such repository or revision {revision!r}, or it is private",
                    remedy=f"check the name and the revision; {self._access(repository)}",
                ) from error
            raise self._explain(repository, error) from error
        try:
            answer = json.loads(body)
            data = answer["Data"]
            if answer.get("Success") is False or not isinstance(data, Mapping):
                raise FetchError(f"{place}: {answer.get('Message') or 'refused'}", remedy="see what the hub says of it")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FetchError(
                f"{place}: its answer is not a list of files",
                remedy="check MODELSCOPE_ENDPOINT, and whether a proxy on the way answers in its place",
            ) from error
        return data

    def _lock_file(self, repository: str, commit: str, entry: Listed) -> LockedFile:
        # Where the commit's full name is not told, the one that last touched the file has the same bytes.
        revision = commit if _COMMIT.fullmatch(commit) else entry.revision or commit
        origin = {"source": SCHEME, "repo": repository, "revision": revision, "file": entry.path}
        if entry.sha256:
            return LockedFile(entry.path, entry.sha256, entry.size, origin)
        if not entry.blob_id or entry.size > hub.LARGEST_PLAIN:
            raise FetchError(
                f"{SCHEME}:{repository}: the hub tells no hash of {entry.path}, so it cannot be proven",
                remedy="name another revision, or download the model and name it as local:",
            )
        url = self._url(repository, revision, entry.path)
        try:
            data = hub.read_plain(self._downloader, entry.path, url, entry.blob_id, self._token())
        except Refused as error:
            raise self._explain(repository, error) from error
        return LockedFile(entry.path, self._context.cache.add_bytes(data), len(data), origin)

    def _url(self, repository: str, revision: str, path: str) -> str:
        query = urlencode({"Revision": revision, "FilePath": path})
        return f"{self.endpoint}/api/v1/models/{repository}/repo?{query}"

    def _token(self) -> hub.Bearer | None:
        token = self._context.environ("MODELSCOPE_API_TOKEN")
        return hub.Bearer(token, _COOKIE) if token else None

    def _access(self, repository: str) -> str:
        if self._context.environ("MODELSCOPE_API_TOKEN"):
            return f"ask for access on the page of {repository}, with the account that MODELSCOPE_API_TOKEN belongs to"
        return (
            f"for a private or restricted one ask for access on its page ({repository}), then set MODELSCOPE_API_TOKEN"
        )

    def _explain(self, repository: str, error: Refused) -> FetchError:
        if error.status in (401, 403):
            return FetchError(
                f"{error.summary}: access to {SCHEME}:{repository} is restricted", remedy=self._access(repository)
            )
        return error


def _endpoint(environ: Callable[[str], str | None]) -> str:
    named = (environ("MODELSCOPE_ENDPOINT") or environ("MODELSCOPE_DOMAIN") or _ENDPOINT).strip().rstrip("/")
    return named if re.match(r"https?://", named, re.IGNORECASE) else f"https://{named}"


def _entries(repository: str, data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = data.get("Files")
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) and entry.get("Path") for entry in entries):
        raise FetchError(f"{SCHEME}:{repository}: the hub's list of files is not readable", remedy="try again later")
    return entries


def _listed(repository: str, entry: Mapping[str, Any]) -> Listed:
    path, size = str(entry["Path"]), entry.get("Size")
    if not isinstance(size, int) or size < 0:
        raise FetchError(f"{SCHEME}:{repository}: the hub does not say how large {path} is", remedy="try again later")
    return Listed(
        path,
        size,
        _matching(_SHA256, entry.get("Sha256")),
        _matching(_COMMIT, entry.get("Id")),
        _matching(_COMMIT, entry.get("Revision")),
    )


def _matching(pattern: re.Pattern[str], value: Any) -> str:
    text = str(value or "").lower()
    return text if pattern.fullmatch(text) else ""


def _commit(data: Mapping[str, Any], asked: str, touched: Sequence[str]) -> str:
    """The commit: as the answer names it, as asked for, or the one among the files' that its short form begins.

    The server often leaves the full name of the latest commit empty and gives the short form alone.
    """
    latest = data.get("LatestCommitter")
    named = latest if isinstance(latest, Mapping) else {}
    full, short = _matching(_COMMIT, named.get("Id")), str(named.get("ShortId") or "").lower()
    if full or _COMMIT.fullmatch(asked):
        return full or asked
    return next((commit for commit in touched if len(short) >= 7 and commit.startswith(short)), "")
