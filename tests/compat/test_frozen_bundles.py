"""Bundles of every released format, kept as they left: each must verify, install, and give up its files, for ever.

``frozen-v1`` is a whole bundle with its own installer. The ``demo`` ones are installed by the present one: v1 in full
and in parts, v2 as a difference to it, v3 with compressed weights, v4 as a single file. All are signed by one key.
"""

import hashlib
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from airbundle_onsite.errors import TrustError
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import trust
from airbundle_onsite.verify.parts import check_parts
from airbundle_onsite.verify.stream import PayloadReader
from parts import sites

FORMATS = sorted(Path(__file__).parent.glob("format-*"))
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


def _require_whole(site, bundle):
    """The release answers, and each of its files is what the bundle's manifest says."""
    manifest = trust(bundle).manifest
    assert (site.current(), site.answer()) == (manifest.version, f"Paris, says {manifest.version}")
    release = site.root / "releases" / manifest.name / manifest.version
    found = {each.path: hashlib.sha256((release / each.path).read_bytes()).hexdigest() for each in manifest.files}
    assert found == {each.path: each.sha256 for each in manifest.files}


def test_every_kind_of_bundle_is_among_them():
    assert [folder.name for folder in FORMATS][:1] == ["format-1"]
    kinds = {bundle.name: trust(bundle, _signers(bundle)).manifest for bundle in FROZEN}
    assert list(kinds)[:4] == ["demo-v1", "demo-v2", "demo-v3", "frozen-v1"]
    assert len(kinds["demo-v1"].payload.parts) == 2
    assert [base.version for base in kinds["demo-v2"].bases] == ["v1"]
    assert kinds["demo-v3"].features == ("byte-planes",)
    assert len(kinds["frozen-v1"].wheels) == 2


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
    """In full, by difference to what is there by now, compressed, and out of a single file."""
    signers = folder / "allowed_signers"
    for name in ("demo-v1", "demo-v2", "demo-v3"):
        done = _install(site, folder / name, signers)
        assert done.code == 0, done
        _require_whole(site, folder / name)
    with tarfile.open(folder / "demo-v4.tar") as archive:
        archive.extractall(site.root.parent, filter="data")
    done = _install(site, site.root.parent / "demo-v4", signers)
    assert done.code == 0, done
    _require_whole(site, site.root.parent / "demo-v4")
    assert site.run("--rollback", "--yes").code == 0
    assert site.answer() == "Paris, says v3"
    assert site.leftovers() == []


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_a_difference_without_its_base_says_so(folder, site):
    done = _install(site, folder / "demo-v2", folder / "allowed_signers")
    assert done.code == 3, done
    assert "demo v1 is not installed" in done.err


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_its_own_installer_still_runs(folder):
    argv = ["bash", folder / "frozen-v1" / "install.sh", "--verify", "--json"]
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
