"""What engines fetch by themselves: the data, and whether a bundle has it."""

from __future__ import annotations

import dataclasses
from string import Formatter

import pytest
from packaging.specifiers import SpecifierSet

from airbundle import profiles
from airbundle.contract.lock import BundleLock, LockedFile, LockedModel
from airbundle.data import data_dir
from airbundle.engines.lazy import (
    LazyNeed,
    NeededFile,
    all_needs,
    environment,
    lazy_check,
    lazy_needs,
    plan_environment,
)
from airbundle.spec import load_spec
from airbundle_onsite.contract.launch import PLACEHOLDERS

FLASHINFER = next(need for need in all_needs() if need.id == "flashinfer-kernels")
HARMONY = next(need for need in all_needs() if need.id == "harmony-vocabulary")


def ids(engine: str, version: str = "0.33.0", **facts: str) -> set[str]:
    return {need.id for need in lazy_needs(engine, version, facts, {"flashinfer-python": "0.7.2", "triton": "3.6"})}


def test_every_row_says_where_it_is_known_from_and_how_to_cure_it() -> None:
    assert len({need.id for need in all_needs()}) == len(all_needs())
    for need in all_needs():
        assert need.source and need.sure and need.what and need.engines, need.id
        SpecifierSet(need.versions)
        if need.files or need.same_version or need.tools:
            assert need.remedy, need.id
        assert need.files or need.same_version or need.tools or need.env, need.id


def test_values_hold_only_placeholders_that_a_site_knows() -> None:
    for need in all_needs():
        names = {name for value in need.env.values() for _, name, _, _ in Formatter().parse(value) if name}
        assert names <= PLACEHOLDERS | ({"vocabulary"} if need.files else set()), need.id


def test_needs_by_engine_model_and_wheels() -> None:
    assert {"harmony-vocabulary", "flashinfer-kernels", "triton-compiler", "vllm-usage"} <= ids(
        "vllm", model_type="gpt_oss"
    )
    assert "harmony-vocabulary" not in ids("vllm", model_type="llama")
    assert "vllm-usage" not in ids("sglang")
    assert "remote-code" in ids("vllm", custom_code="modeling_x.py") - ids("vllm")
    assert ids("llama.cpp", model_type="gpt_oss") == set()
    assert "flashinfer-kernels" not in {need.id for need in lazy_needs("vllm", "0.33.0", {}, {})}


def test_needs_by_version() -> None:
    limited = LazyNeed("x", ("e",), "w", "s", "u", versions=">=1,<2")
    assert lazy_needs("e", "1.5rc1", {}, {}, [limited]) == (limited,)
    assert lazy_needs("e", "2.0", {}, {}, [limited]) == ()
    assert lazy_needs("e", "a tag", {}, {}, [limited]) == (limited,), "better one too many than one too few"


@pytest.mark.parametrize(
    ("wheels", "status"),
    [
        ({"flashinfer-cubin": "0.7.2.post1"}, "pass"),
        ({"flashinfer-jit-cache": "0.7.2.post1+cu130"}, "pass"),
        ({"flashinfer-cubin": "0.6.13"}, "fail"),
        ({"flashinfer-cubin": "0.6.13", "flashinfer-jit-cache": "0.7.2.post1+cu130"}, "pass"),
        ({}, "warn"),
    ],
)
def test_kernels_must_be_of_the_version_that_reads_them(wheels: dict[str, str], status: str) -> None:
    check = lazy_check(FLASHINFER, {"flashinfer-python": "0.7.2.post1", **wheels}, (), None)
    assert check.status == status
    if status != "pass":
        assert "0.7.2.post1" in check.summary and "flashinfer-jit-cache" in check.remedy
        assert check.expected == "flashinfer-cubin or flashinfer-jit-cache 0.7.2.post1"
    if status == "fail":
        assert "flashinfer-cubin 0.6.13" in check.summary


def test_files_must_be_there_by_their_hash() -> None:
    hashes = {file.sha256 for file in HARMONY.files}
    assert lazy_check(HARMONY, {}, hashes, None).status == "pass"
    check = lazy_check(HARMONY, {}, hashes - {HARMONY.files[0].sha256}, None)
    assert check.status == "fail" and "o200k_base.tiktoken not in the bundle" in check.summary
    assert "vocabulary" in check.remedy


def test_tools_where_it_is_known_what_there_is() -> None:
    need = LazyNeed("x", ("e",), "launchers", "s", "u", tools=("gcc",), remedy="r")
    assert [lazy_check(need, {}, (), tools).status for tools in (None, {"gcc"}, set[str]())] == ["skip", "pass", "warn"]


def test_environment_points_to_what_was_packed() -> None:
    needs = lazy_needs("vllm", "0.33.0", {"model_type": "gpt_oss"}, {"flashinfer-python": "1"})
    found = environment(needs, "{models}/harmony-vocabulary")
    assert found["TIKTOKEN_ENCODINGS_BASE"] == "{models}/harmony-vocabulary"
    assert (found["FLASHINFER_NO_DOWNLOAD"], found["VLLM_NO_USAGE_STATS"]) == ("1", "1")
    file = NeededFile("a", "http://h/a", "0" * 64)
    assert environment([LazyNeed("x", ("e",), "w", "s", "u", files=(file,))], "") == {}


def test_an_engine_s_plans_are_pointed_to_the_vocabulary_by_its_files() -> None:
    spec = load_spec(data_dir("manifests") / "demo-smollm2.toml")
    main = LockedModel("m", "hf:o/m", "r", "safetensors", (), facts={"model_type": "gpt_oss"})
    files = tuple(LockedFile(file.name, file.sha256, 9) for file in HARMONY.files)
    tables = LockedModel("tables", "local:t", "r", "other", files, role="vocabulary")
    lock = BundleLock(1, 0, "t", spec, "0" * 64, profiles.load("cpu-x86_64"), (main, tables))
    assert plan_environment("vllm", "0.33.0", lock)["TIKTOKEN_ENCODINGS_BASE"] == "{models}/tables"
    without = plan_environment("vllm", "0.33.0", dataclasses.replace(lock, models=(main,)))
    assert "TIKTOKEN_ENCODINGS_BASE" not in without and without["VLLM_NO_USAGE_STATS"] == "1"
    assert plan_environment("llama.cpp", "1", lock) == {}
