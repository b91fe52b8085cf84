"""Parts from several places: the first good copy of a piece is taken, and what was passed over is said."""

import hashlib
import os

import pytest

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.layout import PIECE_SIZE
from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import structure_checks, trust
from airbundle_onsite.verify.media import Unreadable
from airbundle_onsite.verify.parts import check_parts
from airbundle_onsite.verify.source import Directory, Files, Several, lacking_pieces, pieces_of, read_proven
from airbundle_onsite.verify.stream import PayloadReader, joined_payload
from parts.bundles import flip, make_bundle, snapshot


def content(size):
    return b"".join(hashlib.sha256(str(index).encode()).digest() for index in range(-(-size // 32)))[:size]


@pytest.fixture
def bundle(tmp_path):
    """Ten parts of 4096 bytes and less."""
    made = make_bundle(tmp_path / "bundle", {"models/m/w": content(36_000)}, part_size=4096)
    assert len(list(made.glob("payload.tar.*"))) == 10
    return made


def part(number):
    return layout.part_name(number)


def moved(bundle, names, folder):
    folder.mkdir(exist_ok=True)
    for name in names:
        (bundle / name).rename(folder / name)
    return folder


class Heard(Silent):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def test_parts_spread_over_three_folders_in_any_order(bundle, tmp_path):
    whole = b"".join(joined_payload(trust(bundle), Silent()))
    one = moved(bundle, [part(number) for number in (9, 0, 4)], tmp_path / "one")
    two = moved(bundle, [part(number) for number in (1, 3, 8)], tmp_path / "two")
    trusted = trust(bundle, source=Several([Directory(bundle), Directory(two), Directory(one)]))
    assert b"".join(joined_payload(trusted, Silent())) == whole
    assert all(check.status == "pass" for check in check_parts(trusted, Silent()))


def test_a_missing_part_is_named_with_every_folder_that_was_looked_in(bundle, tmp_path):
    moved(bundle, [part(3)], tmp_path / "lost")
    two = moved(bundle, [part(4)], tmp_path / "two")
    with pytest.raises(IntegrityError) as caught:
        trust(bundle, source=Several([Directory(bundle), Directory(two)]))
    found = f"payload.tar.003: it is missing, needed 4096 bytes; looked in {bundle}, {two}"
    assert list(caught.value.details) == [found]
    assert "--from DIR" in caught.value.remedy


def test_missing_parts_that_follow_each_other_are_one_line(bundle, tmp_path):
    moved(bundle, [part(number) for number in (1, 2, 3, 7)], tmp_path / "lost")
    with pytest.raises(IntegrityError) as caught:
        trust(bundle, source=Directory(bundle))
    assert [each.split(";")[0] for each in caught.value.details] == [
        "payload.tar.001 to payload.tar.003: they are missing, needed 12288 bytes",
        "payload.tar.007: it is missing, needed 4096 bytes",
    ]


def test_without_other_places_a_missing_part_is_what_it_was(bundle, tmp_path):
    moved(bundle, [part(3)], tmp_path / "lost")
    with pytest.raises(IntegrityError) as caught:
        trust(bundle)
    assert list(caught.value.details) == ["payload.tar.003: it is missing, needed 4096 bytes"]


def test_the_first_good_copy_wins_and_the_bad_one_is_said(bundle, tmp_path):
    spare = tmp_path / "spare"
    spare.mkdir()
    (spare / part(2)).write_bytes((bundle / part(2)).read_bytes())
    flip(bundle / part(2), 9)
    trusted = trust(bundle, source=Several([Directory(bundle), Directory(spare)]))
    before = snapshot(bundle)
    checks = {check.summary.partition(":")[0]: check for check in check_parts(trusted, Silent())}
    assert all(check.status == "pass" for check in checks.values())
    assert checks[part(2)].summary.endswith("1 of them only in a second copy")
    assert f"in {bundle}: found SHA-256" in checks[part(2)].evidence[0]
    assert checks[part(2)].evidence[0].endswith(f"taken from {spare}")
    heard = Heard()
    for _, chunks in PayloadReader(trusted, heard).files():
        for _ in chunks:
            pass
    assert len(heard.lines) == 1
    assert heard.lines[0].startswith("payload.tar.002, piece 1 of 1")
    assert heard.lines[0].endswith("another copy is good")
    assert snapshot(bundle) == before


def test_two_bad_copies_that_are_bad_in_different_pieces_make_one_good_part(tmp_path):
    bundle = make_bundle(tmp_path / "bundle", {"models/m/w": bytes(2 * PIECE_SIZE + 500)})
    other = tmp_path / "other"
    other.mkdir()
    (other / part(0)).write_bytes((bundle / part(0)).read_bytes())
    flip(bundle / part(0), 5)
    flip(other / part(0), PIECE_SIZE + 5)
    trusted = trust(bundle, source=Several([Directory(bundle), Directory(other)]))
    assert [check.status for check in check_parts(trusted, Silent())] == ["pass"]
    flip(other / part(0), 6)
    (check,) = check_parts(trusted, Silent())
    assert check.summary == "payload.tar.000: 1 of 3 pieces is bad"
    assert f"in {bundle}: found" in check.evidence[0]
    assert f"in {other}: found" in check.evidence[0]


def test_a_piece_alone_replaces_that_of_a_cut_part(tmp_path):
    bundle = make_bundle(tmp_path / "bundle", {"models/m/w": bytes(PIECE_SIZE + 500)})
    trusted = trust(bundle)
    last = list(pieces_of(trusted.manifest.payload.parts[0]))[-1]
    patch = tmp_path / "patch"
    patch.mkdir()
    with (bundle / part(0)).open("rb") as handle:
        handle.seek(last.offset)
        (patch / layout.piece_name(part(0), 1)).write_bytes(handle.read())
    os.truncate(bundle / part(0), PIECE_SIZE + 3)
    source = Several([Directory(bundle), Directory(patch)])
    again = trust(bundle, source=source)
    assert [check.status for check in check_parts(again, Silent())] == ["pass"]
    assert source.copies(part(0))[0].piece == 1  # so that the bad bytes of a worn-out stick are not read at all
    assert sum(map(len, joined_payload(again, Silent()))) == trusted.manifest.payload.size


def test_pieces_in_the_bundles_own_directory_are_no_surplus_files(bundle):
    data = (bundle / part(1)).read_bytes()
    (bundle / layout.piece_name(part(1), 0)).write_bytes(data)
    flip(bundle / part(1), 7)
    trusted = trust(bundle)
    assert all(check.status == "pass" for check in check_parts(trusted, Silent()))


@pytest.mark.parametrize(
    "name", ["payload.tar.001.piece.00001", "payload.tar.099.piece.00000", "payload.tar.1.piece.0"]
)
def test_a_piece_that_the_bundle_does_not_have_is_a_surplus_file(bundle, name):
    (bundle / name).write_bytes(b"x")
    with pytest.raises(IntegrityError, match="problem") as caught:
        trust(bundle)
    assert f"{name}: found a file that the bundle does not list" in caught.value.details


def test_a_link_named_like_a_piece_is_not_followed(bundle, tmp_path):
    good = tmp_path / "good"
    good.write_bytes((bundle / part(1)).read_bytes())
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / layout.piece_name(part(1), 0)).symlink_to(good)
    (piece,) = pieces_of(trust(bundle).manifest.payload.parts[1])
    with pytest.raises(Unreadable, match="found a symbolic link, needed a file"):
        read_proven(Directory(folder), piece)


def test_nothing_is_known_of_an_empty_place(bundle, tmp_path):
    (piece,) = pieces_of(trust(bundle).manifest.payload.parts[1])
    with pytest.raises(Unreadable, match="it is missing"):
        read_proven(Directory(tmp_path / "absent"), piece)
    assert lacking_pieces(Directory(tmp_path / "absent"), piece.part) == [piece]


def test_single_files_are_known_by_their_names(bundle):
    payload = trust(bundle).manifest.payload
    source = Files([bundle / part(1), bundle / part(5)])
    assert [len(source.copies(each.name)) for each in payload.parts] == [0, 1, 0, 0, 0, 1, 0, 0, 0, 0]


def test_parts_elsewhere_are_not_missed_when_the_manifest_is_bad(bundle, tmp_path):
    """Blame goes to bundle.json alone, not to every part that lies on another medium."""
    two = moved(bundle, [part(number) for number in range(10)], tmp_path / "two")
    flip(bundle / layout.MANIFEST, 100)
    trusted, checks = structure_checks(bundle, source=Several([Directory(bundle), Directory(two)]))
    assert trusted is None
    assert [check.id for check in checks if check.status == "fail"] == ["verify.manifest"]
