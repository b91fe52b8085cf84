"""Bundles of every released format, kept as they left: each must verify, install, and give up its files, for ever.

The ``demo`` ones are installed: v1 in full and in parts, v2 as a difference to it, v3 with compressed weights, v4 as a
single file, v5 with wheels and with the installer of its day, which also installs the others; one leads back from v4
to v1. ``make_frozen`` beside this file made them. ``frozen-v1`` is what ``airbundle build`` wrote before there were
compressed weights; it is verified, and its site's program installs what it can understand. Its wheels are stand-ins
that do not install. ``image-v1`` has a container image, which a docker engine takes. Each is signed by a key of the
office.
"""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from airbundle.signing import keygen
from airbundle_onsite.errors import TrustError
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import trust
from airbundle_onsite.verify.parts import check_parts
from airbundle_onsite.verify.stream import PayloadReader
from parts import sites

FORMATS = sorted(Path(__file__).parent.glob("format-*"))
ANSWERING = ("demo-v1", "demo-v2", "demo-v3", "demo-v4", "demo-v5")
BACK = "demo-v1-from-v4"
IMAGE = "image-v1"
FROZEN = sorted(path.parent for folder in FORMATS for path in folder.glob("*/bundle.json"))


def _named(path):
    return f"{path.parent.name}-{path.name}"


def _signers(bundle):
    return (bundle.parent / "allowed_signers").read_bytes()


@pytest.fixture
def site(tmp_path):
    with sites.site(tmp_path / "site") as made:
        yield made


def _install(site, bundle, signers):
    return site.install(bundle, "--allowed-signers", signers)


def _old(site, argv, folder):
    """A run of an installer of then, which brings all of its own code."""
    words = ["--yes", "--root", site.root, "--port", site.port, "--allowed-signers", folder / "allowed_signers"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    argv = [str(word) for word in (*argv, *words)]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, env=environ)


def _unpacked(folder, name, target):
    """The directory of a bundle; one that is a single file is unpacked below `target`."""
    if (folder / name).is_dir():
        return folder / name
    with tarfile.open(folder / f"{name}.tar") as archive:
        archive.extractall(target, filter="data")
    return target / name


def _require_wheels(site):
    python = site.root / "releases/demo/v5/venv/bin/python"
    argv = [str(python), "-I", "-c", "import answering; print(answering.VERSION)"]
    assert subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout == "1.0\n"


def _require_whole(site, bundle):
    """The release answers, and each of its files is what the bundle's manifest says."""
    manifest = trust(bundle).manifest
    assert (site.current(), site.answer()) == (manifest.version, f"Paris, says {manifest.version}")
    _require_files(site.root, manifest)


def _require_files(root, manifest):
    """Whatever is no image lies in the release as listed."""
    release = root / "releases" / manifest.name / manifest.version
    files = [each for each in manifest.files if each.role != "image"]
    found = {each.path: hashlib.sha256((release / each.path).read_bytes()).hexdigest() for each in files}
    assert found == {each.path: each.sha256 for each in files}


def test_every_kind_of_bundle_is_among_them():
    assert [folder.name for folder in FORMATS][:1] == ["format-1"]
    kinds = {bundle.name: trust(bundle, _signers(bundle)).manifest for bundle in FROZEN}
    assert list(kinds)[:7] == ["demo-v1", BACK, "demo-v2", "demo-v3", "demo-v5", "frozen-v1", IMAGE]
    assert len(kinds["demo-v1"].payload.parts) == 2
    assert [base.version for base in kinds["demo-v2"].bases] == ["v1"]
    assert kinds["demo-v3"].features == ("byte-planes",)
    assert [base.version for base in kinds[BACK].bases] == [kinds[BACK].rollback.version] == ["v4"]
    assert kinds["demo-v5"].launch[0].wheels
    assert len(kinds["demo-v5"].wheels) == len(kinds["frozen-v1"].wheels) == 2
    assert [image.name for image in kinds[IMAGE].images] == ["airbundle-test/frozen:1"]
    assert (FORMATS[0] / "demo-v4.tar").is_file()


