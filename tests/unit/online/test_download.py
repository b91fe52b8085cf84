"""Downloads against a server that misbehaves: resumed where they stopped, and never wrong."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airbundle import web
from airbundle.cache import Cache
from airbundle.cacheuse import cache_use
from airbundle.contract.lock import LockedFile
from airbundle.download import Downloader
from airbundle_onsite.errors import FetchError
from parts.files import FileServer, Spoil, serving

DATA = os.urandom(4_000_000)
ITEM = LockedFile("model.gguf", hashlib.sha256(DATA).hexdigest(), len(DATA))


class QuickClock:
    """Sleeps are noted, not slept."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        running.files["model.gguf"] = DATA
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


class Bench:
    """A downloader, its clock, and what it told."""

    def __init__(self, cache: Cache, server: FileServer) -> None:
        self.cache, self.server, self.clock, self.told = cache, server, QuickClock(), 0
        self.downloader = Downloader(cache, web.new_session({}.get), clock=self.clock)

    def download(self, item: LockedFile = ITEM, query: str = "") -> None:
        self.downloader.download(item, f"{self.server.url}model.gguf{query}", self.advance)

    def advance(self, count: int) -> None:
        self.told += count


@pytest.fixture
def bench(cache: Cache, server: FileServer) -> Bench:
    return Bench(cache, server)


def test_plain(bench: Bench) -> None:
    bench.download()
    assert bench.cache.path(ITEM.sha256).read_bytes() == DATA
    assert bench.told == len(DATA)
    bench.download()
    assert len(bench.server.requests) == 1


def test_dropped_connection_goes_on_where_it_stopped(bench: Bench) -> None:
    bench.server.spoils["model.gguf"] = [Spoil("drop", 1_500_000), Spoil("drop", 1_500_000)]
    bench.download()
    assert bench.cache.has(ITEM.sha256, len(DATA))
    assert bench.server.requests[0][1] == ""
    assert all(asked.startswith("bytes=") for _, asked, _ in bench.server.requests[1:])
    assert len(DATA) <= bench.server.sent("model.gguf") < 1.6 * len(DATA)
    assert bench.server.resumed_by == [f'"{len(DATA)}"'] * 2
    assert bench.told == len(DATA)


def test_server_without_ranges_is_asked_for_everything_again(bench: Bench) -> None:
    bench.server.ranges = False
    bench.server.spoils["model.gguf"] = [Spoil("drop", 2_000_000)]
    bench.download()
    assert bench.cache.has(ITEM.sha256, len(DATA))
    assert bench.told == len(DATA)


@pytest.mark.parametrize("spoil", [Spoil("whole"), Spoil("gone")])
def test_answer_to_a_resumption_that_is_none(bench: Bench, spoil: Spoil) -> None:
    bench.server.spoils["model.gguf"] = [Spoil("drop", 2_000_000), spoil]
    bench.download()
    assert bench.cache.has(ITEM.sha256, len(DATA))
    assert bench.told == len(DATA)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_passing_trouble_is_waited_out(bench: Bench, status: int) -> None:
    bench.server.spoils["model.gguf"] = [Spoil("status", status)] * 2
    bench.download()
    assert bench.clock.slept == [1, 2]


def test_lasting_trouble_ends(bench: Bench) -> None:
    bench.server.spoils["model.gguf"] = [Spoil("status", 503)] * 9
    with pytest.raises(FetchError, match="HTTP 503"):
        bench.download()
    assert len(bench.clock.slept) == 4


@pytest.mark.parametrize(("status", "cure"), [(401, "credentials"), (403, "credentials"), (404, "gone"), (410, "lock")])
def test_refusals_are_not_repeated(bench: Bench, status: int, cure: str) -> None:
    bench.server.spoils["model.gguf"] = [Spoil("status", status)] * 9
    with pytest.raises(FetchError, match=f"model.gguf from .*: HTTP {status}") as caught:
        bench.download()
    assert cure in caught.value.remedy
    assert bench.clock.slept == []


def test_one_wrong_byte_is_fetched_again(bench: Bench) -> None:
    bench.server.spoils["model.gguf"] = [Spoil("flip")]
    bench.download()
    assert bench.cache.path(ITEM.sha256).read_bytes() == DATA
    assert bench.told == len(DATA)


