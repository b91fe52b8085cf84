"""`airbundle split` and `join`: other parts, the same payload; and a whole bundle as one tar file."""

import hashlib
import subprocess
import tarfile

import pytest

from airbundle.splitting import part_blocks, repart, write_tar
from airbundle_onsite.contract import layout
from airbundle_onsite.errors import IntegrityError, TrustError, UsageError
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import trust
from airbundle_onsite.verify.parts import check_parts
from parts.bundles import flip, make_bundle, outer_entry, snapshot
from parts.keys import make_key, sign
from parts.shells import install_sh

FILES = {"models/m/w": bytes(range(251)) * 12_000, "config/a.txt": b"a"}


@pytest.fixture
def bundle(tmp_path):
    return make_bundle(tmp_path / "bundle", FILES, part_size=1_000_000)


def payload(directory):
    return b"".join(path.read_bytes() for path in sorted(directory.glob("payload.tar.*")))


@pytest.mark.parametrize(("part_size", "count"), [(400_000, 8), (2_999_999, 2), (0, 1)])
def test_other_parts_with_the_same_payload(bundle, tmp_path, part_size, count):
    before = snapshot(bundle)
    made = repart(bundle, tmp_path / "out", part_size=part_size, keys=(), talk=Silent())
    new = tmp_path / "out" / "demo-1"
    assert (made.directory, made.parts) == (str(new), count)
    assert payload(new) == payload(bundle)
    trusted = trust(new)
    assert all(check.status == "pass" for check in check_parts(trusted, Silent()))
    old = trust(bundle).manifest
    assert (trusted.manifest.files, trusted.manifest.sequence) == (old.files, old.sequence)
    assert snapshot(bundle) == before
    done = install_sh(new, "--verify", env={"AIRBUNDLE_PYTHON": "none", "PATH": "/usr/bin:/bin"}, python="none")
    assert done.returncode == 0, done.stdout  # install.sh knows the new number of parts
    assert subprocess.run(["sha256sum", "-c", "--quiet", layout.CHECKSUMS], cwd=new, check=False).returncode == 0


def test_there_and_back_gives_the_same_bytes(bundle, tmp_path):
    repart(bundle, tmp_path / "one", part_size=0, keys=(), talk=Silent())
    repart(tmp_path / "one/demo-1", tmp_path / "two", part_size=1_000_000, keys=(), talk=Silent())
    again = {path.name: path.read_bytes() for path in (tmp_path / "two/demo-1").iterdir()}
    assert again == {path.name: path.read_bytes() for path in bundle.iterdir()}


def test_the_old_signature_goes_and_a_new_key_signs(bundle, tmp_path):
    old, new = make_key(tmp_path, "old"), make_key(tmp_path, "new")
    sign(bundle, old)
    unsigned = repart(bundle, tmp_path / "a", part_size=0, keys=(), talk=Silent())
    assert (unsigned.was_signed, unsigned.signed_by) == (True, ())
    assert not (tmp_path / "a/demo-1" / layout.SIGNATURE).exists()
    signed = repart(bundle, tmp_path / "b", part_size=0, keys=[new.signing], talk=Silent())
    assert signed.signed_by == (new.fingerprint,)
    assert trust(tmp_path / "b/demo-1", new.line.encode()).signer
    with pytest.raises(TrustError):
        trust(tmp_path / "b/demo-1", old.line.encode())


def test_whoever_must_have_signed_the_old_one_must_have(bundle, tmp_path):
    stranger, office = make_key(tmp_path, "stranger"), make_key(tmp_path, "office")
    sign(bundle, stranger)
    with pytest.raises(TrustError):
        repart(bundle, tmp_path / "a", part_size=0, keys=(), talk=Silent(), allowed_signers=office.line.encode())
    assert not (tmp_path / "a").exists()


def test_a_bad_piece_ends_it_and_leaves_nothing(bundle, tmp_path):
    flip(bundle / "payload.tar.002", 9)
    with pytest.raises(IntegrityError, match=r"payload\.tar\.002, piece 1 of 1"):
        repart(bundle, tmp_path / "out", part_size=0, keys=(), talk=Silent())
    with pytest.raises(IntegrityError, match=r"payload\.tar\.002, piece 1 of 1"):
        write_tar(bundle, tmp_path / "out" / "x.tar", Silent())
    assert list((tmp_path / "out").iterdir()) == []


def test_the_page_that_lists_the_old_parts_is_left_out(tmp_path):
    def with_page(manifest):
        from dataclasses import replace

        return replace(manifest, outer=(outer_entry(layout.CONTENTS, b"<html>"), *manifest.outer))

    bundle = make_bundle(tmp_path / "bundle", FILES, edit=with_page)
    (bundle / layout.CONTENTS).write_bytes(b"<html>")
    made = repart(bundle, tmp_path / "out", part_size=1_000_000, keys=(), talk=Silent())
    assert made.left_out == (layout.CONTENTS,)
    assert not (tmp_path / "out/demo-1" / layout.CONTENTS).exists()
    trust(tmp_path / "out/demo-1")


def test_one_tar_file_gives_the_directory_back(bundle, tmp_path):
    sign(bundle, make_key(tmp_path, "office"))
    size = write_tar(bundle, tmp_path / "demo.tar", Silent())
    assert size == (tmp_path / "demo.tar").stat().st_size
    (tmp_path / "x").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "demo.tar", "-C", tmp_path / "x"], check=True, timeout=60)
    back = {path.name: path.read_bytes() for path in (tmp_path / "x/demo-1").iterdir()}
    assert back == {path.name: path.read_bytes() for path in bundle.iterdir()}
    assert trust(tmp_path / "x/demo-1").signer
    with tarfile.open(tmp_path / "demo.tar") as archive:
        names = archive.getnames()
    assert names[-4:] == [f"demo-1/payload.tar.{number:03d}" for number in range(4)]


def test_the_same_bundle_gives_the_same_tar(bundle, tmp_path):
    for name in ("a.tar", "b.tar"):
        write_tar(bundle, tmp_path / name, Silent())
    one, two = (hashlib.sha256((tmp_path / name).read_bytes()).digest() for name in ("a.tar", "b.tar"))
    assert one == two


def test_nothing_is_overwritten(bundle, tmp_path):
    (tmp_path / "demo.tar").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        write_tar(bundle, tmp_path / "demo.tar", Silent())
    (tmp_path / "out/demo-1").mkdir(parents=True)
    with pytest.raises(UsageError, match="exists already"):
        repart(bundle, tmp_path / "out", part_size=0, keys=(), talk=Silent())


@pytest.mark.parametrize("offset", [0, 1, 999_999, 1_000_000])
def test_a_part_from_somewhere_on(bundle, offset):
    data = (bundle / "payload.tar.001").read_bytes()
    assert b"".join(part_blocks(trust(bundle), "payload.tar.001", offset)) == data[offset:]
