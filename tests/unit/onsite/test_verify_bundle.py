"""The manifest is believed only after every rule held; every problem is named at once, and nothing is changed."""

import hashlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from airbundle_onsite.contract import layout
from airbundle_onsite.errors import ExitCode, IntegrityError, TrustError
from airbundle_onsite.verify import checksums
from airbundle_onsite.verify.bundle import structure_checks, trust
from parts.bundles import flip, make_bundle, seal, snapshot

FILES = {"models/m/weights.gguf": b"w" * 9000, "config/a.json": b"{}"}


@pytest.fixture
def bundle(tmp_path):
    return make_bundle(tmp_path / "bundle", FILES, part_size=4096)


def refused(directory, error=IntegrityError):
    """The error of `trust`, after making sure that looking changed nothing."""
    before = snapshot(directory)
    with pytest.raises(error) as caught:
        trust(directory)
    assert snapshot(directory) == before
    return caught.value


def test_a_whole_bundle_is_trusted(bundle):
    trusted = trust(bundle)
    assert (trusted.manifest.name, trusted.manifest.version, trusted.signer) == ("demo", "1", "")
    assert [entry.path for entry in trusted.manifest.files] == list(FILES)


def test_unsigned_is_a_warning(bundle):
    _, checks = structure_checks(bundle)
    assert {check.id: check.status for check in checks if check.status != "pass"} == {"verify.signature": "warn"}


def test_every_problem_is_named_at_once(bundle):
    (bundle / "payload.tar.001").unlink()
    (bundle / "payload.tar.000").write_bytes(b"short")
    flip(bundle / "README.txt", 3)
    (bundle / "notes.doc").write_bytes(b"x")
    error = refused(bundle)
    text = "\n".join(error.lines())
    assert error.exit_code == ExitCode.INTEGRITY
    for words in (
        "payload.tar.001: it is missing, needed 4096 bytes",
        "payload.tar.000: found 5 bytes, needed 4096",
        "README.txt: found SHA-256",
        "notes.doc: found a file that the bundle does not list",
        "copy it again",
    ):
        assert words in text
    assert len(error.details) == 4


def test_a_manifest_edited_after_the_build(bundle):
    path = bundle / layout.MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"name": "demo"', b'"name": "evil"'))
    error = refused(bundle)
    assert any(line.startswith("bundle.json: found SHA-256") for line in error.details)


def test_an_edited_manifest_is_never_parsed(bundle):
    (bundle / layout.MANIFEST).write_bytes(b"{not json")
    _, checks = structure_checks(bundle)
    assert not any("JSON" in check.summary for check in checks)


def test_checksums_edited(bundle):
    path = bundle / layout.CHECKSUMS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join("0" * 64 + line[64:] if "payload.tar.000" in line else line for line in lines))
    error = refused(bundle)
    assert error.details == (
        "SHA256SUMS: payload.tar.000: found SHA-256 0000000000000000…, needed "
        f"{trusted_part(bundle)[:16]}… by bundle.json",
    )


def trusted_part(bundle):
    manifest = structure_checks(bundle)[0].manifest
    return manifest.payload.parts[0].sha256


@pytest.mark.parametrize("name", [layout.MANIFEST, layout.CHECKSUMS, layout.INSTALLER, "payload.tar.000"])
@pytest.mark.parametrize(
    ("put", "words"),
    [
        (lambda path: None, "it is missing"),
        (lambda path: path.mkdir(), "found a directory"),
        (lambda path: path.symlink_to("/etc/passwd"), "found a symbolic link"),
        (os.mkfifo, "found a named pipe"),
    ],
    ids=["missing", "directory", "link", "pipe"],
)
def test_anything_in_place_of_a_file(bundle, name, put, words):
    (bundle / name).unlink()
    put(bundle / name)
    error = refused(bundle)
    assert any(line.startswith(f"{name}: ") and words in line for line in error.details), error.details


@pytest.mark.parametrize("name", [layout.CHECKSUMS, layout.MANIFEST])
def test_a_huge_file_is_not_read(bundle, name):
    os.truncate(bundle / name, 10 * 1024**4)
    with pytest.raises(IntegrityError, match="not a whole bundle") as caught:
        trust(bundle)
    assert any(f"{name}: found {10 * 1024**4} bytes, needed at most" in line for line in caught.value.details)


