"""Proofs that weights are whole, from the files themselves: what a hash against the wrong upstream cannot show."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from airbundle.gguf import GgufError, read_header
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError

Format = Literal["gguf", "safetensors", "pytorch", "other"]

PYTORCH = (".bin", ".pt", ".pth", ".ckpt")
_POINTER = b"version https://git-lfs.github.com/spec/"
_INDEX = ".index.json"
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.[a-z]+)")
_MOST_HEADER = 100_000_000  # bytes; the format's own limit
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8),
}


def weight_format(paths: Iterable[str]) -> Format:
    """Format of a model with these files; safetensors before GGUF before PyTorch where there are several."""
    names = [path.lower() for path in paths]
    if any(name.endswith(".safetensors") for name in names):
        return "safetensors"
    if any(name.endswith(".gguf") for name in names):
        return "gguf"
    return "pytorch" if any(name.endswith(PYTORCH) for name in names) else "other"


def is_weight(path: str) -> bool:
    """Whether a file of this name holds weights."""
    return path.lower().endswith((".safetensors", ".gguf", *PYTORCH))


def prove(files: Mapping[str, Path]) -> None:
    """Show that a model is whole.

    Args:
        files: path inside the model -> the file.

    Raises:
        FetchError: with every problem found: dead links, pointers, empty or unfinished files, headers that do not
            fit the file, shards that are missing or that no index knows.
    """
    problems: list[str] = []
    headers: dict[str, Mapping[str, Any]] = {}
    splits: dict[str, tuple[int, int]] = {}
    for path, file in sorted(files.items()):
        try:
            problem = _prove_file(path, file, headers, splits)
        except OSError as error:
            problem = "a link to nothing" if file.is_symlink() else str(error.strerror)
        if problem:
            problems.append(f"{path}: {problem}")
    for path, file in sorted(files.items()):
        if path.endswith(_INDEX) and _is_readable(file):
            problems.extend(_prove_index(path, file, files, headers))
    problems.extend(missing_shards(files))
    problems.extend(_prove_splits(splits))
    if problems:
        count = len(problems)
        raise FetchError(
            f"the model is not whole: {count} problem{'s' if count > 1 else ''}",
            details=problems,
            remedy="fetch the files named above again from where the model comes from, then lock again",
        )


def missing_shards(paths: Iterable[str]) -> list[str]:
    """Problems with files called ``NAME-00001-of-00003.EXT``: numbers that are missing, or beyond the last."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for path in paths:
        match = _SHARD.fullmatch(path)
        if match and is_weight(path):
            sets.setdefault((match[1], match[3], match[4]), set()).add(int(match[2]))
    problems: list[str] = []
    for (stem, count, suffix), numbers in sorted(sets.items()):
        wanted = set(range(1, int(count) + 1))
        problems.extend(f"{stem}-{number:05d}-of-{count}{suffix}: missing" for number in sorted(wanted - numbers))
        problems.extend(
            f"{stem}-{number:05d}-of-{count}{suffix}: numbered beyond the last" for number in sorted(numbers - wanted)
        )
    return problems


