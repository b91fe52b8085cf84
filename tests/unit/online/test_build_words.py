"""What `build` says when it cannot go on."""

from __future__ import annotations

import pytest

from airbundle.build import next_version


@pytest.mark.parametrize(
    ("version", "following"),
    [
        ("v1", "v2"),
        ("v9", "v10"),
        ("20261130-v1", "20261130-v2"),
        ("1.0.09", "1.0.10"),
        ("2.0-rc1.final", "2.0-rc2.final"),
        ("stable", "stable-v2"),
    ],
)
def test_the_version_that_could_follow(version: str, following: str) -> None:
    assert next_version(version) == following