def test_not_a_directory(tmp_path):
    with pytest.raises(IntegrityError) as caught:
        trust(tmp_path / "nowhere")
    assert "nowhere" in str(caught.value)
    assert "holds install.sh and bundle.json" in caught.value.remedy


def test_files_this_user_may_not_read():
    """Root reads everything, so the test becomes another user for a moment."""
    with tempfile.TemporaryDirectory() as work:
        Path(work).chmod(0o755)
        bundle = make_bundle(Path(work) / "bundle", FILES)
        (bundle / layout.CHECKSUMS).chmod(0)
        user = os.geteuid()
        os.seteuid(user or 65534)
        try:
            with pytest.raises(IntegrityError) as caught:
                trust(bundle)
        finally:
            os.seteuid(user)
        assert f"{layout.CHECKSUMS}: this user may not read it" in caught.value.details


def test_debris_is_no_problem(bundle):
    for name in ("._payload.tar.000", ".DS_Store", "Thumbs.db"):
        (bundle / name).write_bytes(b"x")
    (bundle / "System Volume Information").mkdir()
    assert trust(bundle).manifest.name == "demo"
    listing = next(check for check in structure_checks(bundle)[1] if check.id == "verify.listing")
    assert "System Volume Information" in listing.summary


def test_the_manifest_is_returned_when_only_parts_are_wrong(bundle):
    (bundle / "payload.tar.001").unlink()
    trusted, checks = structure_checks(bundle)
    assert trusted is not None
    assert [check.id for check in checks if check.status == "fail"] == ["verify.listing"]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            lambda m: replace(m, files=tuple(replace(f, path="release.json") for f in m.files[:1])),
            "none of the folders",
        ),
        (lambda m: replace(m, files=(m.files[0], replace(m.files[1], path="models/m"))), "a file and a folder"),
        (lambda m: replace(m, payload=_other_piece(m.payload)), "two different SHA-256"),
    ],
    ids=["site's own record", "file and folder", "piece and part"],
)
def test_a_manifest_that_contradicts_itself(tmp_path, edit, words):
    error = refused(make_bundle(tmp_path / "bundle", FILES, part_size=4096, edit=edit))
    assert words in "\n".join(error.details)


def _other_piece(payload):
    first, *rest = payload.parts
    return replace(payload, parts=(replace(first, pieces=("0" * 64,)), *rest))


def test_a_newer_schema_says_so(bundle):
    path = bundle / layout.MANIFEST
    data = path.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 2')
    seal(bundle, trust(bundle).manifest)
    path.write_bytes(data)
    sums, _ = checksums.parse((bundle / layout.CHECKSUMS).read_bytes())
    sums[layout.MANIFEST] = hashlib.sha256(data).hexdigest()
    (bundle / layout.CHECKSUMS).write_bytes(checksums.text(sums))
    error = refused(bundle)
    assert "this tool reads version 1" in "\n".join(error.details)
    assert "install.sh of this very bundle" in error.remedy


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut short"),
        (b"0" * 64 + b"  bundle.json", "cut short"),
        (b"0" * 64 + b"  bundle.json\r\n", "CR LF"),
        (b"0" * 64 + b" *bundle.json\n", "line 1"),
        (b"0" * 63 + b"  bundle.json\n", "line 1"),
        (b"0" * 64 + b"  ../bundle.json\n", "line 1"),
        (b"0" * 64 + b"  /etc/passwd\n", "line 1"),
        ((b"0" * 64 + b"  bundle.json\n") * 2, "listed twice"),
        (b"0" * 64 + b"  SHA256SUMS\n", "cannot be listed"),
        (b"0" * 64 + b"  install.sh\n", "bundle.json is not listed"),
        (b"\xff\xfe\n", "line 1"),
    ],
)
def test_checksums_are_parsed_strictly(data, words):
    _, problems = checksums.parse(data)
    assert any(words in problem for problem in problems), problems


def test_signers_named_but_no_signature(bundle):
    with pytest.raises(TrustError) as caught:
        trust(bundle, b"alice ssh-ed25519 AAAA\n")
    assert caught.value.exit_code == ExitCode.TRUST
    assert "bundle.json.sig: it is missing" in caught.value.details[0]
