"""Small files whose text stands in the lock itself: what airbundle had to write, such as a corrected config.json.

Nobody writes ``inline:`` in a spec. The lock shows the text, so a reviewer sees what was changed, and building needs
no source for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.sources.base import SourceContext
from airbundle_onsite.errors import FetchError, UsageError

SCHEME = "inline"
_WHERE = "name a source where files are: hf:, modelscope:, local:, url: or pypi:"


def create(context: SourceContext) -> InlineSource:
    """See `airbundle.sources.base`."""
    return InlineSource(context)


def keep(cache: Cache, path: str, text: str, written_for: str) -> LockedFile:
    """Put a text into the cache, as a locked file that carries it.

    Args:
        path: inside the model.
        text: its content.
        written_for: what it was made of, for people.
    """
    data = text.encode()
    return LockedFile(path, cache.add_bytes(data), len(data), {"source": SCHEME, "text": text, "from": written_for})


class InlineSource:
    """Fetches from the lock."""

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._context = context

    def lock_model(self, model: ModelTable) -> LockedModel:
        """Refused: there is nothing to lock."""
        raise UsageError(f"{model.source}: inline: is not for specs", remedy=_WHERE)

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """Refused: there is nothing to lock."""
        raise UsageError(f"{image.source}: inline: is not for specs", remedy="write registry: or daemon: for an image")

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`."""
        data = item.origin["text"].encode()
        if hashlib.sha256(data).hexdigest() != item.sha256:
            raise FetchError(f"{item.path}: its text in the lock was changed by hand", remedy="lock again")
        self._context.cache.add_chunks(item.sha256, item.size, [data])
        advance(item.size)
