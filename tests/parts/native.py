"""Writes tiny native files: ELF files with just what a dynamic loader looks at, and fat binaries of empty code."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

X86_64, AARCH64, CUDA = 62, 183, 190
PTX, SASS, LTO = 1, 2, 8
_SPECIFIC, _FAMILY = 1 << 20, 1 << 21


def make_elf(
    soname: str = "",
    needed: Sequence[str] = (),
    *,
    search: str = "",
    versions: Mapping[str, Sequence[str]] | None = None,
    weak: Sequence[str] = (),
    defines: Sequence[str] = (),
    sections: Mapping[str, bytes] | None = None,
    machine: int = X86_64,
) -> bytes:
    """A 64-bit shared library without code.

    Args:
        search: DT_RUNPATH.
        versions: symbol versions it needs, by library; those in `weak` are marked so.
        defines: symbol versions it defines.
        sections: further sections by name.
    """
    strings = _Strings()
    tags = [(1, strings.add(name)) for name in needed]
    tags += [(14, strings.add(soname))] if soname else []
    tags += [(29, strings.add(search))] if search else []
    need = _version_needs(versions or {}, set(weak), strings)
    define = _version_definitions(soname, defines, strings)
    image = bytearray(64 + 2 * 56)
    table: list[tuple[str, int, int, int, int, int]] = []  # name, type, offset, size, link, info

    def put(name: str, kind: int, data: bytes, link: int = 0, info: int = 0) -> int:
        image.extend(b"\0" * (-len(image) % 8))
        table.append((name, kind, len(image), len(data), link, info))
        image.extend(data)
        return table[-1][2]

    start = put(".dynstr", 3, bytes(strings.data))
    if versions:
        put(".gnu.version_r", 0x6FFFFFFE, need, link=1, info=len(versions))
    if defines:
        put(".gnu.version_d", 0x6FFFFFFD, define, link=1, info=len(defines) + 1)
    for name, data in (sections or {}).items():
        put(name, 1, data)
    tags += [(5, start), (10, len(strings.data)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    where = put(".dynamic", 6, dynamic, link=1)
    names = _Strings()
    offsets = [names.add(name) for name, *_ in table] + [names.add(".shstrtab")]
    put(".shstrtab", 3, bytes(names.data))
    headers = [bytes(64)]
    for offset, (_, kind, at, size, link, info) in zip(offsets, table, strict=True):
        headers.append(struct.pack("<IIQQQQIIQQ", offset, kind, 2, at, at, size, link, info, 8, 0))
    image.extend(b"\0" * (-len(image) % 8))
    shoff = len(image)
    image.extend(b"".join(headers))
    image[:64] = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01" + bytes(9),
        *(3, machine, 1, 0, 64, shoff, 0, 64, 56, 2, 64, len(headers), len(headers) - 1),
    )
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, len(image), len(image), 4096)
    image[64:176] = load + struct.pack("<IIQQQQQQ", 2, 4, where, where, where, len(dynamic), len(dynamic), 8)
    return bytes(image)


def make_fatbin(*entries: tuple[int, str] | tuple[int, str, str]) -> bytes:
    """One container; an entry is its kind, its architecture (``"90a"``), and for PTX the version (``"8.0"``)."""
    body = b"".join(_entry(*entry) for entry in entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def gpu_library(*entries: tuple[int, str] | tuple[int, str, str], needed: Iterable[str] = ("libc.so.6",)) -> bytes:
    """A shared library with one container of GPU code."""
    return make_elf("", tuple(needed), sections={".nv_fatbin": make_fatbin(*entries)})


def make_cubin(number: int, *, abi: int = 8, arguments: str = "") -> bytes:
    """Bare machine code for one architecture; `arguments` are the assembler's, as noted in it."""
    flags = number << 8 | 2 if abi >= 8 else number << 16 | 0x500 | number
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01\x41" + bytes([abi]) + bytes(7),
        *(2, CUDA, 1, 0, 0, 0, flags, 64, 0, 0, 64, 0, 0),
    )
    return head + b"\0ptxas\0" + arguments.encode() + b"\0"


def _entry(kind: int, arch: str, isa: str = "0.0", payload: bytes = b"\xcc" * 24) -> bytes:
    number = arch.rstrip("af")
    flags = 0x11 | {"": 0, "a": _SPECIFIC, "f": _FAMILY}[arch[len(number) :]]
    major, minor = map(int, isa.split("."))
    head = struct.pack(
        "<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(payload), 0, 0, minor, major, int(number), 0, 0, flags, 0, 0
    )
    return head + payload


class _Strings:
    """A string table."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0")

    def add(self, text: str) -> int:
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


def _version_needs(versions: Mapping[str, Sequence[str]], weak: set[str], strings: _Strings) -> bytes:
    parts = []
    for number, (library, names) in enumerate(versions.items(), 1):
        size = 16 + 16 * len(names)
        more = size if number < len(versions) else 0
        parts.append(struct.pack("<HHIII", 1, len(names), strings.add(library), 16, more))
        for count, name in enumerate(names, 1):
            flags = 2 if name in weak else 0
            parts.append(struct.pack("<IHHII", 0, flags, 2, strings.add(name), 16 if count < len(names) else 0))
    return b"".join(parts)


def _version_definitions(soname: str, names: Sequence[str], strings: _Strings) -> bytes:
    parts = []
    for number, name in enumerate([soname, *names]):
        more = 28 if number < len(names) else 0
        parts.append(struct.pack("<HHHHIII", 1, int(number == 0), number + 1, 1, 0, 20, more))
        parts.append(struct.pack("<II", strings.add(name), 0))
    return b"".join(parts)
