"""Version comparison, specifiers, wheel tags and GPU architectures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from airbundle_onsite.versions import compare, gpu_code_fits, numbers, satisfies, wheel_fits


def test_numbers_and_order() -> None:
    assert numbers("580.159.04") == (580, 159, 4)
    assert numbers("3.13.0rc1") == (3, 13, 0)
    assert numbers("podman") == ()
    assert compare("550.54.14", "550.54.9") == 1
    assert compare("2.9", "2.31") == -1  # not as text
    assert compare("3.10", "3.10.0") == 0


@pytest.mark.parametrize(
    ("specifier", "inside", "outside"),
    [
        (">=3.10,<3.14", ["3.10.0", "3.13.9"], ["3.9.18", "3.14.0", "3.100"]),
        ("", ["3.9", "2.7"], []),
        ("==3.11.*", ["3.11.0", "3.11.9"], ["3.1.1", "3.12.0"]),
        ("!=3.11.*", ["3.12.0"], ["3.11.4"]),
        ("~=3.10", ["3.10.0", "3.99"], ["3.9", "4.0"]),
        ("~=3.10.2", ["3.10.2", "3.10.9"], ["3.10.1", "3.11.0"]),
        (">3.10", ["3.11"], ["3.10", "3.10.0"]),
        ("<= 3.12 , != 3.11.3", ["3.12.0", "3.11.2"], ["3.12.1", "3.11.3"]),
    ],
)
def test_specifiers(specifier: str, inside: list[str], outside: list[str]) -> None:
    assert [version for version in inside if not satisfies(version, specifier)] == []
    assert [version for version in outside if satisfies(version, specifier)] == []


@pytest.mark.parametrize("specifier", ["3.10", ">=3.x", "=>3.10", ">=3.10.*", "~=3", "===3.10", ">=3.10;"])
def test_what_is_no_specifier_is_refused(specifier: str) -> None:
    with pytest.raises(ValueError, match="version specifier"):
        satisfies("3.11.2", specifier)


NUMBER = st.lists(st.integers(0, 12), min_size=2, max_size=3).map(lambda parts: ".".join(map(str, parts)))


@given(NUMBER, st.sampled_from([">=", "<=", "==", "!=", "<", ">", "~="]), NUMBER)
def test_agrees_with_the_reference_implementation(version: str, operator: str, wanted: str) -> None:
    assert satisfies(version, operator + wanted) == (Version(version) in SpecifierSet(operator + wanted))


@pytest.mark.parametrize(
    ("tags", "fits"),
    [
        ("cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        ("cp311-cp311-manylinux_2_28_x86_64", True),
        ("cp312-abi3-manylinux_2_17_x86_64", False),  # newer than the interpreter
        ("cp310-cp310-manylinux_2_17_x86_64", False),
        ("cp311-cp311t-manylinux_2_17_x86_64", False),
        ("py3-none-manylinux1_x86_64", True),
        ("py2.py3-none-any", True),
        ("py2-none-any", False),
        ("py312-none-any", False),
        ("cp311-none-any", True),
        ("pp311-pypy311_pp73-manylinux_2_17_x86_64", False),
        ("cp311-cp311-manylinux_2_39_x86_64", False),  # newer than the C library
        ("cp311-cp311-manylinux_2_17_aarch64", False),
        ("cp311-cp311-musllinux_1_2_x86_64", False),
        ("cp311-cp311-linux_x86_64", True),
        ("cp311-cp311-win_amd64", False),
        ("nonsense", False),
    ],
)
def test_wheel_tags(tags: str, fits: bool) -> None:
    assert wheel_fits(tags, python="3.11.2", machine="x86_64", glibc="2.36") is fits


def test_another_c_library_takes_pure_wheels_only() -> None:
    assert wheel_fits("py3-none-any", python="3.11.2", machine="x86_64", glibc=None)
    assert not wheel_fits("cp311-cp311-manylinux1_x86_64", python="3.11.2", machine="x86_64", glibc=None)


@pytest.mark.parametrize(
    ("architectures", "capability", "fits"),
    [
        (("8.0", "9.0", "12.0"), "7.0", False),
        (("8.0",), "8.6", True),  # a later minor version of the same major one
        (("8.6",), "8.0", False),
        (("8.0", "9.0"), "12.0", False),
        (("8.0", "9.0+PTX"), "12.0", True),
        (("9.0a",), "9.0", True),
        (("10.0a",), "10.3", False),
        (("10.0+PTX",), "9.0", False),
        ((), "7.0", True),  # unknown
        (("sm_80",), "8.0", False),
    ],
)
def test_gpu_architectures(architectures: tuple[str, ...], capability: str, fits: bool) -> None:
    assert gpu_code_fits(architectures, capability) is fits
