"""`airbundle estimate`: models by path and on a hub, text and JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from airbundle import profiles
from airbundle.cli import main
from airbundle.estimate import Wish, estimate, read_model
from airbundle.estimateview import estimate_text
from airbundle_onsite.errors import ExitCode, FetchError, UsageError
from parts.hub import ModelHub

CONFIGS = Path(__file__).resolve().parents[2] / "golden" / "configs"


def config(name: str) -> str:
    return str(CONFIGS / f"{name}.json")


def nothing(name: str) -> str | None:
    return None


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["estimate", *arguments])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_a_model_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, config("llama-3-8b"), "-p", "h200-sxm", "--engine-version", "0.24.0", "--explain")
    assert code == 0
    assert "runnable: " in text
    assert "32 full layers · 8 heads · (128 + 128) values in bf16 = 131,072 bytes a token" in text
    assert "config.json alone" in text
    assert "it would run" not in text


def test_a_model_that_does_not_fit_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, config("llama-3-70b"), "-p", "l40s", "--gpus", "2")
    assert code == ExitCode.PREFLIGHT
    assert "impossible: weights and overheads exceed the budget" in text
    assert "it would run with tensor parallel 8 (8 GPUs, 6 more than there are)" in text
    assert "a model quantised to 4 bits" in text


def test_as_few_gpus_as_suffice() -> None:
    model = read_model(config("llama-3-70b"), nothing)
    found = estimate(model, profiles.load("h100-sxm"), Wish(gpus=8, context=8192, concurrency=8))
    assert found.load.parallel.tensor == 4
    assert found.plan.verdict == "runnable"
    forced = estimate(model, profiles.load("h100-sxm"), Wish(tensor=8))
    assert forced.load.parallel.tensor == 8


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["estimate", config("gpt-oss-20b"), "-p", "l40s", "--kv-dtype", "fp8", "--context", "32768", "--json"])
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 0
    assert value["weights"]["total"] == 13761121920
    assert value["load"]["kv_dtype"] == "fp8"
    assert value["plan"]["verdict"] == "runnable"
    assert value["plan"]["kv"]["low"] < value["plan"]["kv"]["high"]
    assert value["cures"] == []


def test_directory_with_headers(tiny_model: Path) -> None:
    model = read_model(str(tiny_model), nothing)
    index = json.loads((tiny_model / "model.safetensors.index.json").read_text())
    assert model.weights.total + model.weights.skipped == index["metadata"]["total_size"]
    assert model.seen.startswith("the headers of")


def test_directory_with_a_quantisation_beside_its_configuration(tmp_path: Path) -> None:
    shutil.copy(config("qwen3-8b"), tmp_path / "config.json")
    plain = read_model(str(tmp_path), nothing)
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    packed = read_model(str(tmp_path), nothing)
    assert packed.quantised and not plain.quantised
    assert packed.weights.total < 0.5 * plain.weights.total


def test_hub_by_ranged_reads(model_hub: ModelHub, tiny_model: Path, tmp_path: Path) -> None:
    large = tmp_path / "large"
    shutil.copytree(tiny_model, large)
    model_hub.add("org/tiny", large)
    seen = read_model("hf:org/tiny", {"HF_ENDPOINT": model_hub.url}.get)
    assert seen.weights == read_model(str(tiny_model), nothing).weights
    with pytest.raises(FetchError, match="hf:org/none"):
        read_model("hf:org/none", {"HF_ENDPOINT": model_hub.url}.get)


def test_real_gguf_on_a_gpu_and_on_a_cpu(smollm2_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, str(smollm2_gguf), "-p", "rtx-4090", "--context", "2048")
    assert code == 0
    assert "with llama.cpp (newest) on rtx-4090" in text
    assert "runnable" in text
    code, text = run(capsys, str(smollm2_gguf), "-p", "cpu-x86_64", "--context", "2048")
    assert code == 0


def test_partial_offload_is_offered(smollm2_gguf: Path) -> None:
    model = read_model(str(smollm2_gguf), nothing)
    found = estimate(model, profiles.load("t4"), Wish(context=2048, concurrency=400))
    assert found.plan.verdict == "impossible"
    assert found.offload is not None
    assert 0 < found.offload.layers < found.offload.most == 31
    assert "--gpu-layers" in estimate_text(found)


@pytest.mark.parametrize(
    ("name", "profile", "wish", "said"),
    [
        ("llama-3-8b", "h100-sxm", Wish(engine="llama.cpp"), "llama.cpp does not serve"),
        ("llama-3-8b", "cpu-x86_64", Wish(), "on a CPU is not planned"),
        ("llama-3-8b", "h100-sxm", Wish(context=9000), "made for 8192"),
        ("llama-3-8b", "h100-sxm", Wish(tensor=3), "cannot be spread over 3"),
        ("llama-3-8b", "h100-sxm", Wish(drafted=2), "predict tokens ahead"),
    ],
)
def test_refused_by_name(name: str, profile: str, wish: Wish, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        estimate(read_model(config(name), nothing), profiles.load(profile), wish)


def test_what_is_not_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_model(str(tmp_path / "missing"), nothing)
    with pytest.raises(UsageError, match=r"neither config\.json nor GGUF"):
        read_model(str(tmp_path), nothing)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="not a JSON file"):
        read_model(str(tmp_path), nothing)
    (tmp_path / "x.gguf").write_bytes(b"GGUX")
    with pytest.raises(UsageError, match=r"x\.gguf"):
        read_model(str(tmp_path / "x.gguf"), nothing)


def test_draft_model_and_adapters_take_their_part() -> None:
    model, small = read_model(config("llama-3-70b"), nothing), read_model(config("llama-3-8b"), nothing)
    profile = profiles.load("h100-sxm")
    alone = estimate(model, profile, Wish(tensor=4))
    drafted = estimate(model, profile, Wish(tensor=4), small)
    assert drafted.plan.weights - alone.plan.weights == pytest.approx(small.weights.total / 4, rel=0.01)
    assert drafted.plan.token == alone.plan.token + 32 * 2 * 256 * 2


def test_what_a_short_configuration_leaves_open_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    given = {"hidden_size": 2048, "num_hidden_layers": 16, "vocab_size": 32000, "num_attention_heads": 16}
    path.write_text(json.dumps(given))
    text = run(capsys, str(path), "-p", "h200-sxm")[1]
    taken = (
        "num_key_value_heads 16",
        "max_position_embeddings unlimited",
        "intermediate_size 8192",
        "torch_dtype bfloat16",
        "tie_word_embeddings false",
    )
    assert f"config.json does not say: {', '.join(taken)}" in text
    assert json.loads(run(capsys, str(path), "-p", "h200-sxm", "--json")[1])["assumed"] == list(taken)
    path.write_text(json.dumps({**given, "intermediate_size": 4096, "torch_dtype": "float16"}))
    assert read_model(str(path), nothing).assumed == (taken[0], taken[1], taken[4])


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "nemotron-super-49b", "jamba-1.5-mini", "qwen3.5-27b"])
def test_nothing_is_assumed_of_a_whole_configuration(name: str) -> None:
    assert read_model(config(name), nothing).assumed == ()


def test_a_cache_without_any_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hidden_size": 2048, "num_hidden_layers": 16, "vocab_size": 32000}))
    with pytest.raises(UsageError, match="num_attention_heads is missing"):
        read_model(str(path), nothing)


def test_a_local_source_as_specs_name_it(tiny_model: Path) -> None:
    named, plain = read_model(f"local:{tiny_model}", nothing), read_model(str(tiny_model), nothing)
    assert (named.weights, named.shape, named.seen) == (plain.weights, plain.shape, plain.seen)
    with pytest.raises(UsageError, match="no such file or directory"):
        read_model("local:/nowhere", nothing)
