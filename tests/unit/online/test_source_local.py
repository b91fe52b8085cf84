"""Models from a directory: links followed where they may be, and everything else named."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from airbundle.contract.spec import ModelTable
from airbundle.fetch import fetch_all
from airbundle.sources import local
from airbundle_onsite.errors import FetchError
from parts.sources import context, forget


def table(path: str, **wishes: object) -> ModelTable:
    return ModelTable(source=f"local:{path}", served_name="tiny", **wishes)  # type: ignore[arg-type]


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def hub_cache(model: Path, root: Path) -> Path:
    """The same files as a hub client's cache has them; returns the snapshot."""
    revision = "a" * 40
    snapshot, blobs = root / "snapshots" / revision, root / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in model.iterdir():
        blob = blobs / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copyfile(file, blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    (blobs / "half.incomplete").write_bytes(b"x")
    return snapshot


def test_directory_relative_to_the_spec(model: Path, tmp_path: Path) -> None:
    given = context(tmp_path)
    locked = local.create(given).lock_model(table("./model"))
    assert {file.path for file in locked.files} == {file.name for file in model.iterdir()}
    assert locked.format == "safetensors"
    assert locked.revision.startswith("sha256:")
    assert locked.license == ""
    for file in locked.files:
        assert given.cache.path(file.sha256).read_bytes() == (model / file.path).read_bytes()
        assert str(tmp_path) not in str(file.origin)
    assert local.create(given).lock_model(table("./model")) == locked


def test_lock_is_built_again_from_the_directory(model: Path, tmp_path: Path) -> None:
    given = context(tmp_path)
    source = local.create(given)
    locked = source.lock_model(table("model"))
    victim = next(file for file in locked.files if file.path == "config.json")
    forget(given.cache, victim)
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    assert given.cache.has(victim.sha256, victim.size)
    forget(given.cache, victim)
    (model / "config.json").write_text("{}")
    with pytest.raises(FetchError) as caught:
        fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    assert "config.json in model changed since it was locked" in caught.value.details[0]
    (model / "config.json").unlink()
    with pytest.raises(FetchError) as caught:
        fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    assert "no longer in model" in caught.value.details[0]


def test_lock_outlives_its_directory(model: Path, tmp_path: Path) -> None:
    given = context(tmp_path)
    locked = local.create(given).lock_model(table("model"))
    shutil.rmtree(model)
    assert all(given.cache.has(file.sha256, file.size) for file in locked.files)


@pytest.mark.parametrize("given_as", ["snapshot", "repository"])
def test_hub_cache_links_become_files(model: Path, tmp_path: Path, given_as: str) -> None:
    snapshot = hub_cache(model, tmp_path / "models--org--tiny")
    where = snapshot if given_as == "snapshot" else snapshot.parent.parent
    given = context(tmp_path)
    locked = local.create(given).lock_model(table(str(where)))
    assert locked.revision == "a" * 40
    assert {file.path for file in locked.files} == {file.name for file in model.iterdir()}
    for file in locked.files:
        assert given.cache.path(file.sha256).is_file()
        assert not given.cache.path(file.sha256).is_symlink()
        assert given.cache.path(file.sha256).read_bytes() == (model / file.path).read_bytes()


def test_several_snapshots_need_a_name(model: Path, tmp_path: Path) -> None:
    repository = hub_cache(model, tmp_path / "models--org--tiny").parent.parent
    (repository / "snapshots" / ("b" * 40)).mkdir()
    source = local.create(context(tmp_path))
    with pytest.raises(FetchError, match="2 snapshots"):
        source.lock_model(table(str(repository)))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40 + "\n")
    assert source.lock_model(table(str(repository))).revision == "a" * 40


def test_every_bad_entry_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (model / "out.json").symlink_to("../secret")
    (model / "gone.json").symlink_to("nowhere")
    (model / "again").symlink_to(".")
    (model / "etc").symlink_to("/etc")
    os.mkfifo(model / "pipe")
    with pytest.raises(FetchError, match="5 entries") as caught:
        local.create(context(tmp_path)).lock_model(table("model"))
    assert sorted(caught.value.details) == [
        "again: a link to a directory",
        "etc: a link that leaves the directory, to /etc",
        "gone.json: a link to nothing (nowhere)",
        f"out.json: a link that leaves the directory, to {tmp_path / 'secret'}",
        "pipe: neither a file nor a directory",
    ]


def test_links_inside_the_directory_are_followed(model: Path, tmp_path: Path) -> None:
    (model / "generation_config.json").unlink()
    (model / "generation_config.json").symlink_to("config.json")
    locked = local.create(context(tmp_path)).lock_model(table("model"))
    same = {file.path: file.sha256 for file in locked.files}
    assert same["generation_config.json"] == same["config.json"]


def test_tools_debris_is_left_out_and_broken_weights_are_refused(model: Path, tmp_path: Path) -> None:
    (model / ".git").mkdir()
    (model / ".git" / "config").write_text("x")
    (model / "x.incomplete").write_text("x")
    locked = local.create(context(tmp_path)).lock_model(table("model"))
    assert locked.skipped == {"not part of the model": 2}
    (model / "model-00001-of-00002.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(FetchError) as caught:
        local.create(context(tmp_path)).lock_model(table("model"))
    assert "a pointer" in caught.value.details[0]


def test_single_file(smollm2_gguf: Path, tmp_path: Path) -> None:
    given = context(tmp_path)
    locked = local.create(given).lock_model(table(str(smollm2_gguf)))
    assert (locked.entry, locked.format) == (smollm2_gguf.name, "gguf")
    assert [file.size for file in locked.files] == [smollm2_gguf.stat().st_size]


def test_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="does not exist"):
        local.create(context(tmp_path)).lock_model(table("nowhere"))
