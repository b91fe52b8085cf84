"""Bundles on real FAT32 and exFAT: written there, verified there, installed from there while it is read-only."""

import os
import shutil

import pytest

from airbundle_onsite.contract import layout
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import trust
from airbundle_onsite.verify.parts import check_parts
from parts.bundles import flip, snapshot
from parts.disks import stick
from parts.gguf import language_model
from parts.journeys import airbundle
from parts.shells import install_sh
from parts.sites import release_bundle, site
from parts.specs import write_spec

KINDS = [pytest.param(kind, marks=pytest.mark.real(kind)) for kind in ("fat", "exfat")]
WEIGHTS = b"GGUF" + os.urandom(3_000_000)


@pytest.fixture
def bundle(tmp_path):
    """Four parts."""
    return release_bundle(tmp_path / "office", "v1", weights=WEIGHTS, part_size=1_000_000)


def copied(source, target):
    """As ``cp -r`` does, without modes and times, which the medium has no place for."""
    target.mkdir()
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)


def install(here, bundle, *words):
    """As a person does: ``bash install.sh`` from the medium."""
    return install_sh(bundle, "--yes", "--root", str(here.root), "--port", str(here.port), *map(str, words))


@pytest.mark.parametrize("kind", KINDS)
def test_copied_verified_and_installed_read_only(kind, bundle, tmp_path):
    with stick(kind, 64) as medium, site(tmp_path / "root") as here:
        with medium.mounted() as mount:
            copied(bundle, mount / bundle.name)
        with medium.mounted(read_only=True) as mount:
            before = snapshot(mount)
            done = install_sh(mount / bundle.name, "--verify")
            assert done.returncode == 0, done.stdout
            done = install_sh(
                mount / bundle.name, "--verify", python=None, env={"AIRBUNDLE_PYTHON": "none", **os.environ}
            )
            assert done.returncode == 0, done.stdout
            done = install(here, mount / bundle.name)
            assert done.returncode == 0, done.stderr
            assert here.answer() == "Paris, says v1"
            assert snapshot(mount) == before


@pytest.mark.parametrize("kind", KINDS)
def test_damage_on_the_medium_is_mended_from_a_second_one(kind, bundle, tmp_path):
    """A worn-out stick, the request on a second, the answer on that one too: the first is never written to again."""
    with stick(kind, 64) as worn, stick(kind, 64) as courier, site(tmp_path / "root") as here:
        with worn.mounted() as mount:
            copied(bundle, mount / bundle.name)
            flip(mount / bundle.name / layout.part_name(2), 77)
        with worn.mounted(read_only=True) as mount, courier.mounted() as other:
            assert here.run("--bundle", mount / bundle.name, "--verify").code == 5
            done = here.run("--bundle", mount / bundle.name, "--repair-request", other / "request.json")
            assert done.code == 0, done
        with courier.mounted() as other:
            said = airbundle("repair", bundle, "--request", other / "request.json", "-o", tmp_path / "answer").check()
            assert "payload.tar.002, piece 1 of 1" in said.out
            copied(tmp_path / "answer/demo-v1-repair", other / "fix")
        with worn.mounted(read_only=True) as mount, courier.mounted(read_only=True) as other:
            done = install(here, mount / bundle.name, "--patch", other)
            assert done.returncode == 0, done.stderr
        assert here.answer() == "Paris, says v1"


@pytest.mark.parametrize("kind", KINDS)
def test_parts_on_two_media_of_which_neither_holds_all(kind, bundle, tmp_path):
    with stick(kind, 64) as first, stick(kind, 64) as second, site(tmp_path / "root") as here:
        with first.mounted() as one, second.mounted() as two:
            (one / bundle.name).mkdir()
            for path in bundle.iterdir():
                away = path.name in (layout.part_name(1), layout.part_name(3))
                shutil.copyfile(path, two / path.name if away else one / bundle.name / path.name)
        with first.mounted(read_only=True) as one, second.mounted(read_only=True) as two:
            assert install(here, one / bundle.name).returncode == 5
            done = install(here, one / bundle.name, "--from", two)
            assert done.returncode == 0, done.stderr
        assert here.answer() == "Paris, says v1"


@pytest.mark.real("exfat")
def test_built_split_and_repaired_straight_onto_exfat(bundle, tmp_path, wheel_index):
    """`-o` may be the stick itself: nothing there needs modes, links or locks that exFAT lacks."""
    (tmp_path / "m.gguf").write_bytes(language_model())
    spec = write_spec(tmp_path / "tiny.toml", wheel_index, tmp_path / "m.gguf")
    with stick("exfat", 64) as medium:
        with medium.mounted() as mount:
            airbundle("build", spec, "-o", mount).check()
            airbundle("split", bundle, "--part-size", "1500kB", "-o", mount / "split").check()
            airbundle("join", bundle, "--tar", mount / "demo.tar").check()
        with medium.mounted(read_only=True) as mount:
            assert sorted(path.name for path in mount.iterdir()) == ["demo.tar", "split", "tiny-v1"]
            for made in (mount / "tiny-v1", mount / "split/demo-v1"):
                assert all(check.status == "pass" for check in check_parts(trust(made), Silent()))


@pytest.mark.real("fat")
def test_names_of_a_bundle_of_a_repair_and_of_what_is_received_fit_fat(bundle, tmp_path):
    """Also unique ignoring case, and without the characters that FAT refuses."""
    flip(shutil.copytree(bundle, tmp_path / "bad") / layout.part_name(0), 3)
    with site(tmp_path / "root") as here, stick("fat", 64) as medium, medium.mounted() as mount:
        assert here.run("--bundle", tmp_path / "bad", "--repair-request", tmp_path / "r.json").code == 0
        airbundle("repair", bundle, "--request", tmp_path / "r.json", "-o", tmp_path / "answer").check()
        assert here.run("--bundle", bundle, "--receive", bundle).code == 0
        folders = (bundle, tmp_path / "answer/demo-v1-repair", here.root / "received/demo-v1")
        for number, folder in enumerate(folders):
            copied(folder, mount / str(number))
            names = sorted(path.name for path in folder.iterdir())
            assert sorted(path.name for path in (mount / str(number)).iterdir()) == names
