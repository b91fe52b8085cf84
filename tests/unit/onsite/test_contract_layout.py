"""Names that may stand beside bundle.json and inside the payload."""

import pytest

from airbundle_onsite.contract import layout


@pytest.mark.parametrize("name", ["install.sh", "payload.tar.000", "README.zh-CN.txt", "a_b-1.2"])
def test_outer_names(name):
    assert layout.is_outer_name(name)


@pytest.mark.parametrize("name", ["", ".hidden", "-rf", "a b", "a/b", "a\\b", "ü", "a:b", "..", "a\n"])
def test_names_that_a_stick_or_a_shell_would_trip_over(name):
    assert not layout.is_outer_name(name)


@pytest.mark.parametrize("path", ["a", "models/模型/x.gguf", "a/.hidden", "a b/c"])
def test_payload_paths(path):
    assert layout.is_payload_path(path)


@pytest.mark.parametrize("path", ["", "/a", "a/", "../a", "a/../b", "a//b", "./a", "a\\b", "a\nb", "a\x7f", "x" * 256])
def test_payload_paths_that_could_leave_their_root_or_hide(path):
    assert not layout.is_payload_path(path)


@pytest.mark.parametrize(
    "name", ["._install.sh", ".DS_Store", "System Volume Information", "$RECYCLE.BIN", "lost+found"]
)
def test_debris_of_operating_systems(name):
    assert layout.is_debris(name)


def test_parts_are_numbered_so_that_they_sort():
    names = [layout.part_name(index) for index in range(1000)]
    assert names == sorted(names)
    assert all(layout.PART_PATTERN.fullmatch(layout.part_name(index)) for index in (0, 999, 1000))
