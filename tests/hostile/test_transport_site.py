"""Bundles that reach a site in pieces: damaged and repaired, spread, received one by one, over HTTP; and liars."""

import functools
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from airbundle.repair import read_request, repair
from airbundle_onsite.contract import layout
from airbundle_onsite.system import Silent
from parts.bundles import flip, snapshot
from parts.sites import release_bundle, site

PART = 60_000
WEIGHTS = b"GGUF" + os.urandom(540_000)


@pytest.fixture
def here(tmp_path):
    with site(tmp_path / "root") as made:
        yield made


@pytest.fixture
def bundle(tmp_path):
    """Ten parts."""
    made = release_bundle(tmp_path / "office", "v1", weights=WEIGHTS, part_size=PART)
    assert len(list(made.glob("payload.tar.*"))) == 10
    return made


@pytest.fixture
def stick(bundle, tmp_path):
    """A copy of it."""
    return shutil.copytree(bundle, tmp_path / "stick" / bundle.name)


def part(directory, number):
    return directory / layout.part_name(number)


def asked(here, stick, tmp_path):
    request = tmp_path / "request.json"
    done = here.run("--bundle", stick, "--repair-request", request)
    assert done.code == 0, done
    return request


# --- blame and repair -------------------------------------------------------------------------------------
def test_three_bad_places_on_three_copies_are_named_and_only_they_travel(here, bundle, tmp_path):
    sticks = [shutil.copytree(bundle, tmp_path / f"stick{number}") for number in range(3)]
    for number, copy in zip((2, 5, 9), sticks, strict=True):
        flip(part(copy, number), 100)
    for number, copy in zip((2, 5, 9), sticks, strict=True):
        before = snapshot(copy)
        done = here.run("--bundle", copy, "--verify", "--json")
        bad = [check["summary"] for check in done.json["checks"] if check["status"] == "fail"]
        assert (done.code, bad) == (5, [f"{layout.part_name(number)}: 1 of 1 pieces is bad"])
        assert snapshot(copy) == before
    # Any two of the three make up for each other, since no two are bad in the same place.
    done = here.run("--bundle", sticks[0], "--verify", "--from", sticks[1])
    assert done.code == 0, done


def test_of_parts_with_several_pieces_exactly_the_bad_pieces_are_named_and_travel(here, tmp_path):
    large, mib = 130 * 2**20, 2**20
    weights = b"GGUF" + b"".join(number.to_bytes(8, "big") + bytes(mib - 8) for number in range(380))
    bundle = release_bundle(tmp_path / "office", "v1", weights=weights, part_size=large)
    places = ((0, 2, large - 1), (1, 1, 64 * mib), (2, 0, 64 * mib - 1))  # part, piece, byte: at their edges
    for number, piece, at in places:
        stick = shutil.copytree(bundle, tmp_path / f"stick{number}", copy_function=os.link)
        _own(part(stick, number))
        flip(part(stick, number), at)
        before = snapshot(stick)
        done = here.run("--bundle", stick, "--verify", "--json")
        (bad,) = (check for check in done.json["checks"] if check["status"] == "fail")
        of, name = (2 if number == 2 else 3), layout.part_name(number)
        assert (done.code, bad["summary"]) == (5, f"{name}: 1 of {of} pieces is bad")
        assert [each.partition(" (")[0] for each in bad["evidence"]] == [f"{name}, piece {piece + 1} of {of}"]
        assert f"copy {name} again" in bad["remedy"] and "--repair-request" in bad["remedy"]
        made = repair(bundle, read_request(asked(here, stick, tmp_path)), tmp_path / f"answer{number}", Silent())
        assert [each.partition(" (")[0] for each in made.pieces] == [f"{name}, piece {piece + 1} of {of}"]
        assert made.size == (2 * mib if piece == 2 else 64 * mib)
        assert here.run("--bundle", stick, "--verify", "--patch", made.directory).code == 0
        assert snapshot(stick) == before
    done = here.install(stick, "--patch", made.directory)
    assert done.code == 0, done
    assert here.answer() == "Paris, says v1"
    for directory in (bundle, *tmp_path.glob("stick*"), *tmp_path.glob("answer*")):
        shutil.rmtree(directory)


