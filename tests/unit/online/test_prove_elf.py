"""The ELF reader, on files made here and on the interpreter's own."""

from __future__ import annotations

import io
import platform
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airbundle.prove.elf import LINKED, RELOCATABLE, NotReadable, read_elf
from parts import native

LIBRARY = native.make_elf(
    "libdemo.so.2",
    ["libc.so.6", "libcudart.so.13"],
    search="$ORIGIN/../lib:/opt/lib",
    versions={"libc.so.6": ["GLIBC_2.17", "GLIBC_2.34"], "libstdc++.so.6": ["GLIBCXX_3.4.29", "CXXABI_1.3"]},
    weak=["CXXABI_1.3"],
    defines=["DEMO_1.0", "DEMO_1.1"],
    sections={".nv_fatbin": b"x" * 40, "__nv_relfatbin": b"y" * 24, ".other": b"z"},
)


def test_reads_what_the_loader_looks_at() -> None:
    facts, spans = read_elf(io.BytesIO(LIBRARY))
    assert (facts.machine, facts.bits, facts.soname) == ("x86_64", 64, "libdemo.so.2")
    assert facts.needed == ("libc.so.6", "libcudart.so.13")
    assert facts.search == ("$ORIGIN/../lib", "/opt/lib")
    assert facts.defines == ("DEMO_1.0", "DEMO_1.1")
    assert set(spans) == {LINKED, RELOCATABLE}
    ((offset, size),) = spans[LINKED]
    assert LIBRARY[offset : offset + size] == b"x" * 40


def test_weak_versions_are_not_needed() -> None:
    facts, _ = read_elf(io.BytesIO(LIBRARY))
    assert facts.versions == {"libc.so.6": ("GLIBC_2.17", "GLIBC_2.34"), "libstdc++.so.6": ("GLIBCXX_3.4.29",)}


@pytest.mark.parametrize(
    ("machine", "name"), [(native.X86_64, "x86_64"), (native.AARCH64, "aarch64"), (243, "riscv"), (native.CUDA, "cuda")]
)
def test_machine_is_called_as_uname_calls_it(machine: int, name: str) -> None:
    assert read_elf(io.BytesIO(native.make_elf(machine=machine)))[0].machine == name


def test_reads_the_interpreter_itself() -> None:
    with Path(sys.executable).resolve().open("rb") as handle:
        facts, spans = read_elf(handle)
    assert facts.machine == platform.machine()
    assert "libc.so.6" in facts.needed
    assert any(version.startswith("GLIBC_2.") for version in facts.versions["libc.so.6"])
    assert spans == {}


def test_a_cut_file_is_not_readable() -> None:
    with pytest.raises(NotReadable):
        read_elf(io.BytesIO(LIBRARY[: len(LIBRARY) // 2]))


@settings(max_examples=200, deadline=None)
@given(cut=st.integers(4, len(LIBRARY)), at=st.integers(4, len(LIBRARY) - 1), value=st.integers(0, 255))
@example(cut=len(LIBRARY), at=4, value=0)
def test_damage_is_never_more_than_not_readable(cut: int, at: int, value: int) -> None:
    damaged = bytearray(LIBRARY)
    damaged[at] = value
    try:
        read_elf(io.BytesIO(bytes(damaged[:cut])))
    except NotReadable as error:
        assert str(error)
