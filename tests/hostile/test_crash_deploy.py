"""kill -9 around every line of the journal: the next run finishes or undoes, and something always answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from parts.sites import BESIDE, Site, release_bundle, site

STEPS = ("begin", "staging", "staged", "prepared", "proving", "switching", "started", "activated", "done")
MOMENTS = [moment for step in STEPS for moment in (f"before {step}", step)]
STOP_FIRST = [moment for moment in MOMENTS if moment.split()[-1] in ("switching", "started", "activated")]
FLIPPED = ("before activated", "activated", "before done", "done")
"""From here on the new release is current, so the next run finishes instead of undoing."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    made = {version: release_bundle(folder, version, sequence=1) for version in ("v1", "v2")}
    made["v3"] = release_bundle(
        folder, "v3", sequence=1, memory=0
    )  # says nothing of its memory: the old one stops first
    return made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site") / "root") as made:
        yield made


@pytest.fixture
def one(shared: Site, bundles: dict[str, Path]) -> Site:
    """The shared site with v1 running and nothing else installed."""
    for version in ("v2", "v3"):
        if (shared.root / "releases/demo" / version).exists():
            if shared.current() == version:
                assert shared.run("activate", "v1", "--yes").code == 0
            assert shared.run("uninstall", version, "--yes").code == 0
    done = shared.install(bundles["v1"])
    assert done.code == 0, done
    assert (shared.answer(), shared.leftovers()) == ("Paris, says v1", [])
    return shared


def test_a_release_fits_beside_another_here(one: Site, bundles: dict[str, Path]) -> None:
    assert BESIDE > 0
    done = one.run("--bundle", bundles["v2"], "dry-run")
    assert "beside v1" in done.out, done


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_while_proving_beside(one: Site, bundles: dict[str, Path], moment: str) -> None:
    _killed_then_in_order(one, bundles["v2"], "v2", moment)


@pytest.mark.parametrize("moment", STOP_FIRST)
def test_killed_when_the_old_one_stops_first(one: Site, bundles: dict[str, Path], moment: str) -> None:
    _killed_then_in_order(one, bundles["v3"], "v3", moment)


def _killed_then_in_order(one: Site, bundle: Path, version: str, moment: str) -> None:
    killed = one.install(bundle, kill_at=moment)
    assert killed.code == -9, killed
    seen = one.run("status")  # reads only: neither stumbles over what it finds nor changes it
    assert seen.code in (0, 8), seen

    expected = version if moment in FLIPPED else "v1"
    recovered = one.run("start")
    assert recovered.code == 0, recovered
    assert one.answer() == f"Paris, says {expected}", recovered
    assert one.current() == expected
    assert one.leftovers() == [], recovered


@pytest.mark.parametrize("moment", ["staging", "proving", "switching", "started", "activated"])
def test_the_same_installation_again_is_all_it_takes(one: Site, bundles: dict[str, Path], moment: str) -> None:
    assert one.install(bundles["v2"], kill_at=moment).code == -9
    again = one.install(bundles["v2"])
    assert again.code == 0, again
    assert (one.answer(), one.current(), one.leftovers()) == ("Paris, says v2", "v2", [])
    back = one.run("rollback", "--yes")
    assert back.code == 0, back
    assert (one.answer(), one.current(), one.leftovers()) == ("Paris, says v1", "v1", [])


def test_killed_again_while_putting_things_in_order(one: Site, bundles: dict[str, Path]) -> None:
    assert one.install(bundles["v3"], kill_at="started").code == -9
    assert one.run("start", kill_at="before undone").code == -9
    assert one.run("start", kill_at="undone").code == -9
    done = one.run("start")
    assert done.code == 0, done
    assert (one.answer(), one.current(), one.leftovers()) == ("Paris, says v1", "v1", [])


@pytest.mark.parametrize("moment", ["begin", "staging", "staged", "prepared", "switching", "started"])
def test_the_very_first_installation_killed(tmp_path: Path, bundles: dict[str, Path], moment: str) -> None:
    with site(tmp_path / "root") as fresh:
        assert fresh.install(bundles["v1"], kill_at=moment).code == -9
        done = fresh.install(bundles["v1"])
        assert done.code == 0, done
        assert (fresh.answer(), fresh.current(), fresh.leftovers()) == ("Paris, says v1", "v1", [])


@pytest.mark.parametrize("moment", ["prepared", "proving", "switching", "started", "activated"])
def test_a_rollback_killed(one: Site, bundles: dict[str, Path], moment: str) -> None:
    assert one.install(bundles["v2"]).code == 0
    assert one.run("rollback", "--yes", kill_at=moment).code == -9
    done = one.run("start")
    assert done.code == 0, done
    expected = "v1" if moment == "activated" else "v2"
    assert (one.answer(), one.current(), one.leftovers()) == (f"Paris, says {expected}", expected, [])


@pytest.mark.parametrize("moment", ["staging", "switching", "started", "activated", "before done"])
def test_a_reinstallation_of_what_runs_killed(one: Site, bundles: dict[str, Path], tmp_path: Path, moment: str) -> None:
    other = release_bundle(tmp_path, "v1", sequence=1, answer="Paris, says v1 anew")
    assert one.install(other, "--reinstall", kill_at=moment).code == -9
    done = one.run("start")
    assert done.code == 0, done
    finished = moment in ("activated", "before done")
    assert one.answer() == ("Paris, says v1 anew" if finished else "Paris, says v1")
    assert one.leftovers() == []
    done = one.install(bundles["v1"], "--reinstall")
    assert (done.code, one.answer()) == (0, "Paris, says v1"), done
