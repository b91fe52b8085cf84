"""A model's tensors, exactly, from the headers of its files: no estimate where the files are at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airbundle.gguf import GgufError, GgufHeader, read_header
from airbundle.memory.weights import Tensor
from airbundle.weights import read_safetensors
from airbundle_onsite.errors import UsageError


def tensors_of(files: Mapping[str, Path]) -> tuple[Tensor, ...]:
    """All tensors of a model's files, safetensors before GGUF where there are both.

    Args:
        files: path inside the model -> the file. Files that an index beside them does not list are left out (some
            repositories carry the weights twice), and so are projectors for images beside a GGUF model.

    Raises:
        UsageError: there are no such files, or a header is damaged, naming the file.
    """
    shards = _listed({path: file for path, file in files.items() if path.endswith(".safetensors")}, files)
    if shards:
        return tuple(tensor for path, file in sorted(shards.items()) for tensor in _safetensors(path, file))
    models = {path: file for path, file in files.items() if path.endswith(".gguf") and "mmproj" not in path.lower()}
    if models:
        return tuple(
            tensor for path, file in sorted(models.items()) for tensor in gguf_tensors(gguf_header(path, file))
        )
    raise UsageError("the model has neither safetensors nor GGUF files", remedy="name a model that has")


def gguf_header(path: str, file: Path) -> GgufHeader:
    """The header of a GGUF file. Raises UsageError, naming `path`."""
    try:
        return read_header(file)
    except (GgufError, OSError) as error:
        raise UsageError(f"{path}: {error}", remedy="fetch the file again") from error


def gguf_tensors(header: GgufHeader) -> tuple[Tensor, ...]:
    """Its tensors.

    Raises:
        UsageError: one is of a type whose size is not known.
    """
    unknown = [name for name, size in header.sizes.items() if not size]
    if unknown:
        raise UsageError(f"{len(unknown)} tensors are of a type that is not known, the first is {unknown[0]}")
    return tuple(Tensor(name, size) for name, size in header.sizes.items())


def safetensors_tensors(header: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Tensors of a parsed safetensors header."""
    return tuple(
        Tensor(name, int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]), dtype=str(entry["dtype"]))
        for name, entry in header.items()
        if name != "__metadata__"
    )


def _safetensors(path: str, file: Path) -> tuple[Tensor, ...]:
    try:
        return safetensors_tensors(read_safetensors(file))
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: {error}", remedy="fetch the file again") from error


def _listed(shards: dict[str, Path], files: Mapping[str, Path]) -> dict[str, Path]:
    index = next((path for path in sorted(files) if path.endswith(".safetensors.index.json")), None)
    if index is None:
        return shards
    try:
        names = set(json.loads(files[index].read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, OSError) as error:
        raise UsageError(f"{index}: has no weight_map", remedy="fetch the file again") from error
    prefix = index.rpartition("/")[0]
    wanted = {f"{prefix}/{name}" if prefix else name for name in names}
    missing = sorted(wanted - set(shards))
    if missing:
        raise UsageError(
            f"{index} lists {len(missing)} files that are not there, the first is {missing[0]}",
            remedy="fetch the missing files, or plan from config.json alone",
        )
    return {path: file for path, file in shards.items() if path in wanted}
