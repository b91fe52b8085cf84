"""A bundle by difference on its way: damaged and repaired, received part by part, checked before the base is there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from airbundle.cache import Cache
from airbundle.delta.base import read_base
from airbundle.delta.rebase import rebase
from airbundle.delta.thin import Difference
from airbundle_onsite.contract import layout
from airbundle_onsite.system import Silent
from parts import sites, tuned
from parts.bundles import flip, snapshot
from parts.journeys import airbundle
from parts.sites import Site, release_bundle

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with sites.site(tmp_path / "site") as made:
        yield made


@pytest.fixture
def bundles(tmp_path: Path) -> Mapping[str, Path]:
    """``full``: v1; ``thin``: v2 without what v1 has, in several parts."""
    first, second = tuned.tensors(60), tuned.tensors(60, changed=frozenset(range(20)))
    full = release_bundle(tmp_path, "v1", more=tuned.shards(first, 2))
    whole = release_bundle(tmp_path, "v2", more=tuned.shards(second, 2))
    cache = Cache(tmp_path / "cache")
    known = read_base(full, cache)
    made = rebase(whole, Difference(known), cache, tmp_path / "thin", part_size=1_000_000, talk=Silent())
    assert len(made.manifest.payload.parts) >= 3
    return {"full": full, "thin": made.directory}


def part(bundle: Path, number: int) -> Path:
    return bundle / layout.part_name(number)


def test_damage_is_repaired_with_just_its_pieces(site: Site, bundles: Mapping[str, Path], tmp_path: Path) -> None:
    thin, stick = bundles["thin"], tmp_path / "stick"
    assert site.install(bundles["full"]).code == 0
    shutil.copytree(thin, stick)
    flip(part(stick, 1), 99)
    before = snapshot(stick)
    assert site.install(stick).code == 5
    assert site.answer() == "Paris, says v1"

    assert site.run("--bundle", stick, "--repair-request", tmp_path / "request.json").code == 0
    said = airbundle("repair", thin, "--request", tmp_path / "request.json", "-o", tmp_path / "answer").check()
    assert "payload.tar.001, piece 1 of 1" in said.out
    answer = tmp_path / "answer/demo-v2-repair"
    assert [path.name for path in answer.glob("payload*")] == ["payload.tar.001.piece.00000"]

    done = site.install(stick, "--patch", answer)
    assert done.code == 0, done
    assert site.answer() == "Paris, says v2"
    assert snapshot(stick) == before


def test_received_part_by_part_it_installs_upon_its_base(
    site: Site, bundles: Mapping[str, Path], tmp_path: Path
) -> None:
    thin, small, inbox = bundles["thin"], tmp_path / "small", tmp_path / "inbox"
    assert site.install(bundles["full"]).code == 0
    small.mkdir()
    inbox.mkdir()
    for path in thin.iterdir():
        if not layout.PART_PATTERN.fullmatch(path.name):
            shutil.copy(path, small)
    for path in sorted(thin.glob("payload.tar.*"), reverse=True):
        arrived = Path(shutil.copy(path, inbox))
        done = site.run("--bundle", small, "--receive", arrived)
        assert done.code == 0, done
        arrived.unlink()
    assert "It is complete." in done.out
    shutil.rmtree(small)
    shutil.rmtree(thin)
    done = site.run("install", "--yes", "--port", site.port)
    assert done.code == 0, done
    assert site.answer() == "Paris, says v2"
    assert site.leftovers() == []


def test_it_is_received_whole_although_its_base_is_still_lacking(site: Site, bundles: Mapping[str, Path]) -> None:
    thin = bundles["thin"]
    assert site.run("--bundle", thin, "--receive", thin).code == 0
    area = site.root / "received/demo-v2"
    refused = site.install(area)
    assert refused.code == 3, refused
    assert "demo v1 is not installed under" in refused.err
    assert part(area, 0).exists() or list(area.glob("payload.tar.000.piece.*"))  # what was received is kept
    assert site.install(bundles["full"]).code == 0
    assert site.install(area).code == 0
    assert site.answer() == "Paris, says v2"
