"""Weights that are compressed: what shrinks and by how much, what is left, and that nothing depends on the machine."""

from __future__ import annotations

import dataclasses
import os
import random
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from airbundle.assemble import Extent, Member, plan_payload, write_payload
from airbundle.cache import Cache
from airbundle.compress.encode import encode_block, planes_worth
from airbundle.compress.members import Compression, compress_members, compression_text
from airbundle.delta.content import in_bundle, read_at, stream
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.payload import FileEntry, Segment
from airbundle_onsite.contract.record import decode_json
from airbundle_onsite.planes import BLOCK, ChunkReader, decoded
from airbundle_onsite.store.rebuild import rebuilt
from airbundle_onsite.system import Silent
from parts import floats, tuned
from parts.bundles import make_bundle

VALUES = floats.normal(100_000)
BF16, FP16, FP32 = floats.bf16(VALUES), floats.fp16(VALUES), VALUES.tobytes()[:BLOCK]
NOISE = random.Random(5).randbytes(200_000)
PATH = "models/demo/model.safetensors"


def decode(block: bytes, size: int) -> bytes:
    with ThreadPoolExecutor(1) as pool:
        return b"".join(decoded(ChunkReader([block]).read, len(block), size, pool))


@pytest.mark.parametrize(
    ("data", "worth", "ratio"),
    [
        (BF16, (False, True), 0.68),
        (FP16, (False, True), 0.87),
        (FP32, (False, False, False, True), 0.85),
        (bytes(100_000), (True,), 0.13),
        (NOISE, (False,), 1.001),
    ],
    ids=["bf16", "fp16", "fp32", "zeros", "noise"],
)
def test_each_format_shrinks_as_far_as_it_can(data: bytes, worth: tuple[bool, ...], ratio: float) -> None:
    assert planes_worth(data) == worth
    made = encode_block(data)
    assert ratio - 0.05 < len(made) / len(data) < ratio
    assert decode(made, len(data)) == data


@given(some.binary(min_size=1, max_size=4000), some.integers(1, 40))
@settings(max_examples=80, deadline=None)
def test_any_bytes_come_back(data: bytes, times: int) -> None:
    data = data * times
    made = encode_block(data)
    assert decode(made, len(data)) == data
    assert len(made) <= len(data) + 20


