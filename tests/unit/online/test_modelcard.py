"""What a model's own files say, and what must not be missing."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from airbundle.contract.lock import LockedFile, LockedModel
from airbundle.modelcard import Card, package_names, read_card
from airbundle.modelchecks import Use, model_checks, report, stored_checks
from airbundle.weights import stored_types
from airbundle_onsite.errors import FetchError
from parts.gguf import gguf, language_model
from parts.sources import Heard


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def card_of(directory: Path, entry: str = "") -> Card:
    files = {path.name: path for path in directory.iterdir() if path.is_file()}
    return read_card(files, files, entry)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def found(card: Card, use: Use | None = None, **changes: object) -> dict[str, str]:
    """Status by check, for a model of this card."""
    made = LockedModel("m", "local:m", "r", "safetensors", (), **changes)  # type: ignore[arg-type]
    checks = model_checks(card, made, use or Use("vllm"))
    return {check.id.removeprefix("model."): check.status for check in checks}


def test_a_whole_model(model: Path) -> None:
    edit(model / "tokenizer_config.json", chat_template="{{ messages }}")
    card = card_of(model)
    assert (card.tokenizer, card.chat_template, card.generation_config) == (
        "tokenizer.json",
        "tokenizer_config.json",
        True,
    )
    assert (card.quantization, card.code, card.unlisted) == ("", (), ())
    config = json.loads(card.facts["config"])
    assert (config["num_key_value_heads"], config["max_position_embeddings"]) == (4, 256)
    assert {key: value for key, value in card.facts.items() if key != "config"} == {
        "model_type": "llama",
        "architectures": "LlamaForCausalLM",
        "dtype": "float16",
        "hidden_size": "32",
        "num_hidden_layers": "2",
        "vocab_size": "10",
    }
    assert set(found(card).values()) == {"pass"}


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("chat_template.jinja", "{{ messages }}", "chat_template.jinja"),
        ("chat_template.json", '{"chat_template": "x"}', "chat_template.json"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default", "template": "x"}]}', "tokenizer_config.json"),
        ("tokenizer_config.json", '{"chat_template": null}', ""),
        ("tokenizer_config.json", "{}", ""),
    ],
)
def test_where_chat_templates_are(model: Path, name: str, text: str, where: str) -> None:
    (model / name).write_text(text)
    assert card_of(model).chat_template == where


def test_no_chat_template_fails_where_the_engine_would_answer_with_an_error(model: Path) -> None:
    card = card_of(model)
    assert found(card)["chat-template"] == "fail"
    assert found(card, Use("llama.cpp"))["chat-template"] == "warn"
    assert found(card, Use("vllm", frozenset({"chat-template"})))["chat-template"] == "pass"
    assert found(dataclasses.replace(card, facts={"model_type": "deepseek_v32"}))["chat-template"] == "pass"
    mistral = read_card(["params.json", "tekken.json", "consolidated.safetensors"], {})
    assert (mistral.chat_template, mistral.tokenizer, mistral.config) == ("mistral-common", "tekken.json", True)
    assert "chat-template" not in found(card, role="draft"), "nobody talks to a draft model"


def test_what_is_missing_is_named(model: Path) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        (model / name).unlink()
    statuses = found(card_of(model))
    assert (statuses["config"], statuses["tokenizer"], statuses["generation-config"]) == ("fail", "fail", "warn")
    talk = Heard()
    checks = model_checks(card_of(model), LockedModel("m", "local:m", "r", "safetensors", ()), Use("vllm"))
    with pytest.raises(FetchError, match="local:m: 3 things") as caught:
        report("local:m", checks, talk)
    text = "\n".join(caught.value.details)
    assert all(word in text for word in ("no config.json", "no tokenizer", "no chat template"))
    assert talk.said == [
        "local:m: it has no generation_config.json: the engine's own sampling and stop tokens apply "
        "(take the one of the model it was made from)"
    ]
    assert found(card_of(model), Use("vllm", frozenset({"tokenizer"})))["tokenizer"] == "pass"


def test_nothing_but_descriptions_is_no_model(model: Path) -> None:
    card = card_of(model)
    made = LockedModel("m", "local:m", "r", "other", (), skipped={"not part of the model": 5})
    checks = {check.id: check for check in model_checks(card, made, Use("vllm"))}
    assert checks["model.weights"].status == "fail"
    assert checks["model.weights"].evidence == ("left out: not part of the model",)
    assert "model.weights" not in {check.id for check in model_checks(card, made, Use("vllm", chosen=True))}


def test_unlisted_weights_and_pickles_are_told(model: Path) -> None:
    shutil.copy(model / "model-00001-of-00002.safetensors", model / "extra.safetensors")
    card = card_of(model)
    assert card.unlisted == ("extra.safetensors",)
    assert found(card)["unlisted"] == "warn"
    made = LockedModel("m", "local:m", "r", "pytorch", (LockedFile("pytorch_model.bin", "0" * 64, 1),))
    assert "warn" in {check.status for check in model_checks(card, made, Use("vllm")) if check.id == "model.pickle"}


def test_unknown_quantisation_is_told(model: Path) -> None:
    edit(model / "config.json", quantization_config={"quant_method": "brand-new"})
    card = card_of(model)
    assert (card.quantization, found(card)["quantization"]) == ("brand-new", "warn")


def test_code_is_a_decision(model: Path) -> None:
    edit(model / "config.json", auto_map={"AutoModelForCausalLM": "modeling_x.X"})
    (model / "modeling_x.py").write_text("import torch\nimport einops\nfrom .configuration_x import C\n")
    (model / "configuration_x.py").write_text("import json\n")
    card = card_of(model)
    assert [each.module for each in card.code] == ["modeling_x.py"]
    assert package_names(card) == ("einops", "torch")
    assert [found(card, Use("vllm", trust=trust))["custom-code"] for trust in (None, False, True)] == [
        "fail",
        "warn",
        "pass",
    ]


def test_gguf(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(language_model())
    card = card_of(tmp_path, "m.gguf")
    assert (card.quantization, card.tokenizer, card.chat_template) == ("gguf Q4_K_M", "GGUF", "GGUF")
    assert card.facts["embedding_length"] == "16" and card.facts["vocabulary"] == "8"
    (tmp_path / "bare.gguf").write_bytes(gguf({"general.architecture": "llama"}))
    bare = card_of(tmp_path, "bare.gguf")
    assert (bare.tokenizer, bare.chat_template) == ("", "")


def test_json_that_is_none_is_named(model: Path) -> None:
    (model / "config.json").write_text("{")
    with pytest.raises(FetchError, match=r"config\.json: not JSON"):
        card_of(model)


@pytest.mark.parametrize(
    ("method", "types", "words"),
    [
        ("", {"BF16": 10}, ""),
        ("", {"BF16": 10, "F8_E4M3": 90}, "stored as F8_E4M3 in the main"),
        ("fp8 e4m3", {"BF16": 10, "F8_E4M3": 90}, ""),
        ("awq int4 g128", {"F16": 10, "I32": 90}, ""),
        ("awq int4 g128", {"F16": 10}, "every tensor is plain"),
        ("bitsandbytes int8", {"BF16": 10}, ""),
        ("", {}, ""),
    ],
)
def test_weights_that_are_stored_otherwise_than_their_configuration_says(
    method: str, types: dict[str, int], words: str
) -> None:
    checks = stored_checks(Card((), quantization=method), types)
    assert [check.status for check in checks] == (["warn"] if words else [])
    assert all(words in check.summary for check in checks)


def test_types_of_real_tensors(model: Path) -> None:
    files = {path.name: path for path in model.iterdir()}
    size = sum(path.stat().st_size for name, path in files.items() if name.endswith(".safetensors"))
    types = stored_types(files)
    assert list(types) == ["F16"] and size * 0.9 < types["F16"] < size
