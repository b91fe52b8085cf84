"""The fat binary reader, on headers that nvcc wrote and on containers made here."""

from __future__ import annotations

import base64
import io
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airbundle.prove.facts import GpuCode, Ptx
from airbundle.prove.fatbin import merge_relocatable, read_cubin, read_fatbins, read_ptx_text
from parts.native import LTO, PTX, SASS, make_cubin, make_fatbin

NVCC_13_0 = zlib.decompress(
    base64.b85decode(
        "c-rmTu};G<6ouh)9Ri5}$&nZsJ23PyvbAFt7G@rR5y8UPXX-muVgVthI%%Z(0s;2?pJX|Xax>ga$BMh%?bZ~vS!obt)~0!RA*Yh5%hrtm00"
        "02se=OyUK2Lm%>-RL;;i}eMo-<yet9!P?yrzXNuf1M=&ugxaiZlxV0001Hn7cLR=+7*7-@DwsaCIAU_hkNlNb~j8@m@RTZ`V&P?5Fy^pEtv"
        "c>NJ8Wl%<L@vrwe<sp;grN}mP*000000Kkm>wh#H3J=ZAywGU~N`;Z-d1^@s60002y?CZJCH%*=E^mR}CU+U}u^7a;="
    )
)
"""Written by nvcc 13.0.88 for one small kernel; the payloads are set to zero, the headers are as they were."""


def read(data: bytes) -> GpuCode:
    return read_fatbins(io.BytesIO(data), [(0, len(data))])


def test_headers_by_nvcc() -> None:
    code = read(NVCC_13_0)
    assert code.sass == ("80", "90a", "100f", "120a")
    assert code.ptx == (Ptx("90", "9.0"), Ptx("90a", "9.0"), Ptx("100f", "9.0"))
    assert (code.lto, code.entries, code.unread) == ((), 7, 0)


def test_several_containers_with_padding_between() -> None:
    data = make_fatbin((SASS, "70")) + bytes(40) + make_fatbin((SASS, "86"), (PTX, "86", "8.1")) + bytes(200_000)
    data += make_fatbin((PTX, "86", "7.8"), (LTO, "90a"))
    code = read(data)
    assert (code.sass, code.lto, code.entries, code.unread) == (("70", "86"), ("90a",), 5, 0)
    assert code.ptx == (Ptx("86", "7.8"),), "the oldest version counts: any driver that takes it can run something"


def test_only_the_spans_asked_for_are_read() -> None:
    first, second = make_fatbin((SASS, "75")), make_fatbin((SASS, "80"))
    assert read_fatbins(io.BytesIO(first + second), [(len(first), len(second))]).sass == ("80",)
    assert read_fatbins(io.BytesIO(first + second), []) == GpuCode()


def test_a_strange_piece_is_counted_and_hides_nothing() -> None:
    code = read(b"\x01strange" * 1000 + make_fatbin((SASS, "90")))
    assert (code.sass, code.unread) == (("90",), 8000)


def test_a_container_that_goes_beyond_its_section_is_unread() -> None:
    data = make_fatbin((SASS, "90"), (SASS, "100"))
    assert read(data[:-8]) == GpuCode(unread=len(data) - 8)


def test_an_entry_that_goes_beyond_its_container_is_unread() -> None:
    data = bytearray(make_fatbin((SASS, "90"), (SASS, "100")))
    at = 16 + 64 + 24
    data[at + 8 : at + 16] = (1 << 40).to_bytes(8, "little")
    code = read(bytes(data))
    assert (code.sass, code.unread) == (("90",), 64 + 24)


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 400), value=st.integers(0, 255), cut=st.integers(0, 400))
def test_any_bytes_end_the_walk(at: int, value: int, cut: int) -> None:
    data = bytearray(make_fatbin((SASS, "75"), (PTX, "75", "8.0")) + make_fatbin((SASS, "90a"), (LTO, "90")))
    data[min(at, len(data) - 1)] = value
    code = read(bytes(data[: len(data) - min(cut, len(data))]))
    assert code.entries <= 4
    assert 0 <= code.unread <= len(data)


def test_relocatable_machine_code_counts_only_where_it_was_linked() -> None:
    linked = GpuCode(sass=("80",), entries=1)
    relocatable = GpuCode(sass=("80", "90"), ptx=(Ptx("90", "8.0"),), entries=3)
    assert merge_relocatable(linked, relocatable) == GpuCode(sass=("80",), ptx=(Ptx("90", "8.0"),), entries=4)
    assert merge_relocatable(GpuCode(), relocatable) == relocatable


@pytest.mark.parametrize(
    ("number", "abi", "arguments", "arch"),
    [
        (70, 7, "", "70"),
        (80, 8, "-arch sm_80 -m 64", "80"),
        (90, 7, "-arch sm_90a -m 64", "90a"),
        (100, 8, "-arch sm_100f -m 64", "100f"),
        (90, 8, "-arch sm_100 of another tool", "90"),
    ],
)
def test_bare_machine_code(number: int, abi: int, arguments: str, arch: str) -> None:
    assert read_cubin(io.BytesIO(make_cubin(number, abi=abi, arguments=arguments))).sass == (arch,)


def test_ptx_source() -> None:
    text = b"//\n// Generated\n\n.version 8.4\n.target sm_90a\n.address_size 64\n"
    assert read_ptx_text(text).ptx == (Ptx("90a", "8.4"),)
    assert read_ptx_text(b"a text about .target sm_90") == GpuCode()
