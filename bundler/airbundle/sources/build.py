"""``[image.build]``: an image made here on top of one that another source has; see `airbundle.imagebuild`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from airbundle import sources
from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.oci import pin
from airbundle.sources.base import SourceContext
from airbundle_onsite.errors import FetchError, UsageError

SCHEME = "build"


def create(context: SourceContext) -> BuildSource:
    """See `airbundle.sources.base`."""
    return BuildSource(context)


class BuildSource:
    """What is built is nowhere else: it is pinned by its image id, and comes again from the cache alone."""

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._context = context

    def lock_model(self, model: ModelTable) -> LockedModel:
        """Refused: this source has images only."""
        raise UsageError(f"{model.source}: build: holds images only", remedy="write hf:, pypi: or local: for a model")

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """See `Source.lock_image`. The base is locked by its own source, then built upon."""
        if image.build is None:
            raise UsageError(
                f"{image.source}: build: is not written as a source", remedy="write an [image.build] table instead"
            )
        from airbundle import (
            imagebuild,
        )  # here, since it brings along what few commands need

        below = ImageTable(image.build.base, platform=platform, mirrors=image.mirrors, insecure=image.insecure)
        base = sources.create(below.scheme, self._context).lock_image(below, platform)
        made = imagebuild.build(image.build, base, self._fetch_base, self._context)
        return dataclasses.replace(made, name=image.name or made.name)

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`."""
        cache = self._context.cache
        if cache.has(item.sha256, item.size):
            advance(item.size)
        elif not pin.fetch_made(item, lambda packed: None, cache, advance, self._context.talk):
            raise FetchError(
                f"{item.path}: was built on the machine that made the lock, and is not in this cache",
                remedy="build the bundle there, or copy its cache; or lock again, which builds anew and may come out "
                "different",
            )

    def _fetch_base(self, item: LockedFile) -> None:
        done, talk = 0, self._context.talk

        def advance(count: int) -> None:
            nonlocal done
            done += count
            talk.progress("fetching the base", done, item.size)

        sources.create(item.origin["source"], self._context).fetch(item, advance)
