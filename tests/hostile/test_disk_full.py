"""A disk that fills up while a release is installed takes nothing away from the one that answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from parts.disks import Disks
from parts.sites import Site, release_bundle, site

MIB = 1024 * 1024


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Site]:
    """A site on a filesystem of 100 MiB, with v1 running."""
    with Disks() as disks, site(disks.ext4(100) / "root") as made:
        done = made.install(release_bundle(tmp_path, "v1"))
        assert done.code == 0, done
        yield made


def _tree(root: Path) -> list[str]:
    folders = [root / "releases", root / "weights", root / "staging"]
    return sorted(str(path) for folder in folders for path in folder.rglob("*"))


@pytest.mark.real("ext4")
def test_too_little_room_is_said_before_anything_is_written(small: Site, tmp_path: Path) -> None:
    before = _tree(small.root)
    done = small.install(release_bundle(tmp_path, "v2", weights=os.urandom(MIB), disk=200 * MIB))
    assert done.code == 3, done
    assert str(small.root.parent) in done.err
    assert "free" in done.err and "needed" in done.err
    assert (small.answer(), _tree(small.root)) == ("Paris, says v1", before)


@pytest.mark.real("ext4")
def test_a_disk_that_fills_up_midway_loses_only_the_new_release(small: Site, tmp_path: Path) -> None:
    before = _tree(small.root)
    # The bundle says that it needs little, as a file that another program writes meanwhile would make it.
    done = small.install(release_bundle(tmp_path, "v2", weights=os.urandom(110 * MIB), disk=MIB))
    assert done.code == 7, done
    assert str(small.root.parent) in done.err
    assert "is full" in done.err and "free after tidying up" in done.err
    assert "v1 was never stopped" in done.err
    assert (small.answer(), small.current()) == ("Paris, says v1", "v1")
    assert _tree(small.root) == before
    after = small.run("status")
    assert after.code == 0, after


@pytest.mark.real("ext4")
def test_a_full_disk_on_an_empty_site_leaves_no_release(tmp_path: Path) -> None:
    with Disks() as disks, site(disks.ext4(100) / "root") as fresh:
        done = fresh.install(release_bundle(tmp_path, "v1", weights=os.urandom(110 * MIB), disk=MIB))
        assert done.code == 8, done
        assert "is full" in done.err
        assert _tree(fresh.root) == [] or all("seen.json" in path for path in _tree(fresh.root))
        assert fresh.run("--bundle", release_bundle(tmp_path, "v2"), "--yes", "--port", fresh.port).code == 0
