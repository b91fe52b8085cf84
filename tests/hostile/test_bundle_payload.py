"""Payloads by a hostile builder: manifest, checksums and pieces all agree, yet the tar tries to get out."""

import hashlib
import json
import tarfile
from dataclasses import replace

import pytest

from airbundle_onsite.errors import ExitCode, IntegrityError
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import trust
from airbundle_onsite.verify.parts import check_parts
from airbundle_onsite.verify.stream import PayloadReader
from parts.bundles import make_bundle, snapshot, tar_member, tar_of

FILES = {"config/a": b"alpha" * 200, "models/m/b": b"beta" * 300}
A = (tar_member("config/a"), FILES["config/a"])
B = (tar_member("models/m/b"), FILES["models/m/b"])


def evil(name, kind=tarfile.REGTYPE, link="", data=b""):
    """A sound payload with one more entry between the two files."""
    return tar_of([A, (tar_member(name, kind, link), data), B])


def odd_header(field, value):
    """A sound payload but for bytes in the second header, whose checksum is made right again."""
    data = bytearray(tar_of([A, B]))
    header = data[1536:2048]
    header[field : field + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    data[1536:2048] = header
    return bytes(data)


PAYLOADS = {
    "parent": (evil("../../etc/cron.d/x", data=b"x"), "found '../../etc/cron.d/x', needed 'models/m/b'"),
    "absolute": (evil("/etc/cron.d/x", data=b"x"), "found '/etc/cron.d/x', needed 'models/m/b'"),
    "long parent": (evil("../" * 60 + "etc/x", data=b"x"), "needed 'models/m/b'"),
    "symlink": (evil("models/m", tarfile.SYMTYPE, "/etc"), "'models/m' is a symbolic link"),
    "symlink in place": (tar_of([A, (tar_member("models/m/b", tarfile.SYMTYPE, "/etc/passwd"), b"")]), "symbolic link"),
    "hardlink": (evil("models/m/b", tarfile.LNKTYPE, "/etc/shadow"), "is a hard link"),
    "character device": (evil("models/m/b", tarfile.CHRTYPE), "is a character device"),
    "block device": (evil("models/m/b", tarfile.BLKTYPE), "is a block device"),
    "fifo": (evil("models/m/b", tarfile.FIFOTYPE), "is a named pipe"),
    "directory": (evil("models", tarfile.DIRTYPE), "is a directory"),
    "sparse": (evil("models/m/b", tarfile.GNUTYPE_SPARSE), "is a GNU sparse file"),
    "unknown type": (evil("models/m/b", b"Z"), "unknown type"),
    "duplicate": (tar_of([A, A, B]), "found 'config/a', needed 'models/m/b'"),
    "case-colliding": (evil("CONFIG/A", data=b"x"), "found 'CONFIG/A'"),
    "wrong order": (tar_of([B, A]), "found 'models/m/b', needed 'config/a'"),
    "extra file": (tar_of([A, B, (tar_member("models/m/c"), b"c")]), "something follows the last file"),
    "missing file": (tar_of([A]), "it ends before models/m/b"),
    "nothing at all": (bytes(1024), "it ends before config/a"),
    "trailing garbage": (tar_of([A, B], tail=bytes(1024) + b"garbage!" * 64), "something follows the last file"),
    "garbage for an end": (tar_of([A, B], tail=b"garbage!" * 128), "something follows the last file"),
    "no end": (tar_of([A, B], tail=b""), "it ends with 0 bytes after the last file"),
    "half a block": (tar_of([A, B], tail=bytes(1300)), "it ends with 1300 bytes"),
    "cut inside a file": (tar_of([A, B], tail=b"")[:-600], "it ends at byte"),
    "wrong size": (tar_of([A, (tar_member("models/m/b"), FILES["models/m/b"] + b"x")]), "1201 bytes, needed 1200"),
    "wrong checksum": (tar_of([A]).replace(b"config/a", b"config/b", 1) + tar_of([B]), "wrong checksum"),
    "not a tar": (b"PK\3\4" * 1024, "not POSIX tar's"),
    "link target": (odd_header(157, b"/etc/passwd"), "has a link target"),
    "binary size": (odd_header(124, b"\x80" + bytes(11)), "the number"),
    "negative size": (odd_header(124, b"-0000000001\0"), "the number"),
    "padding": (tar_of([A, B]).replace(b"alpha" + bytes(24), b"alpha" + b"!" * 24), "followed by something"),
}


@pytest.mark.parametrize("case", PAYLOADS)
def test_refused(tmp_path, case):
    data, words = PAYLOADS[case]
    bundle = make_bundle(tmp_path / "bundle", FILES, raw_tar=data, part_size=700)
    before = snapshot(tmp_path)
    trusted = trust(bundle)
    assert all(check.status == "pass" for check in check_parts(trusted, Silent()))  # so the bytes are not to blame
    with pytest.raises(IntegrityError) as caught:
        for _, chunks in PayloadReader(trusted, Silent()).files():
            b"".join(chunks)
    assert caught.value.exit_code == ExitCode.INTEGRITY
    assert words in caught.value.summary, caught.value.summary
    assert "do not use this bundle" in caught.value.remedy
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "records",
    [
        {"linkpath": "/etc/passwd"},
        {"path": "../x"},
        {"size": "999999999999"},
        {"size": "-1"},
        {"size": "٣"},
        {"GNU.sparse.name": "x"},
        {"mtime": "1.5"},
    ],
    ids=str,
)
def test_extended_headers_may_only_repeat_the_manifest(tmp_path, records):
    hostile = tar_member("models/m/b")
    hostile.pax_headers = records
    bundle = make_bundle(tmp_path / "bundle", FILES, raw_tar=tar_of([A, (hostile, FILES["models/m/b"])]))
    with pytest.raises(IntegrityError, match="the payload is not what"):
        for _, chunks in PayloadReader(trust(bundle), Silent()).files():
            b"".join(chunks)


