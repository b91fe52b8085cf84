"""What sources of models from hubs share: the token's place in a request, proofs, and small files fetched early."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

import requests

from airbundle import web
from airbundle.contract.lock import LockedFile, LockedModel
from airbundle.download import Credentials, Downloader
from airbundle.gguf import GgufError, GgufHeader, parse_header
from airbundle.modelcard import from_gguf
from airbundle_onsite.errors import FetchError

LARGEST_PLAIN = 64 * 1024 * 1024  # bytes; larger files are LFS on any hub
_LARGEST_DESCRIPTION = 16 * 1024 * 1024
_DESCRIPTIONS = (".json", ".jinja", ".py")
_HEADS = (1 << 20, 8 << 20, 48 << 20)  # bytes of a GGUF file to look at, until its header is whole


class Bearer:
    """A hub's token, for the hub's own host only; `requests` drops it on the way to another.

    Args:
        token: as the hub gave it.
        cookie: name of a cookie that carries it too, for hubs whose older interfaces read only that.
    """

    def __init__(self, token: str, cookie: str = "") -> None:
        self._token, self._cookie = token, cookie

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        if self._cookie:
            request.headers["Cookie"] = f"{self._cookie}={self._token}"
        return request

    def challenge(self, response: requests.Response) -> bool:
        """Nothing more to offer than the token."""
        return False


def git_hash(data: bytes) -> str:
    """What git calls a file of these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def read_plain(downloader: Downloader, path: str, url: str, blob_id: str, credentials: Credentials | None) -> bytes:
    """A small file, proven by its git hash; fetched once more when that is wrong.

    Raises:
        FetchError: it cannot be had, or its bytes were wrong twice.
    """
    found = ""
    for _ in range(2):
        data, _ = downloader.read(path, url, limit=LARGEST_PLAIN, credentials=credentials)
        found = git_hash(data)
        if found == blob_id:
            return data
    raise FetchError(
        f"{path} from {web.without_secrets(url)}: wrong bytes, twice",
        details=(f"found git hash {found}", f"needed git hash {blob_id}"),
        remedy="the place, or a proxy on the way, serves another file than the hub lists: try another network",
    )


def descriptions(files: Iterable[LockedFile]) -> list[LockedFile]:
    """The small files that say what a model is; they are fetched while locking, so that the lock can tell."""
    return [
        file for file in files if PurePosixPath(file.path).suffix in _DESCRIPTIONS and file.size <= _LARGEST_DESCRIPTION
    ]


def with_header(model: LockedModel, read: Callable[[LockedFile, int], bytes]) -> LockedModel:
    """With what the header of a GGUF model says, read ahead: plans need it before the file is here.

    Args:
        model: of any format; others than GGUF are returned as they are.
        read: gives the first bytes of a file, as many as it is asked for.
    """
    entry = next((file for file in model.files if file.path == model.entry), None)
    if entry is None or model.format != "gguf":
        return model
    header = _read_gguf_head(entry, read)
    return dataclasses.replace(model, **from_gguf(header)) if header else model


def listing_digest(files: Iterable[LockedFile]) -> str:
    """A name for a set of files whose source has none for it."""
    listing = "".join(f"{file.sha256}  {file.path}\n" for file in files)
    return f"sha256:{hashlib.sha256(listing.encode()).hexdigest()}"


def _read_gguf_head(entry: LockedFile, read: Callable[[LockedFile, int], bytes]) -> GgufHeader | None:
    """None when the header is larger than what is worth fetching ahead, or not a GGUF header: the proof says so."""
    for count in _HEADS:
        data = read(entry, min(count, entry.size))
        try:
            return parse_header(io.BytesIO(data))
        except GgufError:
            if len(data) >= entry.size:
                return None
    return None