def test_their_maker_makes_as_many_for_the_next_format(tmp_path):
    pair = keygen(tmp_path / "key", "office", "")
    script, tests = Path(__file__).parent / "make_frozen.py", Path(__file__).parents[1]
    argv = [sys.executable, str(script), str(tmp_path / "made"), pair.private]
    paths = os.pathsep.join([str(tests), *sys.path])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    made = sorted(path.name.removesuffix(".tar") for path in (tmp_path / "made").iterdir())
    assert made == sorted([*ANSWERING, BACK, IMAGE])
    for path in (tmp_path / "made").glob("*/bundle.json"):
        made = trust(path.parent, f"{pair.allowed_signers}\n".encode()).manifest
        assert made.features == trust(FORMATS[-1] / path.parent.name).manifest.features
    again = subprocess.run(argv, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": paths})
    assert "which stay as they are" in again.stderr


@pytest.mark.parametrize("bundle", FROZEN, ids=_named)
def test_it_verifies_and_its_files_are_what_the_manifest_says(bundle):
    trusted = trust(bundle, _signers(bundle))
    assert trusted.signer.startswith("office SHA256:")
    assert {check.status for check in check_parts(trusted, Silent())} == {"pass"}
    for entry, chunks in PayloadReader(trusted, Silent()).files():
        content = b"".join(chunks)
        assert len(content) == entry.packed
        if entry.is_plain:
            assert hashlib.sha256(content).hexdigest() == entry.sha256


@pytest.mark.parametrize("bundle", FROZEN, ids=_named)
def test_another_signer_is_refused(bundle):
    stranger = b"stranger ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMLad6rsmXGWb6XSbY+QxjJ21lkxHjheCz/iFOpluMuM\n"
    with pytest.raises(TrustError):
        trust(bundle, stranger)


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_each_installs_after_the_other(folder, site):
    """In full, by difference to what is there by now, compressed, out of a single file, and with wheels."""
    for name in ANSWERING:
        bundle = _unpacked(folder, name, site.root.parent)
        done = _install(site, bundle, folder / "allowed_signers")
        assert done.code == 0, done
        _require_whole(site, bundle)
    _require_wheels(site)
    assert site.run("--rollback", "--yes").code == 0
    assert site.answer() == "Paris, says v4"
    assert site.leftovers() == []


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_one_installs_by_its_own_installer(folder, site):
    done = _old(site, ["bash", folder / "demo-v5" / "install.sh"], folder)
    assert done.returncode == 0, done.stderr
    _require_whole(site, folder / "demo-v5")
    _require_wheels(site)


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_what_a_program_of_then_installed_the_present_one_goes_on_with(folder, site):
    program = [sys.executable, folder / "demo-v5" / "onsite.pyz", "--bundle"]
    for name in ANSWERING[:4]:
        bundle = _unpacked(folder, name, site.root.parent)
        done = _old(site, [*program, bundle], folder)
        assert done.returncode == 0, done.stderr
        _require_whole(site, bundle)
    done = _install(site, folder / "demo-v5", folder / "allowed_signers")
    assert done.code == 0, done
    _require_whole(site, folder / "demo-v5")
    assert site.run("--rollback", "v2", "--yes").code == 0
    assert site.answer() == "Paris, says v2"
    assert site.leftovers() == []


def test_a_program_from_before_compression_installs_the_others_and_refuses_those(site):
    folder = FORMATS[0]
    program = [sys.executable, folder / "frozen-v1" / "onsite.pyz", "--bundle"]
    for name in ("demo-v1", "demo-v2"):
        done = _old(site, [*program, folder / name], folder)
        assert done.returncode == 0, done.stderr
        _require_whole(site, folder / name)
    done = _old(site, [*program, folder / "demo-v3"], folder)
    assert done.returncode == 5, done.stderr
    assert "use the install.sh of this very bundle" in done.stderr
    _require_whole(site, folder / "demo-v2")


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_one_leads_back_to_what_the_site_no_longer_has(folder, site):
    for name in ("demo-v1", "demo-v4"):
        bundle = _unpacked(folder, name, site.root.parent)
        assert _install(site, bundle, folder / "allowed_signers").code == 0
    assert site.run("--uninstall", "v1", "--yes").code == 0
    done = _install(site, folder / BACK, folder / "allowed_signers")
    assert done.code == 0, done
    _require_whole(site, folder / BACK)


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_a_difference_without_its_base_says_so(folder, site):
    done = _install(site, folder / "demo-v2", folder / "allowed_signers")
    assert done.code == 3, done
    assert "demo v1 is not installed" in done.err


@pytest.mark.parametrize("name", ["demo-v5", "frozen-v1"])
@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_its_own_installer_still_verifies_it(folder, name):
    argv = ["bash", folder / name / "install.sh", "--verify", "--json"]
    done = subprocess.run(
        [*map(str, argv), "--allowed-signers", str(folder / "allowed_signers")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, 3), done.stderr  # 3: the machine under test is less than the profile asks
    checks = [check for check in json.loads(done.stdout)["checks"] if check["id"].startswith("verify.")]
    assert {"verify.signature", "verify.part"} <= {check["id"] for check in checks}
    assert {check["status"] for check in checks} == {"pass"}


@pytest.mark.real("docker")
@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_an_engine_takes_the_image_of_one(folder, docker_engine, tmp_path):
    manifest, root = trust(folder / IMAGE).manifest, tmp_path / "site"
    words = ["--stage", "--yes", "--root", root, "--allowed-signers", folder / "allowed_signers"]
    argv = [sys.executable, "-m", "airbundle_onsite", "--bundle", folder / IMAGE, *words]
    environ = {**os.environ, "DOCKER_HOST": docker_engine.host}
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0, done.stderr
    (image,) = manifest.images
    assert docker_engine.run("inspect", "-f", "{{.Id}}", image.name).stdout.strip() == image.config_digest
    _require_files(root, manifest)
    docker_engine.run("rmi", image.name)
