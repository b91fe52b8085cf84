"""Chooses which files of a model are packed: one copy of its weights, and what belongs with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import PurePosixPath

from airbundle.contract.spec import ModelTable
from airbundle.weights import weight_format
from airbundle_onsite.contract.record import near_miss, record
from airbundle_onsite.errors import FetchError

_LICENSES = re.compile(r"(licen[cs]e|notice|copying|use_policy|terms)[^/]*", re.IGNORECASE)
_SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf", re.IGNORECASE)
_DEBRIS = (".git", ".cache", ".huggingface", ".gitattributes", ".gitignore", ".DS_Store", ".locks")
_OTHER_FRAMEWORKS = (
    ".msgpack",
    ".h5",
    ".onnx",
    ".onnx_data",
    ".tflite",
    ".ot",
    ".mlmodel",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
)
_OTHER_DIRECTORIES = ("original", "metal", "onnx", "openvino", "coreml", "flax", "tf")
_PYTORCH = re.compile(r"(pytorch_|adapter_|diffusion_pytorch_)?(model|consolidated)[^/]*\.bin(\.index\.json)?")


@record
class Selection:
    """What is packed.

    Attributes:
        paths: sorted.
        skipped: bytes left out, by reason.
        entry: the file an engine is given when it wants one (GGUF), or empty.
    """

    paths: tuple[str, ...]
    skipped: Mapping[str, int]
    entry: str = ""


def is_debris(path: str) -> bool:
    """Whether a file belongs to the tool that brought it, not to the model."""
    return path.endswith((".incomplete", ".lock")) or any(part in _DEBRIS for part in path.split("/"))


def choose(sizes: Mapping[str, int], model: ModelTable) -> Selection:
    """Choose by the spec's `file`, `allow` and `ignore`, else by format.

    Args:
        sizes: every file of the source -> its bytes.
        model: the spec's table.

    Raises:
        FetchError: nothing is left, `file` is not there, or one file must be named and none was.
    """
    skipped: dict[str, int] = {}
    kept = dict(sizes)

    def drop(reason: str, unwanted: Callable[[str], bool]) -> None:
        for path in [path for path in kept if unwanted(path)]:
            skipped[reason] = skipped.get(reason, 0) + kept.pop(path)

    drop("not part of the model", is_debris)
    drop("ignored by the spec", lambda path: _matches(path, model.ignore))
    if model.allow:
        drop("not allowed by the spec", lambda path: not _matches(path, model.allow))
    entry = _entry(kept, model)
    if entry:
        wanted = _shards_of(entry, kept)
        drop("not the file asked for", lambda path: path not in wanted and not _LICENSES.fullmatch(path))
    elif weight_format(kept) == "safetensors" and not model.allow:
        drop("another copy of the weights", _is_other_copy(kept))
    if not kept:
        raise FetchError(
            f"{model.source}: no file is left of {len(sizes)}", remedy="see [model] allow and ignore in the spec"
        )
    return Selection(tuple(sorted(kept)), dict(sorted(skipped.items())), entry)


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path, pattern) or fnmatch(PurePosixPath(path).name, pattern) for pattern in patterns)


def _entry(kept: Mapping[str, int], model: ModelTable) -> str:
    """The one file wanted, or empty when the model is a directory of files."""
    if model.file:
        if model.file in kept:
            return model.file
        raise FetchError(
            f"{model.source}: has no file {model.file!r}{near_miss(model.file, kept)}",
            details=_listed(kept),
            remedy="write the path of one of its files in [model] file",
        )
    if weight_format(kept) != "gguf":
        return ""
    heads = sorted({_shards_of(path, kept)[0] for path in kept if path.lower().endswith(".gguf")})
    if len(heads) == 1:
        return heads[0]
    raise FetchError(
        f"{model.source}: holds {len(heads)} GGUF models, one is needed",
        details=heads[:20],
        remedy="name one in [model] file",
    )


def _shards_of(path: str, kept: Mapping[str, int]) -> list[str]:
    """The files of a split GGUF that `path` is one of, in order; just `path` when it is not split."""
    match = _SHARD.fullmatch(path)
    if not match:
        return [path]
    return sorted(each for each in kept if (found := _SHARD.fullmatch(each)) and found.group(1, 2) == match.group(1, 2))


def _is_other_copy(kept: Mapping[str, int]) -> Callable[[str], bool]:
    """For a model with safetensors: whether a file is a second form of the same weights."""
    top = [path for path in kept if path.endswith(".safetensors") and "/" not in path]
    has_model = any(not path.startswith("consolidated") for path in top)

    def other(path: str) -> bool:
        first, slash, _ = path.partition("/")
        name = PurePosixPath(path).name
        if top and slash and first.lower() in _OTHER_DIRECTORIES:
            return True
        if has_model and not slash and name.startswith("consolidated") and name.endswith(".safetensors"):
            return True
        return name.lower().endswith(_OTHER_FRAMEWORKS) or bool(_PYTORCH.fullmatch(name))

    return other


def _listed(kept: Mapping[str, int]) -> list[str]:
    names = sorted(kept)
    return names[:20] + ([f"… and {len(names) - 20} more"] if len(names) > 20 else [])
