"""Reads a wheel: its metadata and every native file in it."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterable
from email.message import Message
from email.parser import Parser
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from airbundle.prove.facts import NativeFile, WheelFacts
from airbundle.prove.native import may_be_native, read_native
from airbundle_onsite.errors import IntegrityError

_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
_CUDA_LIBRARY = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink)\.so\.(\d+)")
_CUDA_PROJECT = re.compile(r"nvidia-(?:[a-z0-9]+-)*cu(\d\d)(?:\W|$)")
_CUDA_LOCAL = re.compile(r"\+(?:.*\.)?cu(\d\d)\d+")
_CUDA_TOOLKIT = re.compile(r"(?:cuda-toolkit|nvidia-cuda-runtime)[^;]*==\s*(\d+)\.")


def read_wheel(path: Path, scratch: Path, *, file_name: str = "") -> WheelFacts:
    """Read a wheel.

    Args:
        path: the file; in a content-addressed cache its name says nothing, hence `file_name`.
        scratch: directory for copies of large members, one at a time.
        file_name: the wheel's own file name, when `path` has another.

    Raises:
        IntegrityError: it is not a wheel, or is damaged.
    """
    shown = file_name or path.name
    try:
        name, version, _build, _tags = parse_wheel_filename(shown)
        with zipfile.ZipFile(path) as archive:
            metadata = _metadata(archive, shown)
            natives = tuple(_natives(archive, scratch))
    except InvalidWheelFilename as error:
        raise IntegrityError(
            f"{shown}: not the file name of a wheel", remedy="rename it as its index calls it"
        ) from error
    except _BROKEN as error:
        raise IntegrityError(f"{shown}: the wheel is damaged ({error})", remedy="fetch it again") from error
    requires = tuple(metadata.get_all("Requires-Dist", ()))
    full = str(metadata.get("Version") or version)
    return WheelFacts(
        name=canonicalize_name(name),
        version=full,
        tags="-".join(shown.removesuffix(".whl").split("-")[-3:]),
        natives=natives,
        cuda=cuda_major(full, natives, requires),
        requires=requires,
        requires_python=str(metadata.get("Requires-Python") or ""),
    )


def _metadata(archive: zipfile.ZipFile, shown: str) -> Message:
    for member in archive.namelist():
        if member.endswith(".dist-info/METADATA") and member.count("/") == 1:
            return parse_metadata(archive.read(member))
    raise IntegrityError(f"{shown}: has no METADATA", remedy="fetch it again, or rebuild it with a current build tool")


def parse_metadata(data: bytes) -> Message:
    """The headers of a METADATA file; its long description is not read."""
    head = data.replace(b"\r\n", b"\n").split(b"\n\n", 1)[0]
    return Parser().parsestr(head.decode("utf-8", "replace"), headersonly=True)


def _natives(archive: zipfile.ZipFile, scratch: Path) -> Iterable[NativeFile]:
    for member in archive.infolist():
        if member.is_dir() or not may_be_native(member.filename, member.file_size):
            continue
        with archive.open(member) as stream:
            native = read_native(stream, member.filename, member.file_size, scratch)
        if native is not None:
            yield native


def cuda_major(version: str, natives: Iterable[NativeFile], requires: Iterable[str] = ()) -> int:
    """Major of the CUDA toolkit that code was built for, or 0 when nothing says so.

    In this order: the local part of its version (``+cu130``); the CUDA libraries it is linked with, where a package
    with builds for several toolkits side by side has no one answer; the NVIDIA projects it requires.
    """
    local = _CUDA_LOCAL.search(version)
    if local:
        return int(local[1])
    linked = {linked_cuda(native) for native in natives} - {0}
    if linked:
        return linked.pop() if len(linked) == 1 else 0
    asked = [_CUDA_PROJECT.match(line) or _CUDA_TOOLKIT.match(line) for line in requires if "extra ==" not in line]
    majors = {int(found[1]) for found in asked if found}
    return majors.pop() if len(majors) == 1 else 0


def linked_cuda(native: NativeFile) -> int:
    """Major of the CUDA toolkit this file is linked with, by the libraries it needs, or 0."""
    needed = native.elf.needed if native.elf else ()
    return max((int(found[1]) for found in map(_CUDA_LIBRARY.match, needed) if found), default=0)