def test_wrong_bytes_twice_name_file_place_found_and_needed(bench: Bench) -> None:
    bench.server.spoils["model.gguf"] = [Spoil("flip"), Spoil("flip")]
    with pytest.raises(FetchError) as caught:
        bench.download()
    text = "\n".join(caught.value.lines())
    wrong = bytes([DATA[0] ^ 0xFF]) + DATA[1:]
    assert "model.gguf" in text
    assert bench.server.url in text
    assert hashlib.sha256(wrong).hexdigest() in text
    assert ITEM.sha256 in text
    assert cache_use(bench.cache).partial_files == 0


@pytest.mark.parametrize("served", [DATA[:-1], DATA + b"x"], ids=["shorter", "longer"])
def test_file_of_another_size_is_refused_before_it_is_fetched(bench: Bench, served: bytes) -> None:
    bench.server.files["model.gguf"] = served
    with pytest.raises(FetchError) as caught:
        bench.download()
    assert caught.value.details[0] == f"found {len(served)} bytes"
    assert f"needed {len(DATA)} bytes" in caught.value.details[1]
    assert not bench.cache.path(ITEM.sha256).exists()


def test_leftovers_of_another_file_do_no_harm(bench: Bench) -> None:
    with pytest.raises(RuntimeError), bench.cache.partial(ITEM.sha256, len(DATA)) as partial:
        partial.write(b"nonsense" * 1000)
        raise RuntimeError
    bench.download()
    assert bench.cache.path(ITEM.sha256).read_bytes() == DATA


def test_messages_hold_no_secret(bench: Bench) -> None:
    bench.server.spoils["model.gguf"] = [Spoil("status", 404)]
    with pytest.raises(FetchError) as caught:
        bench.download(query="?signature=geheim")
    assert "geheim" not in "\n".join(caught.value.lines())
    dead = LockedFile("dead", "0" * 64, 1)
    with pytest.raises(FetchError) as caught:
        bench.downloader.download(dead, "http://me:geheim@127.0.0.1:9/x?key=geheim", bench.advance)
    assert "connection refused" in caught.value.summary
    assert "geheim" not in "\n".join(caught.value.lines())


def test_proxy_is_not_asked_for_loopback(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    bench.download()
    assert bench.cache.has(ITEM.sha256, len(DATA))


def test_small_document_and_its_limit(bench: Bench) -> None:
    bench.server.files["small"] = b"0123456789"
    bench.server.spoils["small"] = [Spoil("drop", 4)]
    assert bench.downloader.read("small", f"{bench.server.url}small", limit=10)[0] == b"0123456789"
    with pytest.raises(FetchError, match="more than 9 B"):
        bench.downloader.read("small", f"{bench.server.url}small", limit=9)
    assert bench.downloader.size("model.gguf", f"{bench.server.url}model.gguf") == len(DATA)


CHILD = """
import sys
from pathlib import Path
from airbundle import web
from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile
from airbundle.download import Downloader
root, url, sha256, size = sys.argv[1:]
item = LockedFile("model.gguf", sha256, int(size))
Downloader(Cache(Path(root)), web.new_session({}.get)).download(item, url, lambda count: None)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_killed_process_is_taken_up_by_the_next(bench: Bench, ending: signal.Signals) -> None:
    bench.server.pause = 0.01
    words = [str(bench.cache.root), f"{bench.server.url}model.gguf", ITEM.sha256, str(len(DATA))]
    child = subprocess.Popen([sys.executable, "-c", CHILD, *words], stderr=subprocess.DEVNULL)
    _wait(lambda: bench.cache.missing_bytes(ITEM.sha256, len(DATA)) < len(DATA) - 1_000_000)
    child.send_signal(ending)
    child.wait(20)
    missing = bench.cache.missing_bytes(ITEM.sha256, len(DATA))
    assert 0 < missing < len(DATA)
    assert not bench.cache.path(ITEM.sha256).exists()
    bench.server.pause = 0
    _wait(lambda: bool(bench.server.requests))
    before = bench.server.sent("model.gguf")
    bench.download()
    assert bench.server.sent("model.gguf") - before == missing
    assert bench.told == len(DATA)


def _wait(ready: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)
