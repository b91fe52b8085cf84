"""Weights are whole, or the very thing that is wrong is named."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from airbundle.gguf import GgufError, read_header
from airbundle.weights import missing_shards, prove, weight_format
from airbundle_onsite.errors import FetchError
from parts.gguf import gguf as make_gguf

SHARD = "model-00001-of-00002.safetensors"
OTHER = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def listed(directory: Path) -> dict[str, Path]:
    return {path.name: path for path in directory.iterdir()}


def problems(directory: Path) -> list[str]:
    with pytest.raises(FetchError) as caught:
        prove(listed(directory))
    return list(caught.value.details)


def gguf(tensors: list[tuple[str, int, list[int], int]], data: bytes, version: int = 3) -> bytes:
    """A GGUF file with one metadata string and these tensors: name, type, dimensions, offset."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), 2)
    head += text("general.name") + struct.pack("<I", 8) + text("tiny")
    head += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    for name, kind, dimensions, offset in tensors:
        head += text(name) + struct.pack("<I", len(dimensions)) + struct.pack(f"<{len(dimensions)}Q", *dimensions)
        head += struct.pack("<IQ", kind, offset)
    return head + bytes(-len(head) % 32) + data


def test_whole_model_passes(model: Path) -> None:
    prove(listed(model))


def test_pointer_instead_of_weights(model: Path) -> None:
    (model / SHARD).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    (found,) = problems(model)
    assert found.startswith(f"{SHARD}: a pointer")
    assert "LFS" in found


def test_cut_short_and_grown(model: Path) -> None:
    whole = (model / SHARD).read_bytes()
    (model / SHARD).write_bytes(whole[:-1])
    (model / OTHER).write_bytes((model / OTHER).read_bytes() + b"x")
    first, second = problems(model)
    assert first == f"{SHARD}: {len(whole) - 1} bytes, its header needs {len(whole)}"
    assert second.startswith(f"{OTHER}: ")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(50), "header"),
        (struct.pack("<Q", 1 << 60) + b"{}", "claims"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 7) + b"garbage", "not JSON"),
    ],
)
def test_not_safetensors(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    assert words in problems(tmp_path)[0]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "'a' claims 4 bytes"),
        ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [1, 5]}}, "hole at byte 0"),
        ({"a": {"dtype": "U8", "shape": [4]}}, "no proper entry"),
        ({"a": 5}, "no proper entry"),
    ],
)
def test_header_that_does_not_add_up(tmp_path: Path, header: object, words: str) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    assert words in problems(tmp_path)[0]


def test_missing_shard_is_named(model: Path) -> None:
    (model / OTHER).unlink()
    assert problems(model) == [f"{OTHER}: missing"]


def test_missing_only_weights_are_named_by_the_index(model: Path) -> None:
    (model / SHARD).unlink()
    (model / OTHER).unlink()
    assert problems(model) == [f"{name}: missing, though {INDEX} lists it" for name in (SHARD, OTHER)]


def test_index_and_shards_disagree(model: Path) -> None:
    places = json.loads((model / INDEX).read_text())
    lost = next(name for name, shard in places["weight_map"].items() if shard == OTHER)
    places["weight_map"][lost] = SHARD
    places["weight_map"] = {name: shard for name, shard in places["weight_map"].items() if shard != OTHER}
    (model / INDEX).write_text(json.dumps(places))
    assert problems(model) == [
        f"{OTHER}: {INDEX} does not list it",
        f"{SHARD}: lacks 1 tensors that {INDEX} places there, the first is {lost}",
    ]


def test_a_tensor_that_the_index_lists_nowhere(model: Path) -> None:
    places = json.loads((model / INDEX).read_text())
    first = sorted(name for name, shard in places["weight_map"].items() if shard == SHARD)[0]
    del places["weight_map"][first]
    (model / INDEX).write_text(json.dumps(places))
    assert problems(model) == [f"{SHARD}: {INDEX} lists 1 of its tensors nowhere, the first is {first}"]


def test_dead_links_unfinished_files_and_broken_json_are_all_listed(model: Path) -> None:
    (model / SHARD).unlink()
    (model / SHARD).symlink_to("../blobs/gone")
    (model / "tokenizer.json").write_text("")
    (model / "config.json").write_text("{")
    (model / "x.incomplete").write_text("x")
    assert [line.partition(": ")[::2] for line in problems(model)] == [
        ("config.json", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (SHARD, "a link to nothing"),
        ("tokenizer.json", "empty"),
        ("x.incomplete", "a download that was not finished"),
    ]


def test_gguf(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    whole = gguf([("a", 0, [4], 0), ("b", 2, [32, 2], 32)], bytes(32 + 36))
    path.write_bytes(whole)
    header = read_header(path)
    assert (header.version, header.tensors, header.needed) == (3, 2, len(whole))
    prove({"m.gguf": path})
    path.write_bytes(whole[:-1])
    assert problems(tmp_path) == [f"m.gguf: {len(whole) - 1} bytes, its header needs {len(whole)}: cut short"]
    path.write_bytes(whole[:60])
    assert problems(tmp_path) == ["m.gguf: ends inside its own header"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GGML" + bytes(40), "begins with b'GGML'"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 50, 0), "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 50), "claims"),
    ],
)
def test_not_gguf(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufError, match=words):
        read_header(path)


def test_real_gguf(smollm2_gguf: Path) -> None:
    assert read_header(smollm2_gguf).needed == smollm2_gguf.stat().st_size


def test_formats() -> None:
    assert weight_format(["a.safetensors", "b.gguf"]) == "safetensors"
    assert weight_format(["b.GGUF", "c.bin"]) == "gguf"
    assert weight_format(["c.bin"]) == "pytorch"
    assert weight_format(["config.json"]) == "other"


def test_numbered_files() -> None:
    assert missing_shards(["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"]) == ["m-00002-of-00003.gguf: missing"]
    assert missing_shards(["m-00001-of-00001.gguf", "m-00002-of-00001.gguf"]) == [
        "m-00002-of-00001.gguf: numbered beyond the last"
    ]
    assert missing_shards(["notes-00001-of-00003.txt"]) == []


def test_parts_of_a_split_gguf_carry_their_numbers_in_their_names(tmp_path: Path) -> None:
    def part(number: int, count: int) -> bytes:
        return make_gguf({"general.architecture": "llama", "split.no": number, "split.count": count})

    for number in (0, 1):
        (tmp_path / f"m-0000{number + 1}-of-00002.gguf").write_bytes(part(number, 2))
    prove(listed(tmp_path))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(part(2, 3))
    (tmp_path / "alone.gguf").write_bytes(part(0, 2))
    assert problems(tmp_path) == [
        "alone.gguf: is part 1 of 2 by its own header, and its name does not say so",
        "m-00002-of-00002.gguf: is part 3 of 3 by its own header, and its name does not say so",
    ]
