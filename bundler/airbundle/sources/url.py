"""``url:https://HOST/FILE#sha256=…``: one file from an ordinary web server, such as the one inside a company."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from airbundle import web
from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.download import Downloader
from airbundle.selection import choose
from airbundle.sources import hub
from airbundle.sources.base import SourceContext
from airbundle.weights import weight_format
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

SCHEME = "url"
_FRAGMENT = re.compile(r"sha256=([0-9a-f]{64})")


def create(context: SourceContext) -> UrlSource:
    """See `airbundle.sources.base`."""
    return UrlSource(context)


@record
class Address:
    """Where a file is: its URL without the hash, its name, its SHA-256."""

    url: str
    name: str
    sha256: str


def parse(source: str) -> Address:
    """Take ``url:https://HOST/FILE#sha256=…`` apart. Raises UsageError when anything is missing."""
    parts = urlsplit(source.partition(":")[2])
    name, found = unquote(PurePosixPath(parts.path).name), _FRAGMENT.fullmatch(parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or not name:
        raise UsageError(f"{source}: {SCHEME}: wants an http or https address of a file", remedy=_FORM)
    if parts.username or parts.password:
        raise UsageError(
            f"{SCHEME}:{web.without_secrets(parts.geturl())}: holds credentials, which would go into the bundle",
            remedy="put them into ~/.netrc",
        )
    if not found:
        raise UsageError(
            f"{source}: says no SHA-256, so nothing would prove the file",
            remedy=f"{_FORM}; its publisher tells it, or `sha256sum FILE`",
        )
    return Address(web.without_user(parts.geturl()), name, found[1])


_FORM = f"write {SCHEME}:https://HOST/FILE#sha256=<64 hexadecimal digits>"


class UrlSource:
    """One file by its address and hash."""

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._downloader = Downloader(context.cache, web.new_session(context.environ))

    def lock_model(self, model: ModelTable) -> LockedModel:
        """See `Source.lock_model`. The server only tells how large the file is."""
        address = parse(model.source)
        size = self._downloader.size(address.name, address.url)
        chosen = choose({address.name: size}, model)
        item = LockedFile(address.name, address.sha256, size, {"source": SCHEME, "url": address.url})
        locked = LockedModel(
            served_name=model.served_name,
            source=f"{SCHEME}:{web.without_secrets(address.url)}",
            revision=f"sha256:{address.sha256}",
            format=weight_format(chosen.paths),
            files=(item,),
            entry=chosen.entry,
            license=model.license,
        )
        return hub.with_header(locked, lambda file, count: self._downloader.head(file.path, file.origin["url"], count))

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """Refused: this source has models only."""
        raise UsageError(
            f"{image.source}: {SCHEME}: holds models only", remedy="write registry: or daemon: for an image"
        )

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`."""
        self._downloader.download(item, item.origin["url"], advance)