class Office:
    """Members in files, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, Cache(folder / "cache")

    def member(self, data: bytes, segments: tuple[Segment, ...] = (), path: str = PATH) -> Member:
        digest = sha256(data).hexdigest()
        place = self.folder / digest
        place.write_bytes(data)
        role = "model" if path.startswith("models/") else "config"
        return Member(path, role, len(data), digest, place, segments)  # type: ignore[arg-type]

    def compress(self, *members: Member) -> Compression:
        return compress_members(members, self.cache, Silent())

    def payload(self, made: Compression) -> tuple[bytes, tuple[FileEntry, ...]]:
        plan = plan_payload(made.members, 0)
        folder = self.folder / "parts"
        folder.mkdir(exist_ok=True)
        write_payload(plan, folder, part_size=0)
        return (folder / "payload.tar.000").read_bytes(), plan.entries()

    def read(self, made: Compression, base: dict[str, Path] | None = None) -> list[bytes]:
        """Each member, put together as the site does."""
        payload, entries = self.payload(made)
        found = []
        for entry in entries:
            begin = entry.begins or 0
            found.append(b"".join(rebuilt(entry, [payload[begin : begin + entry.packed]], base or {})))
        return found


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


def test_a_file_of_weights_comes_back(office: Office) -> None:
    data = tuned.safetensors({"a": BF16 * 8, "b": BF16[:50_000], "c": NOISE})
    made = office.compress(office.member(data))
    (entry,) = office.payload(made)[1]
    assert entry.member == f"packed/{entry.sha256}"
    assert entry.packed < 0.8 * len(data)
    assert office.read(made) == [data]
    assert made.weights[0].before == len(data)
    assert made.weights[0].after == entry.packed
    assert made.saved == len(data) - entry.packed


def test_what_does_not_shrink_is_left(office: Office) -> None:
    plain = [
        office.member(NOISE),
        office.member(BF16[:60_000], path="models/demo/small.safetensors"),
        office.member(BF16, path="models/demo/notes.txt"),
        office.member(BF16, path="config/model.safetensors"),
    ]
    made = office.compress(*plain)
    assert list(made.members) == plain
    assert made.saved == 0
    (text,) = compression_text(made)
    assert "Left as they are, since they do not shrink: 2 file(s) of weights" in text
    assert PATH in text


def test_a_file_of_which_little_shrinks_is_left(office: Office) -> None:
    """A gain below 3 % is not worth that the file cannot be read by hand any more."""
    member = office.member(random.Random(1).randbytes(40 * BLOCK) + BF16)
    assert office.compress(member).members == (member,)
    assert not list(office.cache.root.rglob("blobs/*/*"))


def test_only_what_travels_is_compressed(office: Office) -> None:
    """In a bundle by difference: a header, a tensor of the base, one that is new, one that does not shrink."""
    head, old, new = b"h" * 100, os.urandom(70_000), BF16
    data = head + old + new + old + NOISE
    digest = sha256(old).hexdigest()
    base = office.folder / "base"
    base.write_bytes(old)
    segments = (
        Segment(len(head), 0),
        Segment(len(old), 0, digest),
        Segment(len(new), len(head) + len(old)),
        Segment(len(old), 0, digest),
        Segment(len(NOISE), len(data) - len(NOISE)),
    )
    made = office.compress(office.member(data, segments))
    (entry,) = office.payload(made)[1]
    assert [segment.compressed is None for segment in entry.segments] == [True, True, False, True, True]
    assert entry.member == f"delta/{entry.sha256}"
    assert office.read(made, {digest: base}) == [data]


def test_content_may_lie_in_several_files(office: Office) -> None:
    data = BF16 * 12
    first, second = office.folder / "1", office.folder / "2"
    first.write_bytes(b"xx" + data[:1_500_001])
    second.write_bytes(data[1_500_001:] + b"yy")
    content = (Extent(first, 2, 1_500_001), Extent(second, 0, len(data) - 1_500_001))
    made = office.compress(dataclasses.replace(office.member(data), content=content))
    assert office.read(made) == [data]
    assert made.saved > 0.3 * len(data)


def test_the_same_weights_give_the_same_bytes(office: Office, tmp_path: Path) -> None:
    """On one core and on many, fresh and from what is kept."""
    other = Office(tmp_path / "other")
    other.folder.mkdir()
    data = BF16 * 30
    first = office.payload(office.compress(office.member(data)))[0]
    again = office.payload(office.compress(office.member(data)))[0]
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        alone = other.payload(other.compress(other.member(data)))[0]
    finally:
        os.sched_setaffinity(0, cores)
    assert first == again == alone


def test_what_was_compressed_once_is_kept_until_it_goes(office: Office) -> None:
    member = office.member(BF16)
    made = office.compress(member)
    (extent,) = made.members[0].carried
    before = extent.path.stat().st_ino
    assert office.compress(member) == made
    assert extent.path.stat().st_ino == before
    extent.path.chmod(0o644)
    extent.path.write_bytes(bytes(extent.size))  # rotten: found by its time, and made again
    assert office.compress(member) == made
    assert office.read(made) == [BF16]


def test_a_compressed_file_is_read_out_of_its_bundle(office: Office) -> None:
    data = tuned.safetensors({"a": BF16 * 12, "b": NOISE})
    bundle = make_bundle(office.folder / "bundle", {})
    manifest = decode_json(BundleManifest, (bundle / "bundle.json").read_bytes(), "bundle.json")
    plan = plan_payload(office.compress(office.member(data)).members, 0)
    payload = write_payload(plan, bundle, part_size=700_000)
    (entry,) = plan.entries()
    manifest = dataclasses.replace(manifest, payload=payload, files=(entry,), features=("byte-planes",))
    content = in_bundle(bundle, manifest, entry)
    assert content is not None
    assert b"".join(stream(content)) == data
    for offset, size in ((0, 8), (8, 100), (BLOCK - 5, 10), (len(data) - 3, 3), (len(data) - 3, 30)):
        assert read_at(content, offset, size) == data[offset : offset + size]
