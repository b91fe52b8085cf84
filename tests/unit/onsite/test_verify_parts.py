"""Bad bytes are blamed on a part and a 64 MiB piece of it; everything else stays good."""

import hashlib
import os
import subprocess
import sys

import pytest

from airbundle_onsite.contract.layout import PIECE_SIZE
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import structure_checks, trust
from airbundle_onsite.verify.media import Unreadable, hash_range
from airbundle_onsite.verify.parts import check_parts
from parts.bundles import flip, make_bundle, snapshot


def content(size):
    """Bytes that differ everywhere."""
    return b"".join(hashlib.sha256(str(index).encode()).digest() for index in range(-(-size // 32)))[:size]


@pytest.fixture
def twelve(tmp_path):
    """A bundle of twelve parts, the last of which is shorter."""
    bundle = make_bundle(tmp_path / "bundle", {"models/m/w": content(45_000)}, part_size=4096)
    assert len(list(bundle.glob("payload.tar.*"))) == 12
    return bundle


def results(bundle):
    """What `check_parts` says by part, after making sure that it changed nothing."""
    before = snapshot(bundle)
    trusted, _ = structure_checks(bundle)
    checks = check_parts(trusted, Silent())
    assert snapshot(bundle) == before
    by_name = dict(zip([part.name for part in trusted.manifest.payload.parts], checks, strict=True))
    assert all(check.id == "verify.part" and check.summary.startswith(name) for name, check in by_name.items())
    return by_name


def failed(checks):
    return {name: check for name, check in checks.items() if check.status != "pass"}


def test_all_good(twelve):
    assert len(results(twelve)) == 12
    assert not failed(results(twelve))


def test_flipped_byte(twelve):
    flip(twelve / "payload.tar.007", 100)
    bad = failed(results(twelve))
    assert list(bad) == ["payload.tar.007"]
    check = bad["payload.tar.007"]
    assert check.summary == "payload.tar.007: 1 of 1 pieces is bad"
    assert check.evidence[0].startswith("payload.tar.007, piece 1 of 1 (bytes 0 to 4095): found SHA-256 ")
    assert check.remedy.startswith("copy payload.tar.007 again")


def test_truncated(twelve):
    os.truncate(twelve / "payload.tar.003", 1000)
    bad = failed(results(twelve))
    assert list(bad) == ["payload.tar.003"]
    assert bad["payload.tar.003"].summary == "payload.tar.003: it is cut short: found 1000 bytes, needed 4096"


def test_too_long(twelve):
    with (twelve / "payload.tar.003").open("ab") as handle:
        handle.write(b"more")
    bad = failed(results(twelve))
    assert bad["payload.tar.003"].summary == "payload.tar.003: it is too long: found 4100 bytes, needed 4096"


def test_missing(twelve):
    (twelve / "payload.tar.011").unlink()
    bad = failed(results(twelve))
    assert bad["payload.tar.011"].summary == "payload.tar.011: it is missing"
    assert list(bad) == ["payload.tar.011"]


def test_swapped(twelve):
    first, second = twelve / "payload.tar.001", twelve / "payload.tar.002"
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    bad = failed(results(twelve))
    assert "payload.tar.001: its content is that of payload.tar.002" in bad["payload.tar.001"].summary
    assert "payload.tar.002: its content is that of payload.tar.001" in bad["payload.tar.002"].summary
    assert len(bad) == 2


_FIRST, _LAST = "payload.tar.000", "payload.tar.011"


@pytest.mark.parametrize(("over", "copied"), [(_FIRST, _LAST), (_LAST, _FIRST)])
def test_a_part_of_another_size_copied_over_one(twelve, over, copied):
    (twelve / over).write_bytes((twelve / copied).read_bytes())
    bad = failed(results(twelve))
    assert list(bad) == [over]
    assert f"{over}: its content is that of {copied}" in bad[over].summary


def test_a_link_in_place_of_a_part(twelve):
    good = twelve.parent / "elsewhere"
    (twelve / "payload.tar.004").rename(good)
    (twelve / "payload.tar.004").symlink_to(good)
    bad = failed(results(twelve))
    assert list(bad) == ["payload.tar.004"]
    assert bad["payload.tar.004"].evidence[0].endswith("found a symbolic link, needed a file")


def test_a_read_error_is_said_with_its_place():
    # A process's own memory cannot be read at address 0: the same EIO as from a worn-out stick.
    descriptor = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        with pytest.raises(Unreadable, match="reading it failed at byte 0: Input/output error"):
            hash_range(descriptor, 0, 100, memoryview(bytearray(100)))
    finally:
        os.close(descriptor)


def test_the_bad_piece_is_named_among_several(tmp_path):
    size = 2 * PIECE_SIZE + 5000
    bundle = make_bundle(tmp_path / "bundle", {"models/m/zeros": bytes(size)})
    flip(bundle / "payload.tar.000", PIECE_SIZE + 7)
    check = results(bundle)["payload.tar.000"]
    assert check.summary == "payload.tar.000: 1 of 3 pieces is bad"
    assert len(check.evidence) == 1
    assert check.evidence[0].startswith(
        f"payload.tar.000, piece 2 of 3 (bytes {PIECE_SIZE} to {2 * PIECE_SIZE - 1}): found SHA-256"
    )


def test_progress_ends_at_the_payload_size(twelve):
    seen = []

    class Talk(Silent):
        def progress(self, what, done, total):
            seen.append((done, total))

    trusted = trust(twelve)
    check_parts(trusted, Talk(), workers=3)
    size = trusted.manifest.payload.size
    assert sorted(seen)[-1] == (size, size)
    assert len(seen) == 12


def test_memory_stays_flat(tmp_path):
    """A 300 MiB payload is checked and streamed by a process that never has 200 MiB resident."""
    bundle = make_bundle(tmp_path / "bundle", {"models/m/zeros": bytes(300 * 1024 * 1024)})
    script = """
import sys
from pathlib import Path
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import trust
from airbundle_onsite.verify.parts import check_parts
from airbundle_onsite.verify.stream import PayloadReader

def peak():  # in kB; unlike ru_maxrss it does not begin with what the parent process had
    return next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))

trusted = trust(Path(sys.argv[1]))
assert all(check.status == "pass" for check in check_parts(trusted, Silent()))
after_parts = peak()
taken = sum(len(chunk) for entry, chunks in PayloadReader(trusted, Silent()).files() for chunk in chunks)
print(taken, after_parts, peak())
"""
    argv = [sys.executable, "-c", script, str(bundle)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    taken, after_parts, after_stream = map(int, done.stdout.split())
    assert taken == 300 * 1024 * 1024
    assert after_parts < 64 * 1024
    assert after_stream < 200 * 1024
