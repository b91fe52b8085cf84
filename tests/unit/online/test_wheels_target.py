"""Tags, markers and levels of a target that is not here."""

from __future__ import annotations

import pytest
from packaging.tags import Tag

from airbundle.wheels.target import Target, make_target, needed_glibc
from airbundle_onsite.errors import UsageError

TARGET = Target("3.12", "x86_64", "2.31")


@pytest.mark.parametrize(
    "tags",
    [
        "cp312-cp312-manylinux_2_31_x86_64",
        "cp312-cp312-manylinux_2_28_x86_64",
        "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64",
        "cp312-cp312-manylinux2014_x86_64",
        "cp312-cp312-manylinux2010_x86_64",
        "cp312-cp312-manylinux1_x86_64",
        "cp312-cp312-manylinux_2_5_x86_64",
        "cp312-cp312-linux_x86_64",
        "cp38-abi3-manylinux2014_x86_64",
        "cp312-abi3-manylinux_2_28_x86_64",
        "cp312-none-manylinux_2_28_x86_64",
        "py3-none-manylinux_2_28_x86_64",
        "py2.py3-none-any",
        "cp312-none-any",
    ],
)
def test_every_tag_down_to_the_oldest_fits(tags: str) -> None:
    assert TARGET.best([f"x-1-{tags}.whl"]) is not None


@pytest.mark.parametrize(
    "tags",
    [
        "cp312-cp312-manylinux_2_32_x86_64",
        "cp312-cp312-manylinux_2_17_aarch64",
        "cp312-cp312-musllinux_1_2_x86_64",
        "cp311-cp311-manylinux_2_17_x86_64",
        "cp313-abi3-manylinux_2_17_x86_64",
        "cp312-cp312t-manylinux_2_17_x86_64",
        "cp312-cp312-win_amd64",
        "py2-none-any",
    ],
)
def test_what_cannot_be_installed_there_does_not_fit(tags: str) -> None:
    assert TARGET.best([f"x-1-{tags}.whl"]) is None


def test_the_nearest_tag_is_taken() -> None:
    names = [
        "x-1-py3-none-any.whl",
        "x-1-cp312-cp312-manylinux1_x86_64.whl",
        "x-1-cp312-cp312-manylinux_2_28_x86_64.whl",
    ]
    assert TARGET.best(names) == names[2]
    assert Target("3.12", "x86_64", "2.27").best(names) == names[1]


def test_legacy_names_follow_their_level() -> None:
    rank = Target("3.12", "x86_64", "2.12").rank()
    assert Tag("cp312", "cp312", "manylinux2010_x86_64") in rank
    assert Tag("cp312", "cp312", "manylinux2014_x86_64") not in rank
    arm = Target("3.12", "aarch64", "2.28").rank()
    assert Tag("cp312", "cp312", "manylinux2014_aarch64") in arm
    assert Tag("cp312", "cp312", "manylinux_2_12_aarch64") not in arm


@pytest.mark.parametrize(
    ("name", "glibc"),
    [
        ("x-1-cp312-cp312-manylinux_2_34_x86_64.whl", "2.34"),
        ("x-1-cp312-cp312-manylinux_2_28_x86_64.manylinux_2_34_x86_64.whl", "2.28"),
        ("x-1-cp312-cp312-manylinux2014_x86_64.whl", "2.17"),
        ("x-1-py3-none-any.whl", "2.5"),
        ("x-1-cp311-cp311-manylinux_2_34_x86_64.whl", None),
    ],
)
def test_the_glibc_that_a_wheel_needs(name: str, glibc: str | None) -> None:
    assert needed_glibc(name, TARGET) == glibc


def test_the_platform_asked_of_uv_never_has_fewer_tags() -> None:
    levels = {minor: Target("3.12", "x86_64", f"2.{minor}").uv_platform() for minor in (5, 17, 27, 28, 29, 31, 40, 41)}
    assert [text.rpartition("_")[2] for text in levels.values()] == ["17", "17", "28", "28", "31", "31", "40", "40"]


def test_markers_are_complete_and_cover_every_patch_release() -> None:
    first, last = TARGET.environments()
    assert (first["python_full_version"], last["python_full_version"]) == ("3.12.0", "3.12.99")
    assert {name for name, value in first.items() if not value} == {"platform_release", "platform_version"}
    assert len(first) == 11


def test_what_cannot_be_a_target() -> None:
    with pytest.raises(UsageError, match="knows x86_64 and aarch64, not riscv64"):
        make_target("3.12", "riscv64", "2.39")
    with pytest.raises(UsageError, match="glibc: nothing"):
        make_target("3.12", "x86_64", "")
    assert make_target("3.12", "x86_64", "2.31.1").glibc == "2.31"
