"""Models from a hub, through its real client."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from airbundle.contract.spec import ModelTable
from airbundle.fetch import fetch_all
from airbundle.sources import hf, hub
from airbundle_onsite.contract.record import encode
from airbundle_onsite.errors import FetchError, UsageError
from parts.hub import Fault, ModelHub
from parts.models import prove_model
from parts.sources import context

WEIGHTS = "model-00001-of-00002.safetensors"


def table(source: str = "hf:org/tiny", **wishes: object) -> ModelTable:
    return ModelTable(source=source, served_name="tiny", **wishes)  # type: ignore[arg-type]


def environ(hub: ModelHub, token: str = "") -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url} | ({"HF_TOKEN": token} if token else {})


def test_branch_becomes_a_commit_and_files_are_fetched_by_it(
    model_hub: ModelHub, tiny_model: Path, tmp_path: Path
) -> None:
    commit = model_hub.add("org/tiny", tiny_model)
    given = context(tmp_path, environ(model_hub))
    source = hf.create(given)
    locked = source.lock_model(table())
    assert locked.revision == commit
    assert locked.format == "safetensors"
    assert {file.path for file in locked.files} == {path.name for path in tiny_model.iterdir()}
    for file in locked.files:
        assert file.sha256 == hashlib.sha256((tiny_model / file.path).read_bytes()).hexdigest()
    assert model_hub.downloads(WEIGHTS) == []
    other = Path(shutil.copytree(tiny_model, tmp_path / "newer"))
    (other / "config.json").write_text("{}")
    model_hub.add("org/tiny", other)
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    prove_model(locked, given.cache)
    for file in locked.files:
        assert given.cache.path(file.sha256).read_bytes() == (tiny_model / file.path).read_bytes()
    count = len(model_hub.requests)
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    assert len(model_hub.requests) == count


def test_older_commit_by_its_name(model_hub: ModelHub, tiny_model: Path, tmp_path: Path) -> None:
    commit = model_hub.add("org/tiny", tiny_model, branch="old")
    source = hf.create(context(tmp_path, environ(model_hub)))
    assert source.lock_model(table(revision="old")).revision == commit
    assert source.lock_model(table(revision=commit)).revision == commit


def test_one_copy_of_the_weights(model_hub: ModelHub, tiny_model: Path, tmp_path: Path) -> None:
    full = Path(shutil.copytree(tiny_model, tmp_path / "full"))
    (full / "pytorch_model.bin").write_bytes(bytes(5000))
    model_hub.add("org/tiny", full)
    locked = hf.create(context(tmp_path, environ(model_hub))).lock_model(table())
    assert locked.skipped == {"another copy of the weights": 5000}
    assert "pytorch_model.bin" not in {file.path for file in locked.files}


def test_one_wrong_byte_is_fetched_again(model_hub: ModelHub, tiny_model: Path, tmp_path: Path) -> None:
    model_hub.add("org/tiny", tiny_model)
    for name in (WEIGHTS, "config.json"):
        model_hub.fail("org/tiny", name, Fault("wrong-byte", 20))
    given = context(tmp_path, environ(model_hub))
    source = hf.create(given)
    locked = source.lock_model(table())
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    assert len(model_hub.downloads(WEIGHTS)) == 2
    assert len(model_hub.downloads("/config.json")) == 2


def test_always_wrong_bytes_name_the_file(model_hub: ModelHub, tiny_model: Path, tmp_path: Path) -> None:
    model_hub.add("org/tiny", tiny_model)
    model_hub.fail("org/tiny", WEIGHTS, Fault("wrong-byte", 20, times=9))
    given = context(tmp_path, environ(model_hub))
    source = hf.create(given)
    locked = source.lock_model(table())
    with pytest.raises(FetchError) as caught:
        fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    (detail,) = caught.value.details
    assert WEIGHTS in detail and "wrong bytes, twice" in detail and model_hub.url in detail
    model_hub.fail("org/tiny", "config.json", Fault("wrong-byte", 0, times=9))
    with pytest.raises(FetchError, match=r"config\.json from .*: wrong bytes, twice"):
        source.lock_model(table())


@pytest.mark.parametrize("fault", [Fault("drop", 7000), Fault("truncate", 7000), Fault("unavailable")])
def test_trouble_on_the_way_is_overcome(model_hub: ModelHub, tiny_model: Path, tmp_path: Path, fault: Fault) -> None:
    model_hub.add("org/tiny", tiny_model)
    given = context(tmp_path, environ(model_hub))
    source = hf.create(given)
    locked = source.lock_model(table())
    model_hub.fail("org/tiny", WEIGHTS, fault)
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    prove_model(locked, given.cache)


def test_gated_model(model_hub: ModelHub, tiny_model: Path, tmp_path: Path) -> None:
    model_hub.add("org/tiny", tiny_model, gated=True)
    with pytest.raises(FetchError, match=r"hf:org/tiny is restricted") as caught:
        hf.create(context(tmp_path, environ(model_hub))).lock_model(table())
    assert "HF_TOKEN" in caught.value.remedy
    with pytest.raises(FetchError, match=r"hf:org/tiny is restricted") as caught:
        hf.create(context(tmp_path, environ(model_hub, model_hub.outsider_token))).lock_model(table())
    assert "accept the licence" in caught.value.remedy
    given = context(tmp_path, environ(model_hub, model_hub.token))
    source = hf.create(given)
    locked = source.lock_model(table())
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    assert model_hub.token.encode() not in encode(locked)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) > 3 and not [path for path in kept if model_hub.token.encode() in path.read_bytes()]


def test_names_that_are_not_there(model_hub: ModelHub, tiny_model: Path, tmp_path: Path) -> None:
    model_hub.add("org/tiny", tiny_model)
    source = hf.create(context(tmp_path, environ(model_hub)))
    with pytest.raises(FetchError, match=r"org/absent.*not found, or private"):
        source.lock_model(table("hf:org/absent"))
    with pytest.raises(FetchError, match="no revision 'v9'"):
        source.lock_model(table(revision="v9"))
    with pytest.raises(UsageError, match="hf:a/b/c"):
        source.lock_model(table("hf:a/b/c"))
    with pytest.raises(FetchError, match=r"token is not accepted|HTTP 401|not found") as caught:
        hf.create(context(tmp_path, environ(model_hub, "hf_" + "z" * 34))).lock_model(table())
    assert "zzzz" not in "\n".join(caught.value.lines())


def test_hub_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="connection refused") as caught:
        hf.create(context(tmp_path, {"HF_ENDPOINT": "http://127.0.0.1:9"})).lock_model(table())
    assert "HF_ENDPOINT" in caught.value.remedy


def test_missing_shard_is_found_before_anything_large_is_fetched(
    model_hub: ModelHub, tiny_model: Path, tmp_path: Path
) -> None:
    short = Path(shutil.copytree(tiny_model, tmp_path / "short"))
    (short / WEIGHTS).unlink()
    model_hub.add("org/tiny", short)
    with pytest.raises(FetchError) as caught:
        hf.create(context(tmp_path, environ(model_hub))).lock_model(table())
    assert caught.value.details == (f"{WEIGHTS}: missing",)


def test_git_hash() -> None:
    assert hub.git_hash(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert hub.git_hash(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_pointer_on_the_hub_is_found_by_the_proof(model_hub: ModelHub, tiny_model: Path, tmp_path: Path) -> None:
    bad = Path(shutil.copytree(tiny_model, tmp_path / "bad"))
    (bad / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    model_hub.add("org/tiny", bad)
    given = context(tmp_path, environ(model_hub))
    source = hf.create(given)
    locked = source.lock_model(table())
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    with pytest.raises(FetchError) as caught:
        prove_model(locked, given.cache)
    assert f"{WEIGHTS}: a pointer" in caught.value.details[0]
