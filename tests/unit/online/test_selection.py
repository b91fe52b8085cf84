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
        "modeling_name.py",
    )
    assert chosen.skipped == {
        "another copy of the weights": 200 + 201 + 200 + 200 + 50 + 60 + 30,
        "not part of the model": 7,
    }
    assert sum(MIXED.values()) == sum(MIXED[path] for path in chosen.paths) + sum(chosen.skipped.values())


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
    assert caught.value.details == ("a-Q4.gguf", "a-Q8.gguf")
    chosen = choose(sizes, model(file="a-Q4.gguf"))
    assert (chosen.paths, chosen.entry) == (("LICENSE.txt", "a-Q4.gguf"), "a-Q4.gguf")
    assert chosen.skipped == {"not the file asked for": 10}


def test_split_gguf_is_one_model() -> None:
    sizes = {"Q4/a-00001-of-00002.gguf": 5, "Q4/a-00002-of-00002.gguf": 5, "README.md": 1}
    chosen = choose(sizes, model())
    assert chosen.entry == "Q4/a-00001-of-00002.gguf"
    assert chosen.paths == ("Q4/a-00001-of-00002.gguf", "Q4/a-00002-of-00002.gguf")


def test_file_that_is_not_there_gets_a_hint() -> None:
    with pytest.raises(FetchError, match=r"did you mean 'a-Q4\.gguf'"):
        choose({"a-Q4.gguf": 5}, model(file="a-Q5.gguf"))


def test_the_specs_own_patterns_win() -> None:
    chosen = choose(MIXED, model(allow=("*.bin", "config.json"), ignore=("metal/*",)))
    assert chosen.paths == ("1_Pooling/config.json", "config.json", "pytorch_model-00001-of-00001.bin")
    assert chosen.skipped["ignored by the spec"] == 200
    with pytest.raises(FetchError, match="no file is left of 17"):
        choose(MIXED, model(allow=("nothing",)))
