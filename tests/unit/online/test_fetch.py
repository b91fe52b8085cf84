"""Fetching a lock: in parallel, only what is missing, and one report of everything that failed."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airbundle import web
from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.download import Downloader
from airbundle.fetch import fetch_all
from airbundle_onsite.errors import ExitCode, FetchError
from airbundle_onsite.system import Silent
from parts.files import FileServer, serving


class WebSource:
    """A source whose files are at ``origin["url"]``."""

    scheme = "web"

    def __init__(self, cache: Cache) -> None:
        self._downloader = Downloader(cache, web.new_session({}.get))

    def lock_model(self, model: ModelTable) -> LockedModel:
        raise NotImplementedError

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        raise NotImplementedError

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        self._downloader.download(item, item.origin["url"], advance)


class Told:
    """A talk that remembers."""

    def __init__(self) -> None:
        self.progressed: list[tuple[str, int, int]] = []

    def say(self, line: str) -> None:
        pass

    def progress(self, what: str, done: int, total: int) -> None:
        self.progressed.append((what, done, total))


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def offer(server: FileServer, name: str, size: int = 100_000, source: str = "web") -> LockedFile:
    """Put a file on the server, and lock it."""
    data = os.urandom(size)
    server.files[name] = data
    origin = {"source": source, "url": f"{server.url}{name}"}
    return LockedFile(name, hashlib.sha256(data).hexdigest(), size, origin)


def test_everything_missing_is_fetched_and_nothing_else(server: FileServer, cache: Cache) -> None:
    items = [offer(server, f"file{number}") for number in range(9)]
    cache.add_bytes(server.files["file3"])
    talk = Told()
    fetch_all(items, lambda scheme: WebSource(cache), cache, talk)
    assert all(cache.has(item.sha256, item.size) for item in items)
    assert sorted(name for name, _, _ in server.requests) == sorted(f"file{n}" for n in range(9) if n != 3)
    assert {total for _, _, total in talk.progressed} == {800_000}
    assert talk.progressed[-1] == ("fetching", 800_000, 800_000)
    assert [done for _, done, total in talk.progressed[:-1] if done == total] == []
    fetch_all(items, lambda scheme: WebSource(cache), cache, talk)
    assert len(server.requests) == 8


def test_every_failure_is_listed_once_with_its_cure(server: FileServer, cache: Cache) -> None:
    good, gone, wrong = (offer(server, name) for name in ("good", "gone", "wrong"))
    del server.files["gone"]
    server.files["wrong"] = server.files["wrong"][::-1]
    with pytest.raises(FetchError) as caught:
        fetch_all([wrong, good, gone], lambda scheme: WebSource(cache), cache, Silent())
    error = caught.value
    assert error.exit_code == ExitCode.FETCH
    assert error.summary == "2 of 3 files could not be fetched"
    assert len(error.details) == 2
    assert "gone from" in error.details[0] and "404" in error.details[0] and "lock again" in error.details[0]
    assert "wrong from" in error.details[1] and wrong.sha256 in error.details[1]
    assert cache.has(good.sha256, good.size)
    server.files["gone"], server.files["wrong"] = b"", server.files["wrong"][::-1]
    before = server.sent("good")
    with pytest.raises(FetchError, match="1 of 2 files"):
        fetch_all([wrong, good, gone], lambda scheme: WebSource(cache), cache, Silent())
    assert server.sent("good") == before


def test_each_source_is_made_once(server: FileServer, cache: Cache) -> None:
    made: list[str] = []

    def source_of(scheme: str) -> WebSource:
        made.append(scheme)
        return WebSource(cache)

    fetch_all([offer(server, f"f{n}") for n in range(4)], source_of, cache, Silent())
    assert made == ["web"]


def test_bug_in_a_source_is_not_taken_for_a_failed_download(server: FileServer, cache: Cache) -> None:
    class Broken(WebSource):
        def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fetch_all([offer(server, "f")], lambda scheme: Broken(cache), cache, Silent())


def test_workers_stop_when_one_gives_up(server: FileServer, cache: Cache) -> None:
    stopped = threading.Event()

    class Interrupted(WebSource):
        def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
            if item.path == "first":
                raise KeyboardInterrupt
            try:
                while True:
                    advance(0)
                    threading.Event().wait(0.01)
            finally:
                stopped.set()

    items = [offer(server, "first", 10), offer(server, "second", 20)]
    with pytest.raises(KeyboardInterrupt):
        fetch_all(items, lambda scheme: Interrupted(cache), cache, Silent())
    assert stopped.wait(10)


def test_more_than_the_disk_holds_is_refused_before_it_begins(server: FileServer, cache: Cache) -> None:
    huge = LockedFile("huge", "0" * 64, 10**18, {"source": "web", "url": f"{server.url}huge"})
    with pytest.raises(FetchError, match="free") as caught:
        fetch_all([huge], lambda scheme: WebSource(cache), cache, Silent())
    assert "AIRBUNDLE_CACHE" in caught.value.remedy
    assert server.requests == []


@pytest.mark.real("ext4")
def test_disk_that_fills_on_the_way(server: FileServer, small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(16)
    cache, item = Cache(disk / "cache"), offer(server, "big", 9_000_000)
    ballast = disk / "ballast"

    class Filling(WebSource):
        def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
            with ballast.open("wb") as handle:  # somebody else writes while we fetch
                handle.write(bytes(8_000_000))
            super().fetch(item, advance)

    with pytest.raises(FetchError) as caught:
        fetch_all([item], lambda scheme: Filling(cache), cache, Silent())
    assert "is full" in caught.value.details[0]
    assert str(cache.root) in caught.value.details[0]
    assert not cache.path(item.sha256).exists()
    ballast.unlink()
    server.requests.clear()
    fetch_all([item], lambda scheme: WebSource(cache), cache, Silent())
    assert cache.has(item.sha256, item.size)
    assert server.sent("big") < item.size
