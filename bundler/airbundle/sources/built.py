"""``built``: wheels that were built here while locking. They are in the cache, or they have to be built again."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.sources.base import SourceContext
from airbundle_onsite.errors import FetchError, UsageError

SCHEME = "built"


def create(context: SourceContext) -> BuiltSource:
    """See `airbundle.sources.base`."""
    return BuiltSource(context)


class BuiltSource:
    """What cannot be fetched from anywhere, since it was made here."""

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._cache = context.cache

    def lock_model(self, model: ModelTable) -> LockedModel:
        """Refused."""
        self._refuse(model.source)

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """Refused."""
        self._refuse(image.source)

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`: only says how to get it again."""
        if self._cache.has(item.sha256, item.size):
            advance(item.size)
            return
        raise FetchError(
            f"{item.path}: was built while locking, {item.origin.get('place', '')}, and the cache has lost it",
            remedy="run `airbundle lock SPEC` again: it builds the wheel anew, with the same build requirements",
        )

    def _refuse(self, source: str) -> NoReturn:
        raise UsageError(f"{source}: built: is for wheels made while locking", remedy="name another source")
