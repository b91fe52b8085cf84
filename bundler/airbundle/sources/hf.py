"""``hf:ORG/NAME``: a model on the Hugging Face hub, or on the mirror that HF_ENDPOINT names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from huggingface_hub import HfApi, constants, get_token, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from airbundle import web
from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.download import Downloader, Refused
from airbundle.selection import choose
from airbundle.sources import hub
from airbundle.sources.base import SourceContext
from airbundle.weights import missing_shards, weight_format
from airbundle_onsite.errors import FetchError, UsageError

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

SCHEME = "hf"
_TRANSPORT_ERROR = cast(
    type[Exception], HfHubHTTPError.__mro__[1]
)  # the base of all errors of whichever HTTP library the client uses


def create(context: SourceContext) -> HubSource:
    """See `airbundle.sources.base`."""
    return HubSource(context)


class HubSource:
    """Metadata comes through the hub's client, files through airbundle's own downloader."""

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._downloader = Downloader(context.cache, web.new_session(context.environ))
        self._endpoint = (context.environ("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")

    def lock_model(self, model: ModelTable) -> LockedModel:
        """See `Source.lock_model`. Small files are fetched now, since the hub tells only their git hash."""
        repository = model.source.partition(":")[2]
        info = self._info(repository, model.revision)
        commit = str(info.sha)
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
        chosen = choose({path: sibling.size or 0 for path, sibling in siblings.items()}, model)
        lost = missing_shards(chosen.paths)
        if lost:
            raise FetchError(
                f"{model.source}: weights are missing on the hub", details=lost, remedy="name another revision"
            )
        files = tuple(self._lock_file(repository, commit, siblings[path]) for path in chosen.paths)
        for item in hub.descriptions(files):
            if not self._context.cache.has(item.sha256, item.size):
                self.fetch(item, lambda count: None)
        locked = LockedModel(
            served_name=model.served_name,
            source=model.source,
            revision=commit,
            format=weight_format(chosen.paths),
            files=files,
            entry=chosen.entry,
            license=model.license or _license(info),
            skipped=chosen.skipped,
        )
        return hub.with_header(locked, self._head)

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """Refused: this source has models only."""
        raise UsageError(f"{image.source}: hf: holds models only", remedy="write registry: or daemon: for an image")

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`."""
        repository, commit = item.origin["repo"], item.origin["revision"]
        try:
            self._downloader.download(item, self._url(repository, commit, item.origin["file"]), advance, self._token())
        except Refused as error:
            raise self._explain(repository, error) from error

    def _info(self, repository: str, revision: str) -> ModelInfo:
        api = HfApi(endpoint=self._endpoint, token=self._token_text() or False)
        place = f"{SCHEME}:{repository} on {web.without_secrets(self._endpoint)}"
        try:
            return api.model_info(repository, revision=revision or None, files_metadata=True, timeout=60)
        except HFValidationError as error:
            raise UsageError(f"{SCHEME}:{repository}: {error}", remedy="write hf:ORG/NAME") from error
        except RevisionNotFoundError as error:
            raise FetchError(
                f"{place}: no revision {revision!r}", remedy="name a branch, tag or commit of it"
            ) from error
        except GatedRepoError as error:
            raise FetchError(f"{place}: access is restricted", remedy=self._access(repository)) from error
        except RepositoryNotFoundError as error:
            raise FetchError(
                f"{place}: not found, or private", remedy=f"check the name; {self._access(repository)}"
            ) from error
        except HfHubHTTPError as error:
            status = error.response.status_code
            raise FetchError(f"{place}: HTTP {status}", remedy=_HTTP.get(status, "try again later")) from error
        except OfflineModeIsEnabled as error:
            raise FetchError(
                f"{place}: HF_HUB_OFFLINE is set", remedy="unset it to lock; a lock builds without"
            ) from error
        except _TRANSPORT_ERROR as error:
            raise FetchError(
                f"{place}: {web.reason(error)}",
                remedy="check the network, the proxy, HF_ENDPOINT, and SSL_CERT_FILE behind an inspecting proxy",
            ) from error

    def _lock_file(self, repository: str, commit: str, sibling: RepoSibling) -> LockedFile:
        path = sibling.rfilename
        origin = {"source": SCHEME, "repo": repository, "revision": commit, "file": path}
        if sibling.lfs is not None:
            return LockedFile(path, sibling.lfs.sha256, sibling.lfs.size, origin)
        if not sibling.blob_id:
            raise FetchError(
                f"{SCHEME}:{repository}: the hub tells no hash of {path}, so it cannot be proven",
                remedy="use a hub or mirror that does, or download the model and name it as local:",
            )
        data = self._plain(repository, commit, path, sibling.blob_id)
        return LockedFile(path, self._context.cache.add_bytes(data), len(data), origin)

    def _plain(self, repository: str, commit: str, path: str, blob_id: str) -> bytes:
        url = self._url(repository, commit, path)
        try:
            return hub.read_plain(self._downloader, path, url, blob_id, self._token())
        except Refused as error:
            raise self._explain(repository, error) from error

    def _head(self, item: LockedFile, count: int) -> bytes:
        url = self._url(item.origin["repo"], item.origin["revision"], item.origin["file"])
        try:
            return self._downloader.head(item.path, url, count, self._token())
        except Refused as error:
            raise self._explain(item.origin["repo"], error) from error

    def _url(self, repository: str, commit: str, path: str) -> str:
        return hf_hub_url(repository, path, revision=commit, endpoint=self._endpoint)

    def _token_text(self) -> str:
        return self._context.environ("HF_TOKEN") or get_token() or ""

    def _token(self) -> hub.Bearer | None:
        token = self._token_text()
        return hub.Bearer(token) if token else None

    def _access(self, repository: str) -> str:
        if self._token_text():
            return (
                f"accept the licence of {repository} on its page, with the account that this machine's token belongs to"
            )
        return f"accept the licence of {repository} on its page, then log in with `hf auth login` or set HF_TOKEN"

    def _explain(self, repository: str, error: Refused) -> FetchError:
        if error.status in (401, 403):
            return FetchError(
                f"{error.summary}: access to {SCHEME}:{repository} is restricted", remedy=self._access(repository)
            )
        return error


_HTTP: Mapping[int, str] = {
    401: "the token is not accepted: log in again with `hf auth login`, or correct HF_TOKEN",
    403: "the token may not read this: use one of an account with access",
    429: "the hub limits requests: wait, or log in with `hf auth login`",
}


def _license(info: ModelInfo) -> str:
    card: Any = info.card_data or {}
    named = [tag.partition(":")[2] for tag in info.tags or () if tag.startswith("license:")]
    return str(card.get("license_name") or card.get("license") or next(iter(named), ""))
