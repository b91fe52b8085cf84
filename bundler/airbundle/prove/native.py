"""Reads one native file out of a stream: an ELF file, a bare fat binary or cubin, or PTX."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path
from typing import IO, BinaryIO, cast

from airbundle.prove import elf, fatbin
from airbundle.prove.facts import GpuCode, NativeFile

PEEK = 4096
_IN_MEMORY = 8 << 20  # bytes
_NEVER = (".py", ".pyi", ".pyc", ".h", ".hpp", ".cuh", ".txt", ".json", ".md", ".html", ".js", ".safetensors", ".gguf")


def may_be_native(path: str, size: int) -> bool:
    """Whether a file is worth looking into, by its name and its size in bytes."""
    return size >= 64 and not path.endswith(_NEVER)


def read_native(stream: IO[bytes], path: str, size: int, scratch: Path) -> NativeFile | None:
    """Read one file from a stream that may not be seekable.

    Args:
        stream: at the file's first byte.
        path: in the wheel or image; for messages and in the result.
        size: in bytes.
        scratch: directory for the copy of a large file, which is gone when this returns.

    Returns:
        None when it is no native file. One that cannot be read comes back with its `problem`: packages carry broken
        files on purpose, as test data.
    """
    head = stream.read(PEEK)
    if path.endswith(".ptx"):
        code = fatbin.read_ptx_text(head)
        return NativeFile(path=path, size=size, gpu=code) if code.entries else None
    if not head.startswith((elf.MAGIC, fatbin.MAGIC_BYTES)):
        return None
    with _copy(head, stream, size, scratch) as handle:
        if head.startswith(fatbin.MAGIC_BYTES):
            return NativeFile(path=path, size=size, gpu=fatbin.read_fatbins(handle, [(0, size)]))
        try:
            facts, spans = elf.read_elf(handle)
        except elf.NotReadable as error:
            return NativeFile(path=path, size=size, problem=str(error))
        if facts.machine == "cuda":
            return NativeFile(path=path, size=size, elf=facts, gpu=fatbin.read_cubin(handle))
        return NativeFile(path=path, size=size, elf=facts, gpu=_gpu_code(handle, spans))


def _copy(head: bytes, stream: IO[bytes], size: int, scratch: Path) -> BinaryIO:
    """The file as something seekable: in memory when small, else on disk without a name."""
    if size <= _IN_MEMORY:
        return io.BytesIO(head + stream.read())
    copy = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - closed by the caller
    copy.write(head)
    shutil.copyfileobj(stream, copy, 1 << 20)
    return cast(BinaryIO, copy)


def _gpu_code(handle: BinaryIO, spans: elf.GpuSpans) -> GpuCode:
    linked = fatbin.read_fatbins(handle, spans.get(elf.LINKED, ()))
    return fatbin.merge_relocatable(linked, fatbin.read_fatbins(handle, spans.get(elf.RELOCATABLE, ())))
