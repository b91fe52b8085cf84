"""The cache: only whole files have a name in it, whatever happens on the way."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from pathlib import Path

import pytest

from airbundle.cache import Cache, WrongBytes, default_root
from airbundle.cacheuse import cache_use, prune
from airbundle_onsite.errors import FetchError

DATA = os.urandom(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_root_follows_the_environment() -> None:
    assert default_root({"AIRBUNDLE_CACHE": "/a"}) == Path("/a")
    assert default_root({"XDG_CACHE_HOME": "/x"}) == Path("/x/airbundle")


def test_interrupted_file_has_no_final_name_and_goes_on_where_it_stopped(cache: Cache) -> None:
    with pytest.raises(KeyboardInterrupt), cache.partial(SHA256, len(DATA)) as partial:
        partial.write(DATA[:1000])
        raise KeyboardInterrupt
    assert not cache.path(SHA256).exists()
    assert cache.missing_bytes(SHA256, len(DATA)) == len(DATA) - 1000
    with cache.partial(SHA256, len(DATA)) as partial:
        assert partial.done == 1000
        partial.write(DATA[1000:])
    assert cache.path(SHA256).read_bytes() == DATA
    assert cache.has(SHA256, len(DATA))
    assert cache.missing_bytes(SHA256, len(DATA)) == 0


def test_wrong_bytes_are_thrown_away_and_named(cache: Cache) -> None:
    with pytest.raises(WrongBytes) as caught, cache.partial(SHA256, len(DATA)) as partial:
        partial.write(b"something else")
    assert caught.value.needed == SHA256
    assert caught.value.found == hashlib.sha256(b"something else").hexdigest()
    assert cache_use(cache).partial_files == 0
    assert not cache.has(SHA256, len(DATA))


@pytest.mark.parametrize("change", ["content", "length"])
def test_file_changed_after_it_was_proven_is_no_longer_here(cache: Cache, change: str) -> None:
    cache.add_bytes(DATA)
    path = cache.path(SHA256)
    path.chmod(0o644)
    path.write_bytes(DATA[::-1] if change == "content" else DATA[:-1])
    os.utime(path, ns=(1, 1))
    assert not cache.has(SHA256, len(DATA))
    assert not path.exists()


def test_paranoid_look_finds_a_change_that_the_stamp_hides(cache: Cache) -> None:
    cache.add_bytes(DATA)
    path, stamp = cache.path(SHA256), cache.path(SHA256).stat()
    path.chmod(0o644)
    path.write_bytes(DATA[::-1])
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert cache.has(SHA256, len(DATA))
    assert not cache.has(SHA256, len(DATA), paranoid=True)


def test_two_at_once_write_the_file_once(cache: Cache) -> None:
    wrote = []
    barrier = threading.Barrier(2)

    def work() -> None:
        barrier.wait()
        with cache.partial(SHA256, len(DATA)) as partial:
            if not partial.whole:
                for at in range(0, len(DATA), 10_000):
                    partial.write(DATA[at : at + 10_000])
                wrote.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrote == [1]
    assert cache.path(SHA256).read_bytes() == DATA
    assert cache_use(cache).partial_files == 0


def test_stream_of_unknown_hash(cache: Cache) -> None:
    assert cache.add_stream([DATA[:10], DATA[10:]]) == (SHA256, len(DATA))
    assert cache.path(SHA256).stat().st_mode & 0o777 == 0o444

    def broken() -> object:
        yield b"abc"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        cache.add_stream(broken())  # type: ignore[arg-type]
    assert cache_use(cache).partial_files == 0


def test_shared_file_stays_its_owners(cache: Cache, tmp_path: Path) -> None:
    mine = tmp_path / "model.gguf"
    mine.write_bytes(DATA)
    mine.chmod(0o640)
    seen: list[int] = []
    assert cache.share(mine, seen.append) == (SHA256, len(DATA))
    assert sum(seen) == len(DATA)
    assert mine.stat().st_mode & 0o777 == 0o640
    mine.unlink()
    assert cache.has(SHA256, len(DATA))
    assert cache.path(SHA256).read_bytes() == DATA


def test_shared_file_changed_in_place_is_noticed(cache: Cache, tmp_path: Path) -> None:
    mine = tmp_path / "model.gguf"
    mine.write_bytes(DATA)
    cache.share(mine, lambda count: None)
    with mine.open("r+b") as handle:
        handle.write(bytes([DATA[0] ^ 1]))
    os.utime(mine, ns=(1, 1))
    if cache.path(SHA256).stat().st_ino == mine.stat().st_ino:  # a hard link: other filesystems share blocks or copy
        assert not cache.has(SHA256, len(DATA))
    else:
        assert cache.has(SHA256, len(DATA), paranoid=True)
    assert mine.exists()


def test_file_that_grows_while_it_is_read_is_refused(cache: Cache, tmp_path: Path) -> None:
    mine = tmp_path / "model.gguf"
    mine.write_bytes(DATA)

    def grow(count: int) -> None:
        with mine.open("ab") as handle:
            handle.write(b"x")

    with pytest.raises(FetchError, match="changed while it was read"):
        cache.share(mine, grow)
    assert cache_use(cache).files == 0


def test_prune_keeps_what_it_is_told_and_what_is_in_use(cache: Cache) -> None:
    kept, other = cache.add_bytes(b"kept"), cache.add_bytes(b"other")
    with pytest.raises(RuntimeError), cache.partial("a" * 64, 10) as partial:
        partial.write(b"half")
        raise RuntimeError
    with pytest.raises(RuntimeError), cache.partial(SHA256, len(DATA)) as partial:
        partial.write(DATA[:5])
        would = prune(cache, {kept}, dry_run=True)
        assert (would.files, would.partial_files) == (1, 1)
        assert cache.has(other, 5)
        assert prune(cache, {kept}) == would
        raise RuntimeError
    assert cache.has(kept, 4)
    assert not cache.has(other, 5)
    assert cache.missing_bytes(SHA256, len(DATA)) == len(DATA) - 5


def test_prune_takes_what_was_learnt_of_files_that_go_and_uv_s_memory(cache: Cache) -> None:
    kept, other = cache.add_bytes(b"kept"), cache.add_bytes(b"other")
    for name in (f"1/WheelFacts-{kept}", f"1/WheelFacts-{other}", f"tensors-1/{kept}", f"tensors-1/{other}"):
        path = cache.root / "facts" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    uv = cache.root / "uv"
    (uv / "simple-v1").mkdir(parents=True)
    (uv / ".lock").touch()
    (uv / "simple-v1/page").write_bytes(b"12345")
    held = cache_use(cache)
    assert (held.derived_files, held.derived_size) == (6, 13)

    with (uv / ".lock").open("rb") as working:
        fcntl.flock(working, fcntl.LOCK_SH)  # as uv does while it works
        removed = prune(cache, {kept})
    assert (removed.files, removed.derived_files) == (1, 2)
    left = sorted(path.name for path in (cache.root / "facts").rglob("*.json"))
    assert left == [f"{kept}.json", f"WheelFacts-{kept}.json"]
    assert (uv / "simple-v1/page").exists()

    assert prune(cache, {kept}).derived_files == 2
    assert not uv.exists()
    assert cache_use(cache).derived_files == 2
