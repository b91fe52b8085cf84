"""Adapters, draft models and projectors, held against the model they stand beside."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

from airbundle.beside import Given, adapter_facts, beside_checks
from airbundle.contract.lock import LockedFile, LockedModel
from airbundle.modelcard import read_card
from airbundle_onsite.contract.artifacts import ModelRole
from parts.gguf import gguf, language_model, write_adapter

NAME = "base_model.model.model.layers.{layer}.self_attn.{matrix}.lora_{half}.weight"


def write_lora(directory: Path, *, width: int = 32, rank: int = 4, layers: int = 2, **config: object) -> Path:
    directory.mkdir()
    tensors = {}
    for layer in range(layers):
        for matrix in ("q_proj", "v_proj"):
            tensors[NAME.format(layer=layer, matrix=matrix, half="A")] = numpy.zeros((rank, width), numpy.float32)
            tensors[NAME.format(layer=layer, matrix=matrix, half="B")] = numpy.zeros((width, rank), numpy.float32)
    save_file(tensors, directory / "adapter_model.safetensors")
    plain = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["v_proj", "q_proj"]}
    plain |= {"base_model_name_or_path": "org/model", **config}
    (directory / "adapter_config.json").write_text(json.dumps(plain))
    return directory


def given(directory: Path, role: ModelRole = "model", entry: str = "", source: str = "hf:org/model") -> Given:
    files = {path.name: path for path in directory.iterdir()}
    locked = tuple(LockedFile(name, "0" * 64, path.stat().st_size) for name, path in sorted(files.items()))
    card = read_card(files, files, entry)
    made = LockedModel(
        "m",
        source,
        "r",
        "gguf" if entry else "safetensors",
        locked,
        entry=entry,
        role=role,
        facts=card.facts,
        quantization=card.quantization,
    )
    return Given(made, files)


def said(main: Given, extra: Given) -> list[tuple[str, str]]:
    return [(check.status, check.summary) for check in beside_checks(main, extra)]


def test_adapter_that_fits(tiny_model: Path, tmp_path: Path) -> None:
    lora = write_lora(tmp_path / "lora")
    assert said(given(tiny_model), given(lora, "adapter")) == [("pass", "it changes 4 matrices with rank 4")]
    assert adapter_facts({path.name: path for path in lora.iterdir()}) == {
        "rank": "4",
        "targets": "q_proj,v_proj",
        "base_model": "org/model",
    }


def test_adapter_of_another_model_by_name_warns_and_by_shape_fails(tiny_model: Path, tmp_path: Path) -> None:
    named = write_lora(tmp_path / "named", base_model_name_or_path="/home/me/Other-7B")
    ((status, summary), *_) = said(given(tiny_model), given(named, "adapter"))
    assert status == "warn" and "/home/me/Other-7B" in summary and "hf:org/model" in summary
    same = write_lora(tmp_path / "same", base_model_name_or_path="/models/Model/")
    assert [status for status, _ in said(given(tiny_model), given(same, "adapter"))] == ["pass"]
    wide = write_lora(tmp_path / "wide", width=64)
    (failed,) = beside_checks(given(tiny_model), given(wide, "adapter"))
    assert (failed.status, failed.summary) == ("fail", "it was trained for another model")
    assert failed.evidence[0] == "model.layers.0.self_attn.q_proj is 32 x 32, the adapter's 64 x 64"


def test_adapter_whose_parts_disagree(tiny_model: Path, tmp_path: Path) -> None:
    ranks = write_lora(tmp_path / "ranks", rank=8)
    (failed,) = beside_checks(given(tiny_model), given(ranks, "adapter"))
    assert failed.status == "fail" and "rank 8 and 8, its configuration says 4" in failed.evidence[0]
    patterned = write_lora(tmp_path / "patterned", rank=8, rank_pattern={"q_proj": 8})
    assert said(given(tiny_model), given(patterned, "adapter"))[0][0] == "pass"


@pytest.mark.parametrize(
    ("config", "status", "words"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "fail", "PREFIX_TUNING"),
        ({"use_dora": True}, "warn", "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "warn", "whole modules"),
    ],
)
def test_kinds_of_adapters(
    tiny_model: Path, tmp_path: Path, config: dict[str, object], status: str, words: str
) -> None:
    lora = write_lora(tmp_path / "lora", **config)
    assert any(found == status and words in text for found, text in said(given(tiny_model), given(lora, "adapter")))


def test_what_is_no_adapter(tiny_model: Path, tmp_path: Path) -> None:
    assert said(given(tiny_model), given(tiny_model, "adapter")) == [
        ("fail", "it has no adapter_config.json, so it is no LoRA adapter")
    ]
    empty = write_lora(tmp_path / "empty", layers=0)
    assert said(given(tiny_model), given(empty, "adapter"))[0] == ("fail", "its weights hold no LoRA matrices")
    (empty / "adapter_model.safetensors").unlink()
    assert ("fail", "it has no adapter_model.safetensors") in said(given(tiny_model), given(empty, "adapter"))


def test_matrices_that_the_model_lacks_warn_unless_it_is_quantised(tiny_model: Path, tmp_path: Path) -> None:
    lora = write_lora(tmp_path / "lora", layers=0)
    strange = {
        f"base_model.model.other.{half}": shape
        for half, shape in (("lora_A.weight", (4, 8)), ("lora_B.weight", (8, 4)))
    }
    save_file(
        {name: numpy.zeros(shape, numpy.float32) for name, shape in strange.items()}, lora / "adapter_model.safetensors"
    )
    ((status, summary),) = said(given(tiny_model), given(lora, "adapter"))
    assert status == "warn" and "none of the matrices" in summary
    main = given(tiny_model)
    packed = Given(dataclasses.replace(main.model, quantization="awq int4 g128"), main.files)
    assert said(packed, given(lora, "adapter"))[0][0] == "pass"


def test_gguf_adapters(tmp_path: Path) -> None:
    main, lora = tmp_path / "main", tmp_path / "lora"
    main.mkdir()
    lora.mkdir()
    (main / "m.gguf").write_bytes(language_model())
    write_adapter(lora / "a.gguf", width=16)
    model = given(main, entry="m.gguf")
    assert said(model, given(lora, "adapter", "a.gguf")) == [("pass", "a LoRA adapter for llama")]
    write_adapter(lora / "a.gguf", width=16, architecture="qwen2")
    assert said(model, given(lora, "adapter", "a.gguf")) == [("fail", "it was trained for qwen2, the model is llama")]
    assert said(model, given(main, "adapter", "m.gguf")) == [("fail", "this GGUF file is no LoRA adapter")]


@pytest.mark.parametrize(("entries", "statuses"), [(8, []), (100, ["warn"]), (500, ["fail"])])
def test_draft_models_share_the_vocabulary(tmp_path: Path, entries: int, statuses: list[str]) -> None:
    main, small = tmp_path / "main", tmp_path / "small"
    main.mkdir()
    small.mkdir()
    (main / "m.gguf").write_bytes(language_model(width=4096))
    (small / "d.gguf").write_bytes(language_model(vocabulary=entries))
    assert [status for status, _ in said(given(main, entry="m.gguf"), given(small, "draft", "d.gguf"))] == statuses


def test_a_draft_as_large_as_the_model_is_told_and_heads_are_left_alone(tiny_model: Path) -> None:
    main, draft = given(tiny_model), given(tiny_model, "draft")
    assert said(main, draft) == [("warn", "it is not smaller than the model, so guessing ahead gains nothing")]
    head = dataclasses.replace(draft.model, facts={"architectures": "LlamaForCausalLMEagle3", "vocab_size": "3"})
    assert beside_checks(main, Given(head, draft.files)) == ()


def test_projectors(tmp_path: Path) -> None:
    main, side = tmp_path / "main", tmp_path / "side"
    main.mkdir()
    side.mkdir()
    (main / "m.gguf").write_bytes(language_model())
    model = given(main, entry="m.gguf")
    for width, status in ((16, "pass"), (64, "warn")):
        metadata = {"general.architecture": "clip", "general.type": "mmproj", "clip.vision.projection_dim": width}
        (side / "mmproj.gguf").write_bytes(gguf(metadata))
        assert [found for found, _ in said(model, given(side, "projector", "mmproj.gguf"))] == [status]
    assert said(model, given(main, "projector", "m.gguf")) == [("fail", "this GGUF file is no projector")]
