"""Reads NVIDIA fat binaries: for which GPU architectures a file carries machine code (SASS) and PTX.

The format is not published; what is used of it was checked against the output of nvcc 13.0 and against cuobjdump on
wheels of several CUDA releases (see the decision page). All numbers are little-endian.

A section holds containers one after the other, padded with zeros:

    u32 magic 0xBA55ED50 · u16 version · u16 length of this header · u64 length of the entries

An entry is a header and its payload, without gaps:

    0  u16 kind (1 PTX, 2 ELF machine code, 8 link-time IR, 16 machine code of another form) · u16 version
    4  u32 length of this header (64, or more with options) · 8 u64 length of the payload, padded
    24 u16 minor, u16 major: for PTX, its ISA version
    28 u32 architecture, e.g. 90
    40 u64 flags; bit 20: architecture-specific ("a"), bit 21: family-specific ("f")

Only headers are read: payloads, nearly all of the bytes, are skipped.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import BinaryIO

from airbundle.prove.facts import GpuCode, Ptx, arch_key, version_key

MAGIC = 0xBA55ED50
MAGIC_BYTES = struct.pack("<I", MAGIC)
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ8xHHI8xQ")
_PTX, _LTO, _SASS = 1, 8, (2, 16)
_SPECIFIC, _FAMILY = 1 << 20, 1 << 21
_BLOCK = 1 << 16


class _Found:
    """What was seen so far."""

    def __init__(self) -> None:
        self.sass: set[str] = set()
        self.lto: set[str] = set()
        self.ptx: dict[str, str] = {}
        self.entries = 0
        self.unread = 0

    def add(self, kind: int, arch: str, isa: str) -> None:
        self.entries += 1
        if kind in _SASS:
            self.sass.add(arch)
        elif kind == _LTO:
            self.lto.add(arch)
        elif kind == _PTX:
            known = self.ptx.get(arch)
            if known is None or version_key(isa) < version_key(known):
                self.ptx[arch] = isa

    def result(self) -> GpuCode:
        return GpuCode(
            sass=tuple(sorted(self.sass, key=arch_key)),
            ptx=tuple(Ptx(arch, self.ptx[arch]) for arch in sorted(self.ptx, key=arch_key)),
            lto=tuple(sorted(self.lto, key=arch_key)),
            entries=self.entries,
            unread=self.unread,
        )


def read_fatbins(handle: BinaryIO, spans: Iterable[tuple[int, int]]) -> GpuCode:
    """Walk the headers in some spans of a file.

    Args:
        handle: seekable.
        spans: offset and size of each section, or of the whole of a bare fat binary.

    Returns:
        The architectures. What does not follow the format is counted as `unread`, and the walk goes on at the next
        container, so that one strange piece hides no other.
    """
    found = _Found()
    for offset, size in spans:
        position, end = offset, offset + size
        while position < end:
            position = _skip_zeros(handle, position, end)
            if position < end:
                position = _container(handle, position, end, found)
    return found.result()


def merge_relocatable(linked: GpuCode, relocatable: GpuCode) -> GpuCode:
    """What can run of a file with both kinds of section.

    Relocatable code is what the device linker was given. Its machine code is in the linked section again, for the
    architectures it was linked for; its PTX is not, and the CUDA runtime links it when nothing else fits.
    """
    found = _Found()
    found.sass.update(linked.sass or relocatable.sass)
    found.lto.update(linked.lto + relocatable.lto)
    for each in linked.ptx + relocatable.ptx:
        found.add(_PTX, each.arch, each.isa)
    found.entries = linked.entries + relocatable.entries
    found.unread = linked.unread + relocatable.unread
    return found.result()


def _skip_zeros(handle: BinaryIO, position: int, end: int) -> int:
    """The next place, in steps of 8 bytes, where something is."""
    while position < end:
        handle.seek(position)
        block = handle.read(min(_BLOCK, end - position))
        if not block:
            return end
        rest = block.lstrip(b"\0")
        if rest:
            return position + (len(block) - len(rest)) // 8 * 8
        position += len(block)
    return end


def _container(handle: BinaryIO, position: int, end: int, found: _Found) -> int:
    """Read the container here; returns where to go on."""
    handle.seek(position)
    head = handle.read(_CONTAINER.size)
    if len(head) == _CONTAINER.size:
        magic, _version, length, size = _CONTAINER.unpack(head)
        stop: int = position + length + size
        if magic == MAGIC and length >= _CONTAINER.size and stop <= end:
            _entries(handle, position + length, stop, found)
            return stop
    after = _next_magic(handle, position + 8, end)
    found.unread += after - position
    return after


def _entries(handle: BinaryIO, position: int, stop: int, found: _Found) -> None:
    while position < stop:
        handle.seek(position)
        head = handle.read(_ENTRY.size)
        if len(head) < _ENTRY.size or not head.strip(b"\0"):
            break
        kind, _version, length, size, minor, major, number, flags = _ENTRY.unpack(head)
        if length < _ENTRY.size or position + length + size > stop:
            break
        arch = f"{number}{'a' if flags & _SPECIFIC else 'f' if flags & _FAMILY else ''}"
        found.add(kind, arch, f"{major}.{minor}")
        position += length + size
    found.unread += max(0, stop - position)


def _next_magic(handle: BinaryIO, position: int, end: int) -> int:
    """Where the next container begins, at a multiple of 8 from `position`, or the end."""
    while position < end:
        handle.seek(position)
        block = handle.read(min(_BLOCK, end - position))
        if not block:
            return end
        at = block.find(MAGIC_BYTES)
        while at >= 0:
            if at % 8 == 0:
                return position + at
            at = block.find(MAGIC_BYTES, at + 1)
        position += len(block)
    return end


_TARGET = re.compile(rb"^\s*\.target\s+(?:sm|compute)_(\d+[af]?)", re.MULTILINE)
_ISA = re.compile(rb"^\s*\.version\s+(\d+\.\d+)", re.MULTILINE)
_TOOL_ARCH = re.compile(rb"-arch[ =](?:sm|compute)_(\d+[af]?)\b")


def read_ptx_text(head: bytes) -> GpuCode:
    """Architecture and version of PTX source, from its first lines; nothing when they are not there."""
    target, isa = _TARGET.search(head), _ISA.search(head)
    if target is None or isa is None:
        return GpuCode()
    return GpuCode(ptx=(Ptx(target[1].decode(), isa[1].decode()),), entries=1)


def read_cubin(handle: BinaryIO) -> GpuCode:
    """Architecture of bare machine code (an ELF file for the machine CUDA).

    The ELF flags say the number, in their low byte up to CUDA 12 and in the second byte from ABI 8 on. Whether the code
    is specific to the architecture stands only in the note with the assembler's command line.
    """
    handle.seek(0)
    data = handle.read(_BLOCK)
    abi = data[8]
    (flags,) = struct.unpack_from("<I", data, 48)
    number = str((flags >> 8) & 0xFF if abi >= 8 else flags & 0xFF)
    noted = _TOOL_ARCH.search(data)
    arch = noted[1].decode() if noted is not None and noted[1].rstrip(b"af").decode() == number else number
    return GpuCode(sass=(arch,), entries=1)