def test_a_global_extended_header(tmp_path):
    head = tarfile.TarInfo.create_pax_global_header({"path": "x"})
    bundle = make_bundle(tmp_path / "bundle", FILES, raw_tar=head + tar_of([A, B]))
    with pytest.raises(IntegrityError, match="a global extended header"):
        next(PayloadReader(trust(bundle), Silent()).files())


def test_offsets_that_do_not_agree(tmp_path):
    def edit(manifest):
        first, second = manifest.files
        moved = replace(second, segments=(replace(second.segments[0], offset=512),))
        return replace(manifest, files=(first, moved))

    bundle = make_bundle(tmp_path / "bundle", FILES, edit=edit)
    with pytest.raises(IntegrityError, match="models/m/b begins at byte 2048, needed 512"):
        for _, chunks in PayloadReader(trust(bundle), Silent()).files():
            b"".join(chunks)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "models/../x", "models//x", "models/./x", "", "models/x\n", "a\\b"])
def test_a_manifest_with_a_path_that_leaves(tmp_path, path):
    bundle = make_bundle(tmp_path / "bundle", FILES)
    manifest = trust(bundle).manifest
    text = (bundle / "bundle.json").read_bytes()
    assert manifest.files[0].path == "config/a"
    _reseal(bundle, text.replace(b'"path": "config/a"', b'"path": ' + _json(path)))
    with pytest.raises(IntegrityError) as caught:
        trust(bundle)
    assert "is not a plain relative path" in "\n".join(caught.value.details)


def test_a_manifest_with_case_colliding_paths(tmp_path):
    bundle = make_bundle(tmp_path / "bundle", FILES)
    text = (bundle / "bundle.json").read_bytes()
    _reseal(bundle, text.replace(b'"path": "config/a"', b'"path": "MODELS/M/B"'))
    with pytest.raises(IntegrityError) as caught:
        trust(bundle)
    assert "listed twice (case does not distinguish)" in "\n".join(caught.value.details)


def _json(text):
    return json.dumps(text).encode()


def _reseal(bundle, data):
    """Write a manifest that no builder of ours would, with a SHA256SUMS that vouches for it."""
    path = bundle / "SHA256SUMS"
    old = hashlib.sha256((bundle / "bundle.json").read_bytes()).hexdigest()
    (bundle / "bundle.json").write_bytes(data)
    path.write_text(path.read_text().replace(old, hashlib.sha256(data).hexdigest()))