def _own(path):
    """Make a file that shares its bytes with another copy one of its own."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def test_a_request_is_answered_with_just_those_pieces_and_the_site_installs(here, bundle, stick, tmp_path):
    flip(part(stick, 1), 100)
    os.truncate(part(stick, 4), 17)
    part(stick, 8).unlink()
    before = snapshot(stick)
    request = asked(here, stick, tmp_path)
    made = repair(bundle, read_request(request), tmp_path / "answer", Silent())
    assert [each.partition(",")[0] for each in made.pieces] == ["payload.tar.001", "payload.tar.004", "payload.tar.008"]
    assert made.size == 3 * PART
    assert here.install(stick).code == 5
    done = here.install(stick, "--patch", made.directory)
    assert done.code == 0, done
    assert here.answer() == "Paris, says v1"
    assert snapshot(stick) == before


def test_nothing_bad_writes_no_request(here, stick, tmp_path):
    done = here.run("--bundle", stick, "--repair-request", tmp_path / "none.json")
    assert done.code == 0
    assert "nothing to ask for" in done.out
    assert not (tmp_path / "none.json").exists()


def test_small_files_are_named_and_surplus_ones_are_not_asked_for(here, bundle, stick, tmp_path):
    flip(stick / layout.README, 10)
    (stick / layout.README_ZH).unlink()
    (stick / "holiday.jpg").write_bytes(b"x")
    request = json.loads(asked(here, stick, tmp_path).read_text())
    assert sorted(request["files"]) == sorted([layout.README, layout.README_ZH])
    made = repair(bundle, read_request(tmp_path / "request.json"), tmp_path / "answer", Silent())
    assert made.pieces == ()
    assert here.install(made.directory, "--from", stick).code == 0


def test_what_is_no_bundle_is_not_called_good(here, tmp_path):
    (tmp_path / "empty").mkdir()
    done = here.run("--bundle", tmp_path / "empty", "--repair-request", tmp_path / "r.json")
    assert done.code in (0, 5), done
    assert "nothing to ask for" not in done.out
    done = here.run("--bundle", tmp_path / "absent", "--repair-request", tmp_path / "r.json")
    assert done.code == 5, done
    assert "cannot be read as a directory" in done.out


def test_a_request_is_never_written_onto_the_media(here, stick):
    flip(part(stick, 1), 100)
    done = here.run("--bundle", stick, "--repair-request", stick / "request.json")
    assert done.code == 2, done
    assert not (stick / "request.json").exists()


def test_a_damaged_manifest_costs_no_second_trip(here, bundle, stick, tmp_path):
    """The site cannot tell which pieces are bad, so it says what it found, and the office tells."""
    flip(stick / layout.MANIFEST, 300)
    flip(part(stick, 6), 9)
    request = asked(here, stick, tmp_path)
    assert json.loads(request.read_text())["files"] == [layout.MANIFEST]
    made = repair(bundle, read_request(request), tmp_path / "answer", Silent())
    assert [each.partition(",")[0] for each in made.pieces] == ["payload.tar.006"]
    done = here.install(made.directory, "--from", stick)  # the small files of the answer are whole
    assert done.code == 0, done
    assert here.answer() == "Paris, says v1"


def test_an_answer_with_other_bytes_is_not_believed(here, bundle, stick, tmp_path):
    flip(part(stick, 1), 100)
    made = repair(bundle, read_request(asked(here, stick, tmp_path)), tmp_path / "answer", Silent())
    piece = layout.piece_name(layout.part_name(1), 0)
    flip(tmp_path / "answer" / "demo-v1-repair" / piece, 5)
    done = here.install(stick, "--patch", made.directory)
    assert done.code == 5, done
    assert f"in {made.directory}: found SHA-256" in done.err
    assert f"in {stick}: found SHA-256" in done.err
    assert here.leftovers() == []


# --- several media ----------------------------------------------------------------------------------------
def test_installed_from_three_sticks_in_any_order(here, bundle, tmp_path):
    mounts = [tmp_path / "media" / name / bundle.name for name in ("a", "b", "c")]
    for number in range(10):
        mount = mounts[number % 3]
        mount.mkdir(parents=True, exist_ok=True)
        part(bundle, number).rename(part(mount, number))
    done = here.install(bundle, "--from", mounts[2].parent, "--from", mounts[0].parent)
    assert done.code == 5, done
    assert "payload.tar.001: it is missing" in done.err
    assert str(mounts[0]) in done.err
    done = here.install(bundle, "--from", mounts[2].parent, "--from", mounts[0].parent, "--from", mounts[1].parent)
    assert done.code == 0, done
    assert here.answer() == "Paris, says v1"


def test_parts_copied_over_each_other_are_told_from_missing_ones(here, stick, tmp_path):
    """All parts equal to part 1, as some copying programs leave them."""
    for number in range(2, 9):
        shutil.copyfile(part(stick, 1), part(stick, number))
    done = here.run("--bundle", stick, "--verify", "--from", stick, "--json")
    bad = [check["summary"] for check in done.json["checks"] if check["status"] == "fail"]
    assert len(bad) == 7
    assert all("its content is that of payload.tar.001" in each for each in bad)


@pytest.mark.parametrize("place", ["/nowhere/at/all", "", "empty"])
def test_places_that_hold_nothing(here, stick, tmp_path, place):
    (tmp_path / "empty").mkdir()
    done = here.run("--bundle", stick, "--verify", "--from", tmp_path / place if place == "empty" else place)
    assert done.code == 2, done
    assert "What to do: name" in done.err


# --- one part at a time -----------------------------------------------------------------------------------
def test_a_site_reached_one_part_at_a_time(here, bundle, tmp_path):
    """The transfer folder never holds more than one part; in the end the bundle installs from what was received."""
    small, inbox = tmp_path / "small", tmp_path / "inbox"
    small.mkdir()
    inbox.mkdir()
    for path in bundle.iterdir():
        if not path.name.startswith("payload"):
            shutil.copy(path, small)
    for number in range(10):
        arrived = shutil.copy(part(bundle, number), inbox / layout.part_name(number))
        done = here.run("--bundle", small, "--receive", arrived)
        assert done.code == 0, done
        arrived.unlink()
    assert "It is complete." in done.out
    shutil.rmtree(small)
    area = here.root / "received" / "demo-v1"
    state = here.run("received", "--json").json[0]
    assert (state["directory"], state["lacking"], state["missing"]) == (str(area), [], 0)
    command = ["bash", str(area / "install.sh"), "--yes", "--root", str(here.root), "--port", str(here.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "are removed then" in done.stderr  # the peak is said beforehand
    assert here.answer() == "Paris, says v1"
    assert not area.exists()


def test_what_is_received_installs_without_naming_it(here, bundle):
    assert here.run("--bundle", bundle, "--receive", bundle).code == 0
    shutil.rmtree(bundle)
    done = here.run("install", "--yes", "--port", here.port)
    assert done.code == 0, done
    assert here.answer() == "Paris, says v1"


def test_parts_on_the_stick_and_parts_received_make_one_bundle(here, bundle, stick):
    assert here.run("--bundle", bundle, "--receive", *(part(bundle, number) for number in (2, 3))).code == 0
    for number in (2, 3):
        part(stick, number).unlink()
    done = here.install(stick)
    assert done.code == 0, done


def test_a_receive_that_is_killed_goes_on_where_it_stopped(here, bundle):
    process = here.begin("--bundle", bundle, "--receive", bundle)
    area = here.root / "received" / "demo-v1"
    deadline = time.monotonic() + 30
    while len(list(area.glob("*.piece.*"))) < 2 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = here.run("--bundle", bundle, "--receive", bundle, "--json")
    assert done.code == 0, done
    assert done.json["known"] >= 2
    assert done.json["known"] + done.json["received"] == 10
    assert here.install(area).code == 0
    assert here.leftovers() == []


def test_bad_and_foreign_parts_are_refused_by_name(here, bundle, tmp_path):
    flip(part(bundle, 3), 1)
    done = here.run("--bundle", bundle, "--receive", part(bundle, 3), part(bundle, 4))
    assert done.code == 5, done
    assert "bad, and not kept: payload.tar.003, piece 1 of 1" in done.out
    assert "1 piece received" in done.out
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    for given in (tmp_path / "holiday.jpg", tmp_path / "payload.tar.000"):
        done = here.run("--bundle", bundle, "--receive", given)
        assert done.code == 2, done
        assert given.name in done.err


# --- over HTTP --------------------------------------------------------------------------------------------
@pytest.fixture
def served(tmp_path):
    """``http://…/`` of everything in `tmp_path`, by the standard library's server."""
    with _serving(tmp_path) as url:
        yield url


