"""The payload: layout known before writing, one plain tar, hashes that agree with the bytes."""

import hashlib
import io
import tarfile

import pytest

from airbundle.assemble import Member, bytes_member, plan_payload, write_payload
from airbundle.partwriter import part_sizes
from airbundle_onsite.contract import layout
from airbundle_onsite.errors import IntegrityError, UsageError

LONG = "models/模型/" + "n" * 140 + ".gguf"


@pytest.fixture
def members(tmp_path):
    big = tmp_path / "big.bin"
    big.write_bytes(bytes(range(256)) * 4096 * 20 + b"tail")
    return [
        bytes_member("config/a.json", "config", b"{}"),
        bytes_member("config/empty", "config", b""),
        Member(LONG, "model", big.stat().st_size, hashlib.sha256(big.read_bytes()).hexdigest(), big),
        bytes_member("licenses/x/LICENSE", "license", b"x" * 513),
    ]


def _write(members, directory, part_size):
    directory.mkdir()
    plan = plan_payload(members, 1_700_000_000)
    payload = write_payload(plan, directory, part_size=part_size)
    joined = b"".join((directory / part.name).read_bytes() for part in payload.parts)
    return plan, payload, joined


@pytest.mark.parametrize("part_size", [0, 1_000_000, 7_000_001, 10**12])
def test_parts_join_to_one_plain_tar(members, tmp_path, part_size):
    plan, payload, joined = _write(members, tmp_path / "out", part_size)
    assert len(joined) == payload.size == plan.size
    with tarfile.open(fileobj=io.BytesIO(joined)) as archive:
        infos = archive.getmembers()
        assert [info.name for info in infos] == [member.path for member in members]
        assert all(
            info.isreg() and info.mode == 0o644 and info.uid == 0 and info.mtime == 1_700_000_000 for info in infos
        )
    for entry in plan.entries():
        content = b"".join(joined[s.offset : s.offset + s.size] for s in entry.segments)
        assert hashlib.sha256(content).hexdigest() == entry.sha256


@pytest.mark.parametrize("part_size", [512, 1000])
def test_parts_smaller_than_a_header_still_join(members, tmp_path, part_size):
    small = [member for member in members if isinstance(member.content, bytes)]
    assert _write(small, tmp_path / "a", part_size)[2] == _write(small, tmp_path / "b", 0)[2]


@pytest.mark.parametrize("part_size", [0, 7_000_001])
def test_part_hashes_are_those_of_the_files(members, tmp_path, part_size):
    _, payload, _ = _write(members, tmp_path / "out", part_size)
    for part in payload.parts:
        data = (tmp_path / "out" / part.name).read_bytes()
        assert (part.size, part.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_pieces_are_64_mib_of_each_part(tmp_path):
    content = tmp_path / "content"
    with content.open("wb") as handle:
        for value in range(150):
            handle.write(bytes([value]) * 1024 * 1024)
    member = Member("models/m/w", "model", content.stat().st_size, "0" * 64, content)
    _, payload, _ = _write([member], tmp_path / "out", 100 * 1024 * 1024)
    for part in payload.parts:
        data = (tmp_path / "out" / part.name).read_bytes()
        starts = range(0, len(data), layout.PIECE_SIZE)
        assert part.pieces == tuple(hashlib.sha256(data[at : at + layout.PIECE_SIZE]).hexdigest() for at in starts)


def test_same_members_give_the_same_bytes(members, tmp_path):
    assert _write(members, tmp_path / "a", 1_000_000)[2] == _write(members, tmp_path / "b", 0)[2]


def test_a_member_that_shrank_is_named(members, tmp_path):
    plan = plan_payload(members, 0)
    members[2].content.write_bytes(b"short")
    (tmp_path / "out").mkdir()
    with pytest.raises(IntegrityError, match=r"big\.bin changed while it was packed: 5 bytes found"):
        write_payload(plan, tmp_path / "out", part_size=0)


def test_unsafe_paths_are_refused_all_at_once():
    with pytest.raises(UsageError) as caught:
        plan_payload([bytes_member(path, "config", b"") for path in ("../a", "/b", "c\nd", "ok")], 0)
    assert caught.value.details == ("'../a'", "'/b'", "'c\\nd'")


@pytest.mark.parametrize(
    ("total", "size", "expected"), [(10, 0, [10]), (10, 10, [10]), (10, 4, [4, 4, 2]), (8, 4, [4, 4]), (3, 9, [3])]
)
def test_part_sizes(total, size, expected):
    assert part_sizes(total, size) == expected


def test_a_part_of_the_usual_size_fits_a_fat32_stick():
    sizes = part_sizes(13_000_000_001, layout.DEFAULT_PART_SIZE)
    assert len(sizes) == 4
    assert max(sizes) == 4_000_000_000 <= 2**32 - 1, "the largest file that FAT32 holds"
