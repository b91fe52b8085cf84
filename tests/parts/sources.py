"""What a source is given in tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile
from airbundle.sources.base import SourceContext
from airbundle_onsite.system import SystemRunner


class Heard:
    """A talk that remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def progress(self, what: str, done: int, total: int) -> None:
        assert 0 <= done <= total, f"{what}: {done} of {total}"


def context(directory: Path, environ: Mapping[str, str] | None = None, talk: Heard | None = None) -> SourceContext:
    """A context with its own cache below the directory, and just this environment."""
    return SourceContext(
        cache=Cache(directory / "cache"),
        talk=talk or Heard(),
        runner=SystemRunner(),
        base=directory,
        environ=dict(environ or {}).get,
    )


def forget(cache: Cache, item: LockedFile) -> None:
    """Take one file out of a cache."""
    cache.path(item.sha256).unlink()
