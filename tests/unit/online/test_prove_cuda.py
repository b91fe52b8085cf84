"""What runs where."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from airbundle.prove import cuda
from airbundle.prove.facts import version_key


@pytest.mark.parametrize(
    ("arch", "where", "sass", "ptx"),
    [
        ("80", (8, 0), True, True),
        ("80", (8, 6), True, True),
        ("86", (8, 0), False, False),
        ("86", (8, 9), True, True),
        ("80", (9, 0), False, True),
        ("90", (8, 9), False, False),
        ("90a", (9, 0), True, True),
        ("90a", (10, 0), False, False),
        ("100", (10, 3), True, True),
        ("100a", (10, 3), False, False),
        ("100f", (10, 3), True, True),
        ("100f", (12, 0), False, False),
        ("120f", (12, 1), True, True),
        ("100", (12, 0), False, True),
        ("52", (9, 0), False, True),
    ],
)
def test_code_on_gpus(arch: str, where: tuple[int, int], sass: bool, ptx: bool) -> None:
    assert (cuda.sass_runs(arch, where), cuda.ptx_runs(arch, where)) == (sass, ptx)


@pytest.mark.parametrize(
    ("driver", "version"),
    [
        ("525.60.13", "12.0"),
        ("525.60.12", "11.8"),
        ("535.183.01", "12.2"),
        ("550.54.15", "12.4"),
        ("570.26", "12.8"),
        ("580.159.04", "13.0"),
        ("580", "13.0"),
        ("999.1", "13.3"),
        ("440.33", ""),
        ("", ""),
    ],
)
def test_cuda_of_a_driver(driver: str, version: str) -> None:
    assert cuda.driver_cuda(driver) == version


def test_tables_grow_one_way() -> None:
    for name, values in (("drivers", cuda.table("cuda")["drivers"]), ("ptx", cuda.table("cuda")["ptx"])):
        pairs = [(version_key(key), version_key(value)) for key, value in values.items()]
        assert pairs == sorted(pairs), name
        assert [value for _, value in pairs] == sorted(value for _, value in pairs), name


def test_patterns_of_the_tables_compile() -> None:
    tables = [cuda.table(name) for name in ("cuda", "libraries", "packages")]

    def patterns(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            for key, item in value.items():
                if key in ("package", "file") and isinstance(item, str):
                    yield item
                yield from patterns(item)
        elif isinstance(value, list):
            for item in value:
                yield from patterns(item)

    found = [*patterns(tables), *cuda.table("cuda")["data_centre"]["names"]]
    assert len(found) > 10
    for pattern in found:
        re.compile(pattern)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", True),
        ("Tesla V100-SXM2-32GB", True),
        ("NVIDIA L40S", True),
        ("Tesla T4", True),
        ("NVIDIA GeForce RTX 4090", False),
        ("NVIDIA RTX A6000", False),
        ("NVIDIA RTX PRO 6000 Blackwell", False),
    ],
)
def test_data_centre_cards(name: str, expected: bool) -> None:
    assert cuda.is_data_centre([name]) is expected


ALTERNATIVES = "cuda>=12.8 brand=tesla,driver>=535,driver<536 brand=geforce,driver>=550,driver<551"


@pytest.mark.parametrize(
    ("requirement", "version", "driver", "data_centre", "met"),
    [
        ("", "11.4", "470.42.01", True, True),
        ("cuda>=12.8", "12.8", "570.26", False, True),
        ("cuda>=12.8", "12.4", "550.54.14", True, False),
        ("cuda>=12.8", "13.0", "580.65.06", False, True),
        (ALTERNATIVES, "12.2", "535.183.01", True, True),
        (ALTERNATIVES, "12.2", "535.183.01", False, False),
        (ALTERNATIVES, "12.4", "550.54.14", True, False),
        (ALTERNATIVES, "12.2", "", True, False),
        ("cuda>=9.0,arch>=7.0", "12.2", "535.183.01", True, True),
    ],
)
def test_requirement_of_an_image(requirement: str, version: str, driver: str, data_centre: bool, met: bool) -> None:
    assert cuda.requirement_met(requirement, cuda=version, driver=driver, data_centre=data_centre) is met
