"""How much the cache holds, and how it is made smaller."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from airbundle.cache import Cache
from airbundle_onsite.contract.record import record


@record
class CacheUse:
    """Files and bytes in the cache: whole files, unfinished ones, and what can be made again from others.

    Attributes:
        root: where it is.
        files, size: fetched and whole.
        partial_files, partial_size: unfinished.
        derived_files, derived_size: facts read from whole files, and what uv remembers of package indexes.
    """

    root: str
    files: int
    size: int
    partial_files: int
    partial_size: int
    derived_files: int
    derived_size: int


def cache_use(cache: Cache) -> CacheUse:
    """How much the cache holds."""
    return _use(cache, _files(cache.root / "blobs"), _unfinished(cache), _facts(cache) + _files(_uv(cache)))


def prune(cache: Cache, keep: Collection[str] = (), *, dry_run: bool = False) -> CacheUse:
    """Remove every whole file but those kept, the facts about what goes, uv's memory, and unfinished files.

    What another process is working on stays.

    Args:
        keep: SHA-256 of whole files that stay.
        dry_run: only look.

    Returns:
        What was, or would be, removed.
    """
    blobs = [path for path in _files(cache.root / "blobs") if path.name not in keep]
    partials = [path for path in _unfinished(cache) if not _is_busy(path)]
    facts = [path for path in _facts(cache) if path.stem.rpartition("-")[2] not in keep]
    uv = _uv(cache)
    remembered = [] if _is_busy(uv / ".lock") else _files(uv)
    removed = _use(cache, blobs, partials, facts + remembered)
    if not dry_run:
        for path in (*partials, *facts):
            path.unlink(missing_ok=True)
        for path in blobs:
            cache.drop(path.name)
        if remembered:
            shutil.rmtree(uv, ignore_errors=True)
    return removed


def _use(cache: Cache, blobs: list[Path], partials: list[Path], derived: list[Path]) -> CacheUse:
    return CacheUse(
        str(cache.root),
        len(blobs),
        _sum_sizes(blobs),
        len(partials),
        _sum_sizes(partials),
        len(derived),
        _sum_sizes(derived),
    )


def _unfinished(cache: Cache) -> list[Path]:
    return _files(cache.root / "partial") + _files(cache.root / "scratch")


def _facts(cache: Cache) -> list[Path]:
    """Facts about a file end in its SHA-256, whatever they are about."""
    return _files(cache.root / "facts")


def _uv(cache: Cache) -> Path:
    return cache.root / "uv"


def _files(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.rglob("*")) if path.is_file()] if directory.is_dir() else []


def _sum_sizes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _is_busy(path: Path) -> bool:
    """Whether a process holds the file's lock; uv and this program lock what they work on."""
    try:
        with path.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
