"""One copy of the weights is chosen, and what is left out is counted by reason."""

from __future__ import annotations

import pytest

from airbundle.contract.spec import ModelTable
from airbundle.selection import choose
from airbundle_onsite.errors import FetchError


def model(**wishes: object) -> ModelTable:
    return ModelTable(source="hf:org/name", served_name="name", **wishes)  # type: ignore[arg-type]


MIXED = {
    "config.json": 1,
    "model-00001-of-00002.safetensors": 100,
    "model-00002-of-00002.safetensors": 100,
    "model.safetensors.index.json": 1,
    "consolidated.safetensors": 200,
    "pytorch_model-00001-of-00001.bin": 200,
    "pytorch_model.bin.index.json": 1,
    "original/consolidated.00.pth": 200,
    "metal/model.bin": 200,
    "onnx/model.onnx": 50,
    "tf_model.h5": 60,
    "name-Q4.gguf": 30,
    "1_Pooling/config.json": 1,
    "modeling_name.py": 2,
    ".gitattributes": 3,
    ".cache/huggingface/x.lock": 4,
    "LICENSE": 1,
}


def test_one_copy_where_there_are_many() -> None:
    chosen = choose(MIXED, model())
    assert chosen.paths == (
        "1_Pooling/config.json",
        "LICENSE",
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    )
    assert chosen.skipped == {
        "another copy of the weights": 200 + 201 + 200 + 200 + 50 + 60 + 30,
        "not part of the model": 7,
        "Python code, which nothing may run": 2,
    }
    assert sum(MIXED.values()) == sum(MIXED[path] for path in chosen.paths) + sum(chosen.skipped.values())


def test_python_code_comes_along_only_when_it_is_trusted_or_asked_for() -> None:
    assert "modeling_name.py" in choose(MIXED, model(trust_remote_code=True)).paths
    assert "modeling_name.py" not in choose(MIXED, model(trust_remote_code=False)).paths
    assert choose(MIXED, model(allow=("*.py",))).paths == ("modeling_name.py",)


def test_mistrals_own_form_alone_is_kept() -> None:
    chosen = choose({"consolidated.safetensors": 5, "params.json": 1, "tekken.json": 1}, model())
    assert chosen.paths == ("consolidated.safetensors", "params.json", "tekken.json")


def test_without_safetensors_all_is_kept() -> None:
    sizes = {"pytorch_model.bin": 5, "tf_model.h5": 5, "config.json": 1}
    assert choose(sizes, model()).paths == tuple(sorted(sizes))


def test_one_gguf_with_its_license() -> None:
    sizes = {"a-Q4.gguf": 5, "a-Q8.gguf": 9, "README.md": 1, "LICENSE.txt": 1}
    with pytest.raises(FetchError, match="holds 2 GGUF models") as caught:
        choose(sizes, model())
    assert caught.value.details == ("a-Q4.gguf (5 B)", "a-Q8.gguf (9 B)")
    assert "*Q4_K_M*" in caught.value.remedy
    chosen = choose(sizes, model(file="a-Q4.gguf"))
    assert (chosen.paths, chosen.entry) == (("LICENSE.txt", "a-Q4.gguf"), "a-Q4.gguf")
    assert chosen.skipped == {"not the file asked for": 10}


def test_split_gguf_is_one_model() -> None:
    sizes = {"Q4/a-00001-of-00002.gguf": 5, "Q4/a-00002-of-00002.gguf": 5, "README.md": 1}
    chosen = choose(sizes, model())
    assert chosen.entry == "Q4/a-00001-of-00002.gguf"
    assert chosen.paths == ("Q4/a-00001-of-00002.gguf", "Q4/a-00002-of-00002.gguf")


QUANTS = {
    "m-IQ2_M.gguf": 20,
    "m-Q4_K_M.gguf": 40,
    "m-Q8_0/m-Q8_0-00001-of-00002.gguf": 45,
    "m-Q8_0/m-Q8_0-00002-of-00002.gguf": 45,
    "mmproj-m-f16.gguf": 8,
    "imatrix.gguf": 1,
    "README.md": 1,
}


