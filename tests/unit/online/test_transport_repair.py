"""`airbundle repair`: just the pieces that were asked for, proven, with everything that stands beside the parts."""

import hashlib
import json
import subprocess

import pytest

from airbundle.repair import read_request, repair
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.layout import PIECE_SIZE
from airbundle_onsite.contract.record import encode
from airbundle_onsite.contract.repair import BadPart, RepairRequest
from airbundle_onsite.errors import IntegrityError, UsageError
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import trust
from airbundle_onsite.verify.source import Directory, Several
from airbundle_onsite.verify.stream import joined_payload
from parts.bundles import flip, make_bundle, snapshot


@pytest.fixture
def bundle(tmp_path):
    return make_bundle(tmp_path / "bundle", {"models/m/w": bytes(range(256)) * 100}, part_size=4096)


def request_for(bundle, *parts, **more):
    sha256 = hashlib.sha256((bundle / layout.MANIFEST).read_bytes()).hexdigest()
    return RepairRequest(1, "demo", "1", sha256, tuple(BadPart(name, numbers) for name, numbers in parts), **more)


def test_only_what_was_asked_for(bundle, tmp_path):
    before = snapshot(bundle)
    made = repair(bundle, request_for(bundle, ("payload.tar.002", (0,))), tmp_path / "out", Silent())
    folder = tmp_path / "out" / "demo-1-repair"
    assert made.directory == str(folder)
    pieces = [path.name for path in folder.glob("payload*")]
    assert pieces == ["payload.tar.002.piece.00000"]
    assert (folder / pieces[0]).read_bytes() == (bundle / "payload.tar.002").read_bytes()
    assert all(layout.is_outer_name(path.name) for path in folder.iterdir())
    assert snapshot(bundle) == before


def test_a_flipped_byte_of_a_large_part_ships_one_piece(tmp_path):
    bundle = make_bundle(tmp_path / "bundle", {"models/m/w": bytes(3 * PIECE_SIZE)})
    made = repair(bundle, request_for(bundle, ("payload.tar.000", (1,))), tmp_path / "out", Silent())
    folder = tmp_path / "out" / "demo-1-repair"
    assert made.size == PIECE_SIZE
    assert sum(path.stat().st_size for path in folder.iterdir()) < PIECE_SIZE + 2_000_000
    flip(bundle / "payload.tar.000", PIECE_SIZE + 5)
    trusted = trust(bundle, source=Several([Directory(bundle), Directory(folder)]))
    assert sum(map(len, joined_payload(trusted, Silent()))) == trusted.manifest.payload.size


def test_the_pieces_can_be_checked_by_hand(bundle, tmp_path):
    made = repair(bundle, request_for(bundle, ("payload.tar.001", (0,)), ("payload.tar.003", (0,))), tmp_path, Silent())
    done = subprocess.run(
        ["sha256sum", "-c", layout.PIECE_CHECKSUMS], cwd=made.directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("OK") == 2


def test_the_office_tells_what_is_bad_when_the_site_could_not(bundle, tmp_path):
    good = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in bundle.glob("payload*")}
    found = {name: (value,) for name, value in good.items() if name != "payload.tar.001"}
    found["payload.tar.004"] = ("0" * 64,)
    made = repair(bundle, RepairRequest(1, found=found, files=("bundle.json",)), tmp_path, Silent())
    assert [each.partition(",")[0] for each in made.pieces] == ["payload.tar.001", "payload.tar.004"]


def test_another_bundle_is_refused(bundle, tmp_path):
    other = make_bundle(tmp_path / "other", {"models/m/w": b"other"})
    with pytest.raises(UsageError, match=r"the request is about demo 1 with bundle\.json"):
        repair(other, request_for(bundle, ("payload.tar.000", (0,))), tmp_path / "out", Silent())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("asked", [("payload.tar.000", (1,)), ("payload.tar.099", (0,))])
def test_pieces_that_there_are_not(bundle, tmp_path, asked):
    with pytest.raises(UsageError, match="does not have, of payload"):
        repair(bundle, request_for(bundle, asked), tmp_path, Silent())


def test_a_copy_that_is_bad_itself_sends_nothing(bundle, tmp_path):
    flip(bundle / "payload.tar.002", 5)
    with pytest.raises(IntegrityError, match=r"this copy of the bundle is bad in the same place: payload\.tar\.002"):
        repair(bundle, request_for(bundle, ("payload.tar.002", (0,))), tmp_path / "out", Silent())
    assert list((tmp_path / "out").iterdir()) == []


def test_an_answer_is_never_overwritten(bundle, tmp_path):
    request = request_for(bundle, ("payload.tar.002", (0,)))
    repair(bundle, request, tmp_path, Silent())
    with pytest.raises(UsageError, match="exists already"):
        repair(bundle, request, tmp_path, Silent())


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"parts": [{"part": "../../etc/passwd", "pieces": [0]}]},
        {"parts": [{"part": "payload.tar.000", "pieces": [-1]}]},
        {"parts": [{"part": "payload.tar.000", "pieces": [0, 0]}]},
        {"surprise": 1},
    ],
)
def test_requests_that_are_none(bundle, tmp_path, change):
    path = tmp_path / "request.json"
    path.write_text(json.dumps({**json.loads(encode(request_for(bundle))), **change}))
    with pytest.raises(UsageError, match="is not what --repair-request writes"):
        read_request(path)


def test_no_request_there(tmp_path):
    with pytest.raises(UsageError, match="it is missing"):
        read_request(tmp_path / "none.json")
