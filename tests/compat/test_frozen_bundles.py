"""Bundles of every released format, kept as they left: each must verify, and give up its files, for ever."""

import hashlib
from pathlib import Path

import pytest

from airbundle_onsite.errors import TrustError
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import trust
from airbundle_onsite.verify.parts import check_parts
from airbundle_onsite.verify.stream import PayloadReader

FROZEN = sorted(path.parent for path in Path(__file__).parent.glob("format-*/*/bundle.json"))


def _signers(bundle: Path) -> bytes:
    return (bundle.parent / "allowed_signers").read_bytes()


def test_the_first_format_is_among_them():
    assert [bundle.parent.name for bundle in FROZEN][:1] == ["format-1"]


@pytest.mark.parametrize("bundle", FROZEN, ids=lambda path: path.parent.name)
def test_it_verifies_and_its_files_are_what_the_manifest_says(bundle):
    trusted = trust(bundle, _signers(bundle))
    assert trusted.signer.startswith("office SHA256:")
    assert {check.status for check in check_parts(trusted, Silent())} == {"pass"}
    seen = {}
    for entry, chunks in PayloadReader(trusted, Silent()).files():
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
        seen[entry.path] = digest.hexdigest()
    assert seen == {entry.path: entry.sha256 for entry in trusted.manifest.files}


@pytest.mark.parametrize("bundle", FROZEN, ids=lambda path: path.parent.name)
def test_another_signer_is_refused(bundle):
    stranger = b"stranger ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMLad6rsmXGWb6XSbY+QxjJ21lkxHjheCz/iFOpluMuM\n"
    with pytest.raises(TrustError):
        trust(bundle, stranger)
