"""Many files at once: everything a lock names and the cache lacks, with every failure reported at the end."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile
from airbundle.download import ROOM, disk_full
from airbundle.sources.base import Source
from airbundle_onsite.errors import AirbundleError, FetchError
from airbundle_onsite.system import Talk
from airbundle_onsite.units import human_bytes

_Outcomes = SimpleQueue[tuple[LockedFile, BaseException | None]]


def fetch_all(
    items: Sequence[LockedFile], source_of: Callable[[str], Source], cache: Cache, talk: Talk, workers: int = 4
) -> None:
    """Fetch everything that is missing, in parallel; what is whole is not touched.

    Args:
        items: each hash once.
        source_of: makes the source of a scheme; asked once for each.
        cache: where they go.
        talk: told the overall progress.
        workers: files at a time.

    Raises:
        FetchError: listing every file that could not be had, with the reason and the cure.
        KeyboardInterrupt: passed on at once; unfinished files stay partial.
    """
    missing = [item for item in items if not cache.has(item.sha256, item.size)]
    if not missing:
        return
    _check_room(missing, cache)
    board = _Board(talk, sum(item.size for item in missing))
    sources = {scheme: source_of(scheme) for scheme in sorted({item.origin.get("source", "") for item in missing})}
    todo, outcomes = deque(missing), _Outcomes()
    for _ in range(min(workers, len(missing))):  # daemons, so that Ctrl-C need not wait for a slow server
        Thread(target=_work, args=(todo, sources, cache, board, outcomes), daemon=True).start()
    failures = []
    try:
        for _ in missing:
            item, error = outcomes.get()
            if isinstance(error, AirbundleError):
                failures.append((item, error))
            elif error is not None:
                raise error
    finally:
        board.stopped = True
        todo.clear()
        board.end()
    if failures:
        raise _failed(failures, len(missing))


class _Stopped(Exception):
    """The others have given up."""


class _Board:
    """The overall progress, told from every thread."""

    def __init__(self, talk: Talk, total: int) -> None:
        self._talk, self._total, self._done, self._lock = talk, total, 0, Lock()
        self.stopped = False

    def advance(self, count: int) -> None:
        if self.stopped:
            raise _Stopped
        with self._lock:
            self._done += count
            self._talk.progress("fetching", min(self._done, self._total - 1), self._total)

    def end(self) -> None:
        with self._lock:
            self._talk.progress("fetching", self._done, self._done)


def _work(
    todo: deque[LockedFile],
    sources: dict[str, Source],
    cache: Cache,
    board: _Board,
    outcomes: _Outcomes,
) -> None:
    while True:
        try:
            item = todo.popleft()
        except IndexError:
            return
        try:
            with disk_full(cache, item):
                sources[item.origin.get("source", "")].fetch(item, board.advance)
            outcomes.put((item, None))
        except BaseException as error:  # noqa: BLE001 (carried to the main thread, which raises it)
            outcomes.put((item, error))


def _check_room(missing: Sequence[LockedFile], cache: Cache) -> None:
    """Local files are linked and need no room; everything else does."""
    wanted = sum(
        cache.missing_bytes(item.sha256, item.size) for item in missing if item.origin.get("source") != "local"
    )
    free = shutil.disk_usage(_existing(cache.root)).free
    if wanted > free:
        raise FetchError(
            f"the disk of the cache {cache.root} has {human_bytes(free)} free, {human_bytes(wanted)} are to be fetched",
            remedy=ROOM,
        )


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _failed(failures: Sequence[tuple[LockedFile, AirbundleError]], count: int) -> FetchError:
    details = []
    for item, error in sorted(failures, key=lambda failure: failure[0].path):
        name = "" if item.path in error.summary else f"{item.path}: "
        facts = "".join(f"; {detail}" for detail in error.details)
        cure = f" — {error.remedy}" if error.remedy else ""
        details.append(f"{name}{error.summary}{facts}{cure}")
    return FetchError(
        f"{len(failures)} of {count} files could not be fetched",
        details=details,
        remedy="cure these and run the same command again: what is whole is kept, the rest goes on where it stopped",
    )
