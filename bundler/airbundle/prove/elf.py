"""Reads the dynamic-linking side of an ELF file: what it needs and what it provides."""

from __future__ import annotations

from typing import BinaryIO

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection

from airbundle.prove.facts import ElfFacts

MAGIC = b"\x7fELF"
EM_CUDA = 190
LINKED, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_386": "i686", "EM_ARM": "armv7l", "EM_CUDA": "cuda"}
# pyelftools follows the offsets of a damaged file into whatever is there.
_BROKEN = (
    ELFError,
    ConstructError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
_DYNAMIC = {"DT_NEEDED": "needed", "DT_SONAME": "soname", "DT_RPATH": "rpath", "DT_RUNPATH": "runpath"}
_WEAK = 2  # VER_FLG_WEAK
_BASE = 1  # VER_FLG_BASE: the file's own name, not a version of its symbols

Span = tuple[int, int]
"""Offset and size in the file."""

GpuSpans = dict[str, list[Span]]
"""By section name, `LINKED` or `RELOCATABLE`."""


class NotReadable(ValueError):
    """It begins like an ELF file but cannot be read as one, e.g. because it is cut short."""


def read_elf(handle: BinaryIO) -> tuple[ElfFacts, GpuSpans]:
    """Read one file.

    Args:
        handle: seekable.

    Returns:
        The facts, and where its sections of GPU code are.

    Raises:
        NotReadable: see there.
    """
    try:
        elf = ELFFile(handle)
        machine = elf.header["e_machine"]
        if machine in (EM_CUDA, "EM_CUDA"):
            return ElfFacts(machine="cuda", bits=elf.elfclass), {}
        needed, soname, search = _dynamic(elf)
        versions, defines, spans = _sections(elf)
    except _BROKEN as error:
        raise NotReadable(_reason(error)) from error
    facts = ElfFacts(
        machine=_MACHINES.get(str(machine), str(machine).removeprefix("EM_").lower()),
        bits=elf.elfclass,
        soname=soname,
        needed=needed,
        search=search,
        versions=versions,
        defines=defines,
    )
    return facts, spans


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else f"its tables point nowhere ({type(error).__name__})"


def _dynamic(elf: ELFFile) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """NEEDED, SONAME and search path; from the segment, which the loader uses too and stripping keeps."""
    found: dict[str, list[str]] = {}
    for segment in elf.iter_segments():
        if not isinstance(segment, DynamicSegment):
            continue
        for tag in segment.iter_tags():
            attribute = _DYNAMIC.get(str(tag.entry.d_tag))
            if attribute:
                found.setdefault(attribute, []).append(str(getattr(tag, attribute)))
    search = found.get("runpath") or found.get("rpath") or [""]
    needed = tuple(dict.fromkeys(found.get("needed", ())))
    return needed, found.get("soname", [""])[0], tuple(part for part in search[0].split(":") if part)


def _sections(elf: ELFFile) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...], GpuSpans]:
    """Versions needed, versions defined, and the spans of GPU code."""
    versions: dict[str, tuple[str, ...]] = {}
    defines: list[str] = []
    spans: GpuSpans = {}
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for library, entries in section.iter_versions():
                strong = [entry.name for entry in entries if not entry.entry.vna_flags & _WEAK]
                if strong and library.name:
                    versions[library.name] = tuple(sorted({*versions.get(library.name, ()), *strong}))
        elif isinstance(section, GNUVerDefSection):
            for definition, names in section.iter_versions():
                first = next(iter(names), None)
                if first is not None and not definition.entry.vd_flags & _BASE:
                    defines.append(first.name)
        elif section.name in (LINKED, RELOCATABLE) and section["sh_type"] != "SHT_NOBITS":
            spans.setdefault(section.name, []).append((section["sh_offset"], section["sh_size"]))
    return versions, tuple(sorted(defines)), spans
