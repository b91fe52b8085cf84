"""Chooses which files of a model are packed: one copy of its weights, and what belongs with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import PurePosixPath

from airbundle.contract.spec import ModelTable
from airbundle.weights import is_weight, weight_format
from airbundle_onsite.contract.record import near_miss, record
from airbundle_onsite.errors import FetchError
from airbundle_onsite.units import human_bytes

_LICENSES = re.compile(r"(licen[cs]e|notice|copying|use_policy|terms)[^/]*", re.IGNORECASE)
_SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf", re.IGNORECASE)
_DEBRIS = (
    ".git",
    ".cache",
    ".huggingface",
    ".gitattributes",
    ".gitignore",
    ".DS_Store",
    ".locks",
    ".msc",
    ".mv",
    "._____temp",
    "__pycache__",
    ".ipynb_checkpoints",
)
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
_VARIANT = re.compile(r"(.*?)\.(fp16|fp32|bf16|non_ema|ema)((?:-\d{5}-of-\d{5})?\.safetensors(?:\.index\.json)?)")
_NUMBERED = re.compile(r"(.*)-\d{5}-of-\d{5}\.safetensors")
_TRAINING = re.compile(
    r"(optimizer|scheduler|scaler|rng_state\w*|training_args)\.(pt|pth|bin)|trainer_state\.json|zero_to_fp32\.py"
    r"|events\.out\.tfevents.*"
)
_TRAINING_DIRECTORIES = re.compile(r"(checkpoint-\d+|global_step\d+|runs|wandb)/.*")
_NOT_SERVED = re.compile(r"(mmproj|imatrix)", re.IGNORECASE)
"""GGUF files that stand beside a model: a projector for images, statistics of a quantisation."""


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
    elif not model.allow:
        drop("left over from training", _is_training(kept))
        if weight_format(kept) == "safetensors":
            drop("another copy of the weights", _is_other_copy(kept))
        if not model.trust_remote_code:
            drop("Python code, which nothing may run", lambda path: path.endswith(".py"))
    if not kept:
        raise FetchError(
            f"{model.source}: no file is left of {len(sizes)}", remedy="see [model] allow and ignore in the spec"
        )
    return Selection(tuple(sorted(kept)), dict(sorted(skipped.items())), entry)


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path, pattern) or fnmatch(PurePosixPath(path).name, pattern) for pattern in patterns)


def _entry(kept: Mapping[str, int], model: ModelTable) -> str:
    """The one file wanted, or empty when the model is a directory of files. Of a split file it is the first part."""
    if model.file:
        return _named(kept, model)
    if weight_format(kept) != "gguf":
        return ""
    heads = _heads(path for path in kept if path.lower().endswith(".gguf"))
    served = [head for head in heads if not _NOT_SERVED.search(PurePosixPath(head).name)]
    if len(served or heads) == 1:
        return (served or heads)[0]
    raise FetchError(
        f"{model.source}: holds {len(served or heads)} GGUF models, one is needed",
        details=_choices(served or heads, kept),
        remedy='name one in [model] file, or a pattern that only one fits, such as file = "*Q4_K_M*"',
    )


def _named(kept: Mapping[str, int], model: ModelTable) -> str:
    """What `file` names: a path, or a pattern that one model fits."""
    if model.file in kept:
        return _shards_of(model.file, kept)[0]
    fitting = _heads(path for path in kept if _matches(path, (model.file,)))
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise FetchError(
            f"{model.source}: {len(fitting)} files fit {model.file!r}, one is needed",
            details=_choices(fitting, kept),
            remedy="write more of its name in [model] file",
        )
    raise FetchError(
        f"{model.source}: has no file {model.file!r}{near_miss(model.file, kept)}",
        details=_listed(kept),
        remedy="write the path of one of its files in [model] file",
    )


def _heads(paths: Iterable[str]) -> list[str]:
    """Each file, and of a split GGUF only its first part that is there."""
    listed = sorted(paths)
    sizes = dict.fromkeys(listed, 0)
    return sorted({_shards_of(path, sizes)[0] for path in listed})


def _choices(heads: Sequence[str], kept: Mapping[str, int]) -> list[str]:
    lines = []
    for head in heads[:20]:
        parts = _shards_of(head, kept)
        size = human_bytes(sum(kept[part] for part in parts))
        lines.append(f"{head} ({size}{f' in {len(parts)} files' if len(parts) > 1 else ''})")
    return lines + ([f"… and {len(heads) - 20} more"] if len(heads) > 20 else [])


def _shards_of(path: str, kept: Mapping[str, int]) -> list[str]:
    """The files of a split GGUF that `path` is one of, in order; just `path` when it is not split."""
    match = _SHARD.fullmatch(path)
    if not match:
        return [path]
    return sorted(each for each in kept if (found := _SHARD.fullmatch(each)) and found.group(1, 2) == match.group(1, 2))


def _is_training(kept: Mapping[str, int]) -> Callable[[str], bool]:
    """Whether a file is what a training run leaves beside its result; its checkpoints count when there is a result."""
    result = any(is_weight(path) and "/" not in path for path in kept)

    def left(path: str) -> bool:
        name = PurePosixPath(path).name
        return bool(_TRAINING.fullmatch(name)) or (result and bool(_TRAINING_DIRECTORIES.fullmatch(path)))

    return left


def _is_other_copy(kept: Mapping[str, int]) -> Callable[[str], bool]:
    """For a model with safetensors: whether a file is a second form of the same weights."""
    top = [path for path in kept if path.endswith(".safetensors") and "/" not in path]
    has_model = any(not path.startswith("consolidated") for path in top)
    split = {match[1] for path in top if (match := _NUMBERED.fullmatch(path))}

    def other(path: str) -> bool:
        first, slash, _ = path.partition("/")
        name = PurePosixPath(path).name
        if top and slash and first.lower() in _OTHER_DIRECTORIES:
            return True
        if has_model and not slash and name.startswith("consolidated") and name.endswith(".safetensors"):
            return True
        if name.endswith(".safetensors") and not slash and name.removesuffix(".safetensors") in split:
            return True  # the same in one file, beside its parts
        variant = _VARIANT.fullmatch(path)
        if variant and f"{variant[1]}{variant[3]}" in kept:
            return True
        return name.lower().endswith(_OTHER_FRAMEWORKS) or bool(_PYTORCH.fullmatch(name))

    return other


def _listed(kept: Mapping[str, int]) -> list[str]:
    names = sorted(kept)
    return names[:20] + ([f"… and {len(names) - 20} more"] if len(names) > 20 else [])
