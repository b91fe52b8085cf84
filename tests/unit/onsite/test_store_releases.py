"""The release store, without any engine: files, links, modes, and what must never happen to a path."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from airbundle_onsite.contract.layout import StoreLayout
from airbundle_onsite.contract.payload import FileEntry, Segment
from airbundle_onsite.contract.release import ReleaseRecord
from airbundle_onsite.errors import BusyError, IntegrityError, UsageError
from airbundle_onsite.store import disk
from airbundle_onsite.store.lock import Lock
from airbundle_onsite.store.releases import Staging, Store
from airbundle_onsite.verify.bundle import TrustedManifest, trust
from parts.bundles import make_bundle

WEIGHTS = b"GGUF" + bytes(5000)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(StoreLayout(str(tmp_path / "root")))


def _bundle(folder: Path, version: str = "1", weights: bytes = WEIGHTS) -> TrustedManifest:
    files = {"wheels/requirements.txt": b"", "models/demo/model.gguf": weights, "config/a/b.txt": version.encode()}
    return trust(make_bundle(folder / f"bundle-{version}", files, version=version))


def _content(trusted: TrustedManifest) -> Iterator[tuple[FileEntry, bytes]]:
    data = b"".join((trusted.directory / part.name).read_bytes() for part in trusted.manifest.payload.parts)
    for entry in trusted.manifest.files:
        start = entry.segments[0].offset if entry.segments else 0
        yield entry, data[start : start + entry.size]


def _fill(staging: Staging, trusted: TrustedManifest) -> None:
    for entry, data in _content(trusted):
        staging.add(entry, [data[:7], data[7:]])


def _record(trusted: TrustedManifest) -> ReleaseRecord:
    made = trusted.manifest
    return ReleaseRecord(made.name, made.version, made.sequence, trusted.sha256, 1, "cpu", "venv", "127.0.0.1", 8000)


def _install(store: Store, trusted: TrustedManifest, *, rewrite: bool = False) -> None:
    staging = store.stage(trusted, rewrite=rewrite)
    _fill(staging, trusted)
    staging.commit(_record(trusted))


def test_a_release_is_there_whole_or_not_at_all(store: Store, tmp_path: Path) -> None:
    trusted = _bundle(tmp_path)
    staging = store.stage(trusted)
    _fill(staging, trusted)
    assert store.bundles() == []
    release = staging.commit(_record(trusted))
    assert store.bundles() == ["demo"]
    loaded = store.load("demo", "1")
    assert (loaded.manifest, loaded.record) == (trusted.manifest, release.record)
    assert store.missing_files(loaded) == []
    assert {entry.path: (loaded.directory / entry.path).read_bytes() for entry, _ in _content(trusted)} == {
        entry.path: data for entry, data in _content(trusted)
    }
    assert list(store.layout.staging.iterdir()) == []


def test_a_listed_file_that_never_came_is_named(store: Store, tmp_path: Path) -> None:
    trusted = _bundle(tmp_path)
    staging = store.stage(trusted)
    for entry, data in list(_content(trusted))[:-1]:
        staging.add(entry, [data])
    with pytest.raises(IntegrityError) as caught:
        staging.commit(_record(trusted))
    assert caught.value.details == ("config/a/b.txt",)
    assert store.bundles() == []


def test_a_file_of_the_wrong_length_leaves_nothing(store: Store, tmp_path: Path) -> None:
    trusted = _bundle(tmp_path)
    staging = store.stage(trusted)
    entry = trusted.manifest.files[1]
    with pytest.raises(IntegrityError, match="are listed"):
        staging.add(entry, [b"short"])
    assert [path for path in staging.directory.rglob("*") if path.is_file()] == []


def test_a_stream_that_breaks_leaves_no_half_file(store: Store, tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"begin"
        raise IntegrityError("the stick was pulled out")

    staging = store.stage(_bundle(tmp_path))
    with pytest.raises(IntegrityError, match="pulled out"):
        staging.add(staging.manifest.files[1], broken())
    assert [path for path in staging.directory.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("path", ["release.json", "bundle.json", "images/x", "venv/bin/python", "models"])
def test_only_places_of_the_payload_are_written(store: Store, tmp_path: Path, path: str) -> None:
    staging = store.stage(_bundle(tmp_path))
    entry = FileEntry(path, "config", 1, sha256(b"x").hexdigest(), (Segment(1, 0),))
    with pytest.raises(IntegrityError, match="no place"):
        staging.add(entry, [b"x"])


def test_a_link_planted_in_the_store_is_not_followed(store: Store, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    store.layout.base.mkdir()
    store.layout.staging.symlink_to(elsewhere)
    with pytest.raises(IntegrityError, match="staging"):
        store.stage(_bundle(tmp_path))
    assert list(elsewhere.iterdir()) == []


def test_removing_a_release_does_not_follow_links_in_it(store: Store, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    _install(store, _bundle(tmp_path))
    (store.layout.release("demo", "1") / "link").symlink_to(precious)
    store.remove("demo", "1")
    assert (precious / "file").read_text() == "mine"
    assert not store.layout.release("demo", "1").exists()


def test_weights_are_shared_and_go_with_their_last_release(store: Store, tmp_path: Path) -> None:
    first, second = _bundle(tmp_path, "1"), _bundle(tmp_path, "2")
    _install(store, first)
    assert store.bytes_present(second.manifest) == len(WEIGHTS)
    _install(store, second)
    stored = store.layout.weight(sha256(WEIGHTS).hexdigest())
    assert stored.stat().st_nlink == 3
    store.remove("demo", "1")
    assert stored.stat().st_nlink == 2
    store.remove("demo", "2")
    assert list(store.layout.weights.iterdir()) == []


def test_weights_touched_since_they_were_verified_are_written_anew(store: Store, tmp_path: Path) -> None:
    _install(store, _bundle(tmp_path, "1"))
    stored = store.layout.weight(sha256(WEIGHTS).hexdigest())
    stored.chmod(0o644)
    with stored.open("r+b") as file:
        file.write(b"EVIL")
    os.utime(stored, (1, 1))
    second = _bundle(tmp_path, "2")
    assert store.bytes_present(second.manifest) == 0
    _install(store, second)
    assert (store.layout.release("demo", "2") / "models/demo/model.gguf").read_bytes() == WEIGHTS
    assert store.bytes_present(second.manifest) == len(WEIGHTS)


def test_a_stream_is_consumed_even_when_the_weights_are_here(store: Store, tmp_path: Path) -> None:
    _install(store, _bundle(tmp_path, "1"))
    second = _bundle(tmp_path, "2")
    taken: list[bytes] = []

    def chunks(data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), 1000):
            taken.append(data[start : start + 1000])
            yield taken[-1]

    staging = store.stage(second)
    entry, data = next((entry, data) for entry, data in _content(second) if entry.role == "model")
    staging.add(entry, chunks(data))
    assert b"".join(taken) == WEIGHTS


def test_modes_do_not_depend_on_the_umask(store: Store, tmp_path: Path) -> None:
    trusted = _bundle(tmp_path)
    before = os.umask(0o077)
    try:
        _install(store, trusted)
        store.activate("demo", "1")
    finally:
        os.umask(before)
    for path in store.layout.release("demo", "1").rglob("*"):
        assert path.stat().st_mode & 0o777 in ((0o755,) if path.is_dir() else (0o644, 0o444)), path


def test_current_is_replaced_and_only_names_whole_releases(store: Store, tmp_path: Path) -> None:
    for version in ("1", "2"):
        _install(store, _bundle(tmp_path, version))
    assert store.active("demo") is None
    for version in ("1", "2", "1"):
        store.activate("demo", version)
        assert store.active("demo") == version
        assert (store.layout.current("demo") / "config/a/b.txt").read_text() == version
    store.layout.record("demo", "1").unlink()
    assert store.active("demo") is None


def test_an_edited_manifest_is_noticed(store: Store, tmp_path: Path) -> None:
    _install(store, _bundle(tmp_path))
    path = store.layout.manifest("demo", "1")
    path.write_bytes(path.read_bytes().replace(b'"venv"', b'"Venv"'))
    with pytest.raises(IntegrityError, match=r"bundle\.json"):
        store.load("demo", "1")


@pytest.mark.parametrize("version", ["../../etc", "current", ".replaced-1", "9"])
def test_only_installed_versions_can_be_loaded(store: Store, tmp_path: Path, version: str) -> None:
    _install(store, _bundle(tmp_path))
    store.activate("demo", "1")
    with pytest.raises(UsageError):
        store.load("demo", version)


def test_the_highest_sequence_outlives_its_release(store: Store, tmp_path: Path) -> None:
    old, new = _bundle(tmp_path, "1"), _bundle(tmp_path, "2")
    _install(store, replace(old, manifest=replace(old.manifest, sequence=3)))
    staging = store.stage(new)
    _fill(staging, new)
    staging.commit(replace(_record(new), sequence=7))
    store.remove("demo", "2")
    assert store.highest_sequence("demo") == 7
    assert store.highest_sequence("other") == -1


def test_what_was_put_aside_comes_back(store: Store, tmp_path: Path) -> None:
    trusted = _bundle(tmp_path)
    _install(store, trusted)
    marker = store.layout.release("demo", "1") / "venv"
    marker.mkdir()
    staging = store.stage(trusted, rewrite=True)
    _fill(staging, trusted)
    staging.commit(_record(trusted), aside=True)
    assert not marker.exists()
    assert store.restore_aside("demo", "1")
    assert marker.exists()
    assert not store.restore_aside("demo", "1")


def test_the_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from airbundle_onsite.store.lock import Lock\n"
        "Lock(Path(sys.argv[1])).__enter__(); print('held', flush=True); time.sleep(60)"
    )
    path = tmp_path / "root" / "lock"
    holder = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(BusyError) as caught, Lock(path):
            pass
        assert caught.value.pid == holder.pid
        assert str(holder.pid) in caught.value.summary
    finally:
        holder.kill()
        holder.communicate()
    with Lock(path):
        assert path.read_text() == f"{os.getpid()}\n"
    assert path.read_text() == ""


def test_a_disk_that_fails_behind_the_writer_is_an_error_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No disk here fails on request, so that its answer is put in its place."""

    def failing(descriptor: int) -> None:
        assert os.fstat(descriptor).st_size >= 8
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, "_FLUSH", 8)
    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(OSError, match="Input/output error"):
        disk.write_new(tmp_path / "file", [bytes(8)], 0o644)
    assert list(tmp_path.iterdir()) == []
    assert disk.write_new(tmp_path / "small", [bytes(7)], 0o644) == 7
