"""Models from ModelScope: the same promises as of any hub."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from airbundle.contract.spec import ModelTable
from airbundle.fetch import fetch_all
from airbundle.sources import modelscope as source_module
from airbundle_onsite.contract.record import encode
from airbundle_onsite.errors import FetchError, UsageError
from parts.hub import Fault
from parts.models import prove_model
from parts.modelscope_hub import ModelScopeHub
from parts.sources import context

WEIGHTS = "model-00001-of-00002.safetensors"


def table(source: str = "modelscope:org/tiny", **wishes: object) -> ModelTable:
    return ModelTable(source=source, served_name="tiny", **wishes)  # type: ignore[arg-type]


def environ(hub: ModelScopeHub, token: str = "") -> dict[str, str]:
    return {"MODELSCOPE_ENDPOINT": hub.url} | ({"MODELSCOPE_API_TOKEN": token} if token else {})


def test_branch_becomes_a_commit_and_files_are_fetched_by_it(
    modelscope: ModelScopeHub, tiny_model: Path, tmp_path: Path
) -> None:
    commit = modelscope.add("org/tiny", tiny_model, branch="master")
    given = context(tmp_path, environ(modelscope))
    source = source_module.create(given)
    locked = source.lock_model(table())
    assert locked.revision == commit
    assert {file.path for file in locked.files} == {path.name for path in tiny_model.iterdir()}
    for file in locked.files:
        assert file.sha256 == hashlib.sha256((tiny_model / file.path).read_bytes()).hexdigest()
    assert not [seen for seen in modelscope.requests if "lfs" in seen.path], "weights wait for the build"
    other = Path(shutil.copytree(tiny_model, tmp_path / "newer"))
    (other / "config.json").write_text("{}")
    modelscope.add("org/tiny", other, branch="master")
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    prove_model(locked, given.cache)
    for file in locked.files:
        assert given.cache.path(file.sha256).read_bytes() == (tiny_model / file.path).read_bytes()


def test_older_commit_by_its_name(modelscope: ModelScopeHub, tiny_model: Path, tmp_path: Path) -> None:
    commit = modelscope.add("org/tiny", tiny_model, branch="v1.0.0")
    source = source_module.create(context(tmp_path, environ(modelscope)))
    assert source.lock_model(table(revision="v1.0.0")).revision == commit
    assert source.lock_model(table(revision=commit)).revision == commit


def test_where_the_commit_is_not_told_each_file_is_pinned_by_the_one_that_brought_it(
    modelscope: ModelScopeHub, tiny_model: Path, tmp_path: Path
) -> None:
    modelscope.add("org/tiny", tiny_model, branch="master")
    modelscope.silent = frozenset({"commit"})
    given = context(tmp_path, environ(modelscope))
    source = source_module.create(given)
    locked = source.lock_model(table())
    assert locked.revision.startswith("sha256:")
    assert len({file.origin["revision"] for file in locked.files}) == len(locked.files)
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    prove_model(locked, given.cache)


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_one_wrong_byte_is_fetched_again(
    modelscope: ModelScopeHub, tiny_model: Path, tmp_path: Path, name: str
) -> None:
    modelscope.add("org/tiny", tiny_model, branch="master")
    modelscope.fail("org/tiny", name, Fault("wrong-byte", 20))
    given = context(tmp_path, environ(modelscope))
    source = source_module.create(given)
    locked = source.lock_model(table())
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    prove_model(locked, given.cache)


def test_always_wrong_bytes_name_the_file(modelscope: ModelScopeHub, tiny_model: Path, tmp_path: Path) -> None:
    modelscope.add("org/tiny", tiny_model, branch="master")
    modelscope.fail("org/tiny", WEIGHTS, Fault("wrong-byte", 20, times=9))
    given = context(tmp_path, environ(modelscope))
    source = source_module.create(given)
    locked = source.lock_model(table())
    with pytest.raises(FetchError) as caught:
        fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    assert WEIGHTS in "\n".join(caught.value.lines())
    assert not any(given.cache.has(file.sha256, file.size) for file in locked.files if file.path == WEIGHTS)


@pytest.mark.parametrize("fault", [Fault("drop", 3000), Fault("truncate", 3000), Fault("unavailable")])
def test_trouble_on_the_way_is_overcome(
    modelscope: ModelScopeHub, tiny_model: Path, tmp_path: Path, fault: Fault
) -> None:
    modelscope.add("org/tiny", tiny_model, branch="master")
    modelscope.fail("org/tiny", WEIGHTS, fault)
    given = context(tmp_path, environ(modelscope))
    source = source_module.create(given)
    locked = source.lock_model(table())
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    prove_model(locked, given.cache)
    if fault.kind == "drop":
        assert [seen.range for seen in modelscope.downloads(WEIGHTS)][-1] == "bytes=3000-", "resumed"


def test_restricted_model_needs_a_token_which_is_never_stored(
    modelscope: ModelScopeHub, tiny_model: Path, tmp_path: Path
) -> None:
    modelscope.add("org/tiny", tiny_model, branch="master", gated=True)
    with pytest.raises(FetchError) as without:
        source_module.create(context(tmp_path / "a", environ(modelscope))).lock_model(table())
    assert "MODELSCOPE_API_TOKEN" in without.value.remedy
    with pytest.raises(FetchError) as outsider:
        source_module.create(context(tmp_path / "b", environ(modelscope, modelscope.outsider_token))).lock_model(
            table()
        )
    assert "restricted" in outsider.value.summary and "org/tiny" in outsider.value.remedy
    given = context(tmp_path / "c", environ(modelscope, modelscope.token))
    source = source_module.create(given)
    locked = source.lock_model(table())
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    prove_model(locked, given.cache)
    assert modelscope.token.encode() not in encode(locked)
    for path in (tmp_path / "c").rglob("*"):
        assert not path.is_file() or modelscope.token.encode() not in path.read_bytes(), path


def test_patterns_and_one_copy_of_the_weights(modelscope: ModelScopeHub, tiny_model: Path, tmp_path: Path) -> None:
    full = Path(shutil.copytree(tiny_model, tmp_path / "full"))
    (full / "pytorch_model.bin").write_bytes(bytes(5000))
    modelscope.add("org/tiny", full, branch="master")
    source = source_module.create(context(tmp_path, environ(modelscope)))
    assert source.lock_model(table()).skipped == {"another copy of the weights": 5000}
    only = source.lock_model(table(allow=("*.bin", "config.json"), ignore=("README*",)))
    assert {file.path for file in only.files} == {"pytorch_model.bin", "config.json"}


def test_list_that_the_server_cuts_off_is_walked(modelscope: ModelScopeHub, tiny_model: Path, tmp_path: Path) -> None:
    deep = Path(shutil.copytree(tiny_model, tmp_path / "deep"))
    for number in range(2990):
        place = deep / f"assets{number % 3}"
        place.mkdir(exist_ok=True)
        (place / f"{number}.txt").write_text("x")
    modelscope.add("org/tiny", deep, branch="master")
    source = source_module.create(context(tmp_path, environ(modelscope)))
    locked = source.lock_model(table())
    assert sum(file.path.startswith("assets") for file in locked.files) == 2990
    assert {path.name for path in tiny_model.iterdir()} <= {file.path for file in locked.files}


def test_file_without_a_hash_is_not_trusted(modelscope: ModelScopeHub, tiny_model: Path, tmp_path: Path) -> None:
    modelscope.add("org/tiny", tiny_model, branch="master")
    modelscope.silent = frozenset({"sha256"})
    source = source_module.create(context(tmp_path, environ(modelscope)))
    with pytest.raises(FetchError, match=r"tells no hash of model-00001"):
        source.lock_model(table())
    small = source.lock_model(table(allow=("*.json",), ignore=("*index*",)))
    assert {file.path for file in small.files} >= {"config.json", "tokenizer.json"}, "proven by git's hash"


def test_names_that_are_not_there(modelscope: ModelScopeHub, tiny_model: Path, tmp_path: Path) -> None:
    modelscope.add("org/tiny", tiny_model, branch="master")
    source = source_module.create(context(tmp_path, environ(modelscope)))
    with pytest.raises(FetchError, match="no such repository"):
        source.lock_model(table("modelscope:org/other"))
    with pytest.raises(FetchError, match="no such repository or revision 'v9'"):
        source.lock_model(table(revision="v9"))
    with pytest.raises(UsageError, match="not the name of a repository"):
        source.lock_model(table("modelscope:tiny"))


def test_missing_shard_is_found_before_anything_large_is_fetched(
    modelscope: ModelScopeHub, tiny_model: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(tiny_model, tmp_path / "broken"))
    (broken / WEIGHTS).unlink()
    modelscope.add("org/tiny", broken, branch="master")
    with pytest.raises(FetchError, match="missing on the hub") as caught:
        source_module.create(context(tmp_path, environ(modelscope))).lock_model(table())
    assert caught.value.details == (f"{WEIGHTS}: missing",)


def test_header_of_a_gguf_is_known_before_the_file_is_fetched(
    modelscope: ModelScopeHub, smollm2_gguf: Path, tmp_path: Path
) -> None:
    place = tmp_path / "gguf"
    place.mkdir()
    (place / "model.gguf").symlink_to(smollm2_gguf)
    modelscope.add("org/tiny", place, branch="master")
    locked = source_module.create(context(tmp_path, environ(modelscope))).lock_model(table())
    assert (locked.quantization, locked.chat_template) == ("gguf Q4_1", True)
    assert locked.facts["block_count"] == "30"
    assert sum(seen.sent for seen in modelscope.requests) < 20_000_000


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, "https://modelscope.cn"),
        ({"MODELSCOPE_DOMAIN": "hub.example"}, "https://hub.example"),
        ({"MODELSCOPE_ENDPOINT": "http://127.0.0.1:9/", "MODELSCOPE_DOMAIN": "other"}, "http://127.0.0.1:9"),
    ],
)
def test_where_the_hub_is(variables: dict[str, str], wanted: str, tmp_path: Path) -> None:
    assert source_module.create(context(tmp_path, variables)).endpoint == wanted


def test_server_of_another_kind(tiny_model: Path, tmp_path: Path, model_hub: object) -> None:
    given = context(tmp_path, {"MODELSCOPE_ENDPOINT": model_hub.url})  # type: ignore[attr-defined]
    with pytest.raises(FetchError, match="no such repository"):
        source_module.create(given).lock_model(table())