def test_one_quantisation_of_many_by_a_pattern() -> None:
    with pytest.raises(FetchError, match="holds 3 GGUF models") as caught:
        choose(QUANTS, model())
    assert caught.value.details == (
        "m-IQ2_M.gguf (20 B)",
        "m-Q4_K_M.gguf (40 B)",
        "m-Q8_0/m-Q8_0-00001-of-00002.gguf (90 B in 2 files)",
    )
    chosen = choose(QUANTS, model(file="*Q4_K_M*"))
    assert (chosen.paths, chosen.entry) == (("m-Q4_K_M.gguf",), "m-Q4_K_M.gguf")
    assert chosen.skipped == {"not the file asked for": 120}
    with pytest.raises(FetchError, match=r"2 files fit '\*_M\*'"):
        choose(QUANTS, model(file="*_M*"))


def test_any_part_of_a_split_gguf_names_all_of_it_from_the_first_on() -> None:
    parts = ("m-Q8_0/m-Q8_0-00001-of-00002.gguf", "m-Q8_0/m-Q8_0-00002-of-00002.gguf")
    for wish in ("*Q8_0*", parts[1]):
        chosen = choose(QUANTS, model(file=wish))
        assert (chosen.paths, chosen.entry) == (parts, parts[0])


def test_a_projector_beside_the_model_is_no_choice_but_can_be_asked_for() -> None:
    sizes = {"m-Q4_K_M.gguf": 40, "mmproj-m-f16.gguf": 8}
    assert choose(sizes, model()).entry == "m-Q4_K_M.gguf"
    assert choose(sizes, model(file="mmproj*")).paths == ("mmproj-m-f16.gguf",)
    assert choose({"mmproj-m-f16.gguf": 8}, model()).entry == "mmproj-m-f16.gguf"


def test_what_training_leaves_is_not_packed() -> None:
    sizes = {
        "config.json": 1,
        "model.safetensors": 100,
        "optimizer.pt": 200,
        "rng_state_0.pth": 1,
        "training_args.bin": 1,
        "trainer_state.json": 1,
        "checkpoint-500/model.safetensors": 100,
        "checkpoint-500/config.json": 1,
        "runs/events.out.tfevents.1": 1,
    }
    chosen = choose(sizes, model())
    assert chosen.paths == ("config.json", "model.safetensors")
    assert chosen.skipped == {"left over from training": 305}
    only = {"checkpoint-500/model.safetensors": 100, "checkpoint-500/config.json": 1}
    assert choose(only, model()).paths == tuple(sorted(only)), "no result beside them, so they are the model"


def test_the_same_weights_in_one_file_or_in_another_precision_are_copies() -> None:
    sizes = {
        "model-00001-of-00002.safetensors": 50,
        "model-00002-of-00002.safetensors": 50,
        "model.safetensors": 100,
        "model.fp16-00001-of-00002.safetensors": 50,
        "model.safetensors.index.json": 1,
        "tokenizer.json": 1,
    }
    assert choose(sizes, model()).skipped == {"another copy of the weights": 150}
    assert choose({"model.fp16.safetensors": 9}, model()).paths == ("model.fp16.safetensors",)


def test_file_that_is_not_there_gets_a_hint() -> None:
    with pytest.raises(FetchError, match=r"did you mean 'a-Q4\.gguf'"):
        choose({"a-Q4.gguf": 5}, model(file="a-Q5.gguf"))


def test_the_specs_own_patterns_win() -> None:
    chosen = choose(MIXED, model(allow=("*.bin", "config.json"), ignore=("metal/*",)))
    assert chosen.paths == ("1_Pooling/config.json", "config.json", "pytorch_model-00001-of-00001.bin")
    assert chosen.skipped["ignored by the spec"] == 200
    with pytest.raises(FetchError, match="no file is left of 17"):
        choose(MIXED, model(allow=("nothing",)))