class _serving:
    def __init__(self, directory):
        handler = functools.partial(_Quiet, directory=str(directory))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __exit__(self, *_error):
        self._server.shutdown()
        self._server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *arguments):
        pass


_PROXIES = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""}


def test_installed_from_a_file_server_with_nothing_but_the_program(here, bundle, served, tmp_path):
    program = tmp_path / "onsite.pyz"
    shutil.copy(bundle / "onsite.pyz", program)
    words = ["--root", str(here.root), "--yes", "--port", str(here.port), "--from", f"{served}office/demo-v1/"]
    command = [sys.executable, "-I", str(program), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env={**os.environ, **_PROXIES})
    assert done.returncode == 0, done.stderr
    assert here.answer() == "Paris, says v1"
    assert here.leftovers() == []


def test_install_sh_with_its_parts_on_a_file_server(here, stick, served):
    for path in stick.glob("payload.tar.*"):
        path.unlink()
    done = here.install(stick, "--from", f"{served}office/demo-v1")
    assert done.code == 0, done


def test_a_bad_part_on_the_server_is_blamed_and_nothing_is_left(here, bundle, served):
    flip(part(bundle, 7), 5)
    done = here.run("--from", f"{served}office/demo-v1", "--yes", "--port", here.port)
    assert done.code == 5, done
    assert "payload.tar.007, piece 1 of 1" in done.err
    assert here.leftovers() == []
    assert here.current() is None


def test_received_from_a_file_server(here, bundle, served):
    done = here.run("--bundle", bundle, "--receive", f"{served}office/demo-v1/")
    assert done.code == 0, done
    assert "It is complete." in done.out


def test_no_server_there(here):
    done = here.run(
        "--verify", "--from", f"http://127.0.0.1:{here.port}/x/", env={"PYTHONWARNINGS": "ignore"}, timeout=90
    )
    assert done.code == 10, done
    assert "Connection refused" in done.err
    assert "see that the file server runs" in done.err
