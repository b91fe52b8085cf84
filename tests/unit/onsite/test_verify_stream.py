"""Files come out of the parts as they went in, and not a byte of a piece that is not proven."""

import hashlib
import io
import tarfile
import threading

import pytest

from airbundle_onsite.contract.layout import PIECE_SIZE
from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import trust
from airbundle_onsite.verify.stream import PayloadReader
from parts.bundles import flip, make_bundle

FILES = {
    "config/empty": b"",
    "models/m/" + "长" * 60 + ".gguf": bytes(range(256)) * 100,
    "models/m/" + "d" * 120 + "/" + "f" * 120: b"long",
    "models/m/one-block": b"x" * 512,
    "licenses/L": b"y" * 513,
}


def read(bundle):
    return {entry.path: b"".join(chunks) for entry, chunks in PayloadReader(trust(bundle), Silent()).files()}


@pytest.mark.parametrize("part_size", [0, 511, 512, 4096, 1000])
def test_files_come_out_as_they_went_in(tmp_path, part_size):
    assert read(make_bundle(tmp_path / "b", FILES, part_size=part_size)) == FILES


def test_an_empty_payload(tmp_path):
    assert read(make_bundle(tmp_path / "b", {})) == {}


def test_the_joined_parts_are_a_plain_tar(tmp_path):
    bundle = make_bundle(tmp_path / "b", FILES, part_size=4096)
    joined = b"".join(path.read_bytes() for path in sorted(bundle.glob("payload.tar.*")))
    with tarfile.open(fileobj=io.BytesIO(joined)) as archive:
        assert {member.name: archive.extractfile(member).read() for member in archive} == FILES


def test_chunks_are_small_and_stay_valid(tmp_path):
    size = PIECE_SIZE + 3 * 1024 * 1024
    data = hashlib.shake_256(b"seed").digest(size)
    bundle = make_bundle(tmp_path / "b", {"models/m/w": data}, part_size=PIECE_SIZE // 2 + 1)
    ((_, chunks),) = _listed(PayloadReader(trust(bundle), Silent()).files())
    assert max(map(len, chunks)) <= 1024 * 1024
    assert hashlib.sha256(b"".join(chunks)).digest() == hashlib.sha256(data).digest()


def _listed(files):
    return [(entry, list(chunks)) for entry, chunks in files]


def test_what_is_not_taken_is_skipped(tmp_path):
    bundle = make_bundle(tmp_path / "b", FILES, part_size=4096)
    seen = {}
    for entry, chunks in PayloadReader(trust(bundle), Silent()).files():
        if entry.path == "licenses/L":
            seen[entry.path] = b"".join(chunks)
        elif entry.size:
            next(iter(chunks))
    assert seen == {"licenses/L": FILES["licenses/L"]}


def test_ending_early_ends_the_threads(tmp_path):
    bundle = make_bundle(tmp_path / "b", FILES, part_size=1000)
    files = PayloadReader(trust(bundle), Silent()).files()
    next(files)
    files.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read-pieces")]


def test_nothing_of_a_bad_piece_is_seen(tmp_path):
    bundle = make_bundle(tmp_path / "b", {"models/m/a": b"a" * 2000, "models/m/b": b"b" * 6000}, part_size=4096)
    trusted = trust(bundle)
    flip(bundle / "payload.tar.001", 4000)
    seen = b""
    with pytest.raises(IntegrityError) as caught:
        for _, chunks in PayloadReader(trusted, Silent()).files():
            for chunk in chunks:
                seen += chunk
    assert caught.value.summary.startswith("payload.tar.001, piece 1 of 1 (bytes 0 to 4095) is bad: found SHA-256")
    assert "copy payload.tar.001 again" in caught.value.remedy
    assert len(seen) < 4096


def test_a_part_that_vanishes_or_shrinks(tmp_path):
    bundle = make_bundle(tmp_path / "b", FILES, part_size=4096)
    trusted = trust(bundle)
    part = bundle / "payload.tar.002"
    data = part.read_bytes()
    part.write_bytes(data[:100])
    with pytest.raises(IntegrityError, match=r"payload.tar.002.*ends after 100 of"):
        _listed(PayloadReader(trusted, Silent()).files())
    part.unlink()
    with pytest.raises(IntegrityError, match=r"payload.tar.002.*it is missing"):
        _listed(PayloadReader(trusted, Silent()).files())


def test_progress_reaches_the_end(tmp_path):
    seen = []

    class Talk(Silent):
        def progress(self, what, done, total):
            seen.append((done, total))

    trusted = trust(make_bundle(tmp_path / "b", FILES, part_size=1000))
    _listed(PayloadReader(trusted, Talk()).files())
    size = trusted.manifest.payload.size
    assert seen[-1] == (size, size)