def _is_readable(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


def _prove_file(
    path: str, file: Path, headers: dict[str, Mapping[str, Any]], splits: dict[str, tuple[int, int]]
) -> str:
    """What is wrong with one file, or an empty string.

    Keeps the header of a good safetensors file, and of a part of a split GGUF file its number and how many there are.
    """
    size, name = file.stat().st_size, path.lower()
    if name.endswith(".incomplete"):
        return "a download that was not finished"
    if size == 0:
        return "empty" if is_weight(path) or name.endswith(".json") else ""
    with file.open("rb") as handle:
        if handle.read(len(_POINTER)) == _POINTER:
            return "a pointer, not the file: fetch its LFS content (git lfs pull)"
    try:
        if name.endswith(".safetensors"):
            headers[path] = read_safetensors(file)
        elif name.endswith(".gguf"):
            header = read_header(file)
            number, count = (header.metadata.get(f"split.{key}") for key in ("no", "count"))
            if isinstance(number, int) and isinstance(count, int) and count > 1:
                splits[path] = (number + 1, count)
            return f"{size} bytes, its header needs {header.needed}: cut short" if size < header.needed else ""
        elif name.endswith(".json"):
            json.loads(file.read_bytes())
    except (GgufError, ValueError, RecursionError) as error:
        return str(error) if not isinstance(error, json.JSONDecodeError) else f"not JSON: {error}"
    return ""


def stored_types(files: Mapping[str, Path]) -> dict[str, int]:
    """Bytes by data type (``BF16``, ``F8_E4M3``, …) of all tensors in the safetensors files of a proven model."""
    found: dict[str, int] = {}
    for path, file in files.items():
        if path.endswith(".safetensors"):
            for entry in read_safetensors(file).values():
                begin, end = entry["data_offsets"]
                found[entry["dtype"]] = found.get(entry["dtype"], 0) + end - begin
    return found


@record
class _Extent:
    begin: int
    end: int


def read_safetensors(file: Path) -> Mapping[str, Any]:
    """The header of a safetensors file: tensor name -> its entry, without ``__metadata__``.

    Raises:
        ValueError: the header is malformed or does not fit the file's size.
        OSError: from the file.
    """
    size = file.stat().st_size
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if size < 8 or length > min(_MOST_HEADER, size - 8):
            raise ValueError(f"{size} bytes, yet its header claims {length} bytes: cut short, or not safetensors")
        try:
            header = json.loads(handle.read(length))
        except (ValueError, RecursionError) as error:
            raise ValueError("its header is not JSON: damaged, or not safetensors") from error
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    header.pop("__metadata__", None)
    extents = sorted((_extent(name, entry) for name, entry in header.items()), key=lambda each: (each.begin, each.end))
    position = 0
    for extent in extents:
        if extent.begin != position:
            raise ValueError(f"its tensors overlap or leave a hole at byte {position}")
        position = extent.end
    if 8 + length + position != size:
        raise ValueError(f"{size} bytes, its header needs {8 + length + position}")
    return header


def _extent(name: str, entry: Any) -> _Extent:
    try:
        begin, end = (int(value) for value in entry["data_offsets"])
        elements, bits = math.prod(entry["shape"]), _BITS.get(entry["dtype"])
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"tensor {name!r} has no proper entry in its header") from error
    if end < begin or (bits is not None and elements * bits != (end - begin) * 8):
        raise ValueError(f"tensor {name!r} claims {end - begin} bytes, which its shape and type do not make")
    return _Extent(begin, end)


def _prove_index(
    path: str, file: Path, files: Mapping[str, Path], headers: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Problems between an index and the shards beside it."""
    try:
        places = json.loads(file.read_bytes())["weight_map"]
        wanted: dict[str, set[str]] = {}
        for tensor, shard in places.items():
            wanted.setdefault(_beside(path, shard), set()).add(tensor)
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{path}: has no weight_map"] if is_weight(path.removesuffix(_INDEX)) else []
    numbered = {name for name in wanted if _SHARD.fullmatch(name)}  # `missing_shards` names these when some are here
    started = {_shard_set(name) for name in files} - {""}
    problems = [
        f"{name}: missing, though {path} lists it"
        for name in sorted(wanted)
        if name not in files and not (name in numbered and _shard_set(name) in started)
    ]
    for name in sorted(files):
        if _shard_set(name) and _shard_set(name) in {_shard_set(each) for each in numbered} and name not in wanted:
            problems.append(f"{name}: {path} does not list it")
    for name, tensors in sorted(wanted.items()):
        lost = sorted(tensors - set(headers[name])) if name in headers else []
        if lost:
            problems.append(f"{name}: lacks {len(lost)} tensors that {path} places there, the first is {lost[0]}")
    listed = {"__metadata__"}.union(*wanted.values())
    for name in sorted(wanted):
        unlisted = sorted(set(headers.get(name, ())) - listed)
        if unlisted:
            problems.append(f"{name}: {path} lists {len(unlisted)} of its tensors nowhere, the first is {unlisted[0]}")
    return problems


def _prove_splits(splits: Mapping[str, tuple[int, int]]) -> list[str]:
    """Parts of split GGUF files whose names say something else than their headers: engines go by the names."""
    problems = []
    for path, (number, count) in sorted(splits.items()):
        match = _SHARD.fullmatch(path)
        if match is None or (int(match[2]), int(match[3])) != (number, count):
            problems.append(f"{path}: is part {number} of {count} by its own header, and its name does not say so")
    return problems


def _beside(index: str, shard: str) -> str:
    directory, slash, _ = index.rpartition("/")
    return f"{directory}{slash}{shard}"


def _shard_set(path: str) -> str:
    match = _SHARD.fullmatch(path)
    return f"{match[1]}{match[3]}{match[4]}" if match else ""
