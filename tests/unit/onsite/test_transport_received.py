"""Parts received one at a time: proven on arrival, kept piece by piece, resumed, and freed when they are installed."""

import hashlib
import os

import pytest

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.layout import PIECE_SIZE, StoreLayout
from airbundle_onsite.errors import IntegrityError, PreflightError
from airbundle_onsite.system import Silent
from airbundle_onsite.transport.received import (
    Reception,
    arrival_text,
    directories,
    free,
    matching,
    state_of,
    state_text,
)
from airbundle_onsite.verify.bundle import structure_checks, trust
from airbundle_onsite.verify.source import Directory, Files
from airbundle_onsite.verify.stream import joined_payload
from parts.bundles import flip, make_bundle


def content(size):
    return b"".join(hashlib.sha256(str(index).encode()).digest() for index in range(-(-size // 32)))[:size]


@pytest.fixture
def bundle(tmp_path):
    return make_bundle(tmp_path / "bundle", {"models/m/w": content(18_000)}, part_size=4096)


@pytest.fixture
def store(tmp_path):
    return StoreLayout(str(tmp_path / "root"))


def reception(store, bundle):
    trusted, _ = structure_checks(bundle)
    return Reception(store, trusted, Silent())


def part(bundle, number):
    return bundle / layout.part_name(number)


def test_one_after_the_other_and_the_source_may_go_away(bundle, store):
    taking = reception(store, bundle)
    whole = b"".join(joined_payload(trust(bundle), Silent()))
    for number in (3, 0, 4, 1):
        arrival = taking.take(Files([part(bundle, number)]))
        assert (arrival.received, arrival.known, arrival.bad) == (1, 0, ())
        part(bundle, number).unlink()
    assert not arrival.state.complete
    assert arrival.state.lacking == ("payload.tar.002",)
    state = taking.take(Files([part(bundle, 2)])).state
    part(bundle, 2).unlink()
    assert state.complete
    assert state.missing == 0
    trusted = trust(taking.directory, source=Directory(taking.directory))
    assert b"".join(joined_payload(trusted, Silent())) == whole


def test_what_was_received_is_a_bundle_like_any_other(bundle, store):
    """install.sh of the area itself must do: nothing surplus, nothing missing, whatever the umask."""
    before = os.umask(0o077)
    try:
        taking = reception(store, bundle)
        taking.take(Directory(bundle))
    finally:
        os.umask(before)
    _, checks = structure_checks(taking.directory, source=Directory(taking.directory))
    assert [check.id for check in checks if check.status == "fail"] == []
    assert {oct(path.stat().st_mode & 0o777) for path in taking.directory.iterdir()} == {"0o644"}


def test_a_bad_part_is_named_and_the_good_ones_stay(bundle, store):
    flip(part(bundle, 1), 10)
    os.truncate(part(bundle, 2), 100)
    arrival = reception(store, bundle).take(Files([part(bundle, number) for number in (0, 1, 2)]))
    assert arrival.received == 1
    assert [each.partition(",")[0] for each in arrival.bad] == ["payload.tar.001", "payload.tar.002"]
    assert arrival.state.parts == ("payload.tar.000",)
    text = arrival_text(arrival, "/opt/airbundle")
    assert "bad, and not kept: payload.tar.001, piece 1 of 1" in text
    assert "missing: payload.tar.001 to payload.tar.004" in text


def test_the_good_pieces_of_a_bad_part_are_kept(tmp_path, store):
    bundle = make_bundle(tmp_path / "large", {"models/m/w": bytes(2 * PIECE_SIZE)})
    flip(part(bundle, 0), PIECE_SIZE + 1)
    taking = reception(store, bundle)
    arrival = taking.take(Directory(bundle))
    assert (arrival.received, len(arrival.bad)) == (2, 1)
    assert arrival.state.lacking[0].startswith("payload.tar.000, piece 2 of 3")
    flip(part(bundle, 0), PIECE_SIZE + 1)
    arrival = taking.take(Directory(bundle))
    assert (arrival.received, arrival.known, arrival.bad) == (1, 2, ())
    assert arrival.state.complete


def test_given_twice_is_given_once(bundle, store):
    taking = reception(store, bundle)
    taking.take(Files([part(bundle, 0)]))
    arrival = taking.take(Files([part(bundle, 0)]))
    assert (arrival.received, arrival.known) == (0, 1)


def test_a_kept_piece_that_went_bad_comes_again(bundle, store):
    taking = reception(store, bundle)
    taking.take(Directory(bundle))
    flip(taking.directory / layout.piece_name("payload.tar.001", 0), 3)
    arrival = taking.take(Directory(bundle))
    assert (arrival.received, arrival.known) == (1, 4)


def test_what_a_crash_left_half_is_no_piece(bundle, store):
    """The name comes last: half a piece lies in staging, where every run tidies up."""
    taking = reception(store, bundle)
    taking.take(Files([part(bundle, 0)]))
    (store.staging / "received.partial").write_bytes(b"half")
    arrival = taking.take(Files([part(bundle, 1)]))
    assert arrival.received == 1
    assert not (store.staging / "received.partial").exists()


def test_small_files_that_a_crash_left_do_not_count_yet(bundle, store):
    taking = reception(store, bundle)
    taking.directory.mkdir(parents=True)
    (taking.directory / "install.sh").write_text("half")
    assert directories(store) == []
    taking.take(Files([part(bundle, 0)]))
    assert directories(store) == [taking.directory]
    assert (taking.directory / "install.sh").read_bytes() == (bundle / "install.sh").read_bytes()


def test_another_bundle_of_the_same_name_is_not_mixed_in(bundle, store, tmp_path):
    reception(store, bundle).take(Files([part(bundle, 0)]))
    other = make_bundle(tmp_path / "other", {"models/m/w": b"else" * 3000}, part_size=4096)
    with pytest.raises(IntegrityError, match="another bundle of this name and version"):
        reception(store, other).take(Files([part(other, 0)]))
    assert matching(store, other) is None
    assert matching(store, bundle) == store.received / "demo-1"


def test_freed_after_the_installation(bundle, store):
    taking = reception(store, bundle)
    taking.take(Directory(bundle))
    assert free(store, trust(bundle)) > 18_000
    assert not taking.directory.exists()
    assert free(store, trust(bundle)) == 0


def test_no_room(bundle, small_disk):
    """An ext4 of 48 MiB cannot take what would leave less than the margin."""
    store = StoreLayout(str(small_disk(48) / "root"))
    with pytest.raises(PreflightError, match="free; receiving this needs"):
        reception(store, bundle).take(Directory(bundle))


def test_states_for_people(bundle, store):
    taking = reception(store, bundle)
    taking.take(Files([part(bundle, number) for number in (0, 2)]))
    state = state_of(trust(bundle), taking.directory)
    lines = state_text(state, "/opt/airbundle").splitlines()
    assert lines[0].startswith("demo 1: 2 of 5 parts are here, 8.2 kB of ")
    assert lines[1:] == ["  missing: payload.tar.001", "  missing: payload.tar.003 to payload.tar.004"]
    taking.take(Directory(bundle))
    last = state_text(state_of(trust(bundle), taking.directory), "/opt/airbundle").splitlines()[-1]
    assert last == f"It is complete. To install it: bash {taking.directory}/install.sh --root /opt/airbundle"
