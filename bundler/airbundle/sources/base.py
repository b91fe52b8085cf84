"""The seam between resolving and the places things come from.

A source is one module in this package with a module-level ``create(context) -> Source``. Its scheme is the word before
the colon in a spec's ``source``, and without dashes the module's name. It can lock models, images or both, and fetches
what it locked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle_onsite.contract.record import record
from airbundle_onsite.system import Runner, Talk


@record
class SourceContext:
    """What a source may use.

    Attributes:
        cache: the content-addressed cache.
        talk: progress and remarks.
        runner: for programs.
        base: directory of the spec, for relative paths.
        environ: reads one environment variable; returns None when it is unset.
    """

    cache: Cache
    talk: Talk
    runner: Runner
    base: Path
    environ: Callable[[str], str | None]


class Source(Protocol):
    """A place things come from. Methods that do not apply raise UsageError naming the scheme and what it offers."""

    scheme: str

    def lock_model(self, model: ModelTable) -> LockedModel:
        """Pin a model. Raises FetchError when it cannot be found or is not whole."""
        ...

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """Pin one platform of an image. Raises FetchError when it cannot be found."""
        ...

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """Bring one locked file into the cache: resumed, retried, hashed.

        Args:
            item: something this source locked (``item.origin["source"] == scheme``).
            advance: told the number of new bytes as they arrive (resumed bytes included).

        Raises:
            FetchError: with the file, the place and the reason; the partial file stays for the next try.
        """
        ...
