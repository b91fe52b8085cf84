"""Bundles damaged on the way: the right exit code, the thing and the cure by name, and nothing on the media changed.

Each is looked at twice: by the site program, and by install.sh alone where there is no Python.
"""

import os
import shutil

import pytest

from airbundle_onsite.errors import ExitCode, IntegrityError
from airbundle_onsite.verify.bundle import trust
from parts.bundles import flip, make_bundle, snapshot
from parts.shells import install_sh

PART = 8192


@pytest.fixture(scope="module")
def twelve(tmp_path_factory):
    """A whole bundle of twelve parts; copied by every test."""
    content = b"".join(index.to_bytes(4, "big") * 16 for index in range(1480))
    bundle = make_bundle(tmp_path_factory.mktemp("whole") / "b", {"models/m/w.gguf": content}, part_size=PART)
    assert len(list(bundle.glob("payload.tar.*"))) == 12
    return bundle


@pytest.fixture
def bundle(twelve, tmp_path):
    return shutil.copytree(twelve, tmp_path / "u盘 stick" / "b")


def swap(bundle):
    first, second, spare = bundle / "payload.tar.003", bundle / "payload.tar.004", bundle / "spare"
    first.rename(spare)
    second.rename(first)
    spare.rename(second)


def edit_text(name, old, new):
    def edit(bundle):
        path = bundle / name
        data = path.read_bytes()
        assert old in data
        path.write_bytes(data.replace(old, new, 1))

    return edit


def drop_line(name):
    def edit(bundle):
        path = bundle / "SHA256SUMS"
        path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.endswith(f"  {name}\n")))

    return edit


DAMAGE = {
    "truncated": (
        lambda b: os.truncate(b / "payload.tar.005", 100),
        ("payload.tar.005: it is cut short: found 100 bytes, needed 8192", "copy payload.tar.005 again"),
        ("[FAIL] payload.tar.005: found SHA-256",),
    ),
    "empty": (
        lambda b: os.truncate(b / "payload.tar.005", 0),
        ("payload.tar.005: it is cut short: found 0 bytes, needed 8192",),
        ("[FAIL] payload.tar.005: found SHA-256",),
    ),
    "flipped": (
        lambda b: flip(b / "payload.tar.007", 4000),
        ("payload.tar.007, piece 1 of 1 (bytes 0 to 8191): found SHA-256", "copy payload.tar.007 again"),
        ("[FAIL] payload.tar.007: found SHA-256",),
    ),
    "missing": (
        lambda b: (b / "payload.tar.011").unlink(),
        ("payload.tar.011: it is missing", "copy payload.tar.011 again"),
        ("[FAIL] payload.tar.011: it is missing",),
    ),
    "swapped": (
        swap,
        (
            "payload.tar.003: its content is that of payload.tar.004",
            "payload.tar.004: its content is that of payload.tar.003",
        ),
        ("[FAIL] payload.tar.003: found SHA-256", "[FAIL] payload.tar.004: found SHA-256"),
    ),
    "copied over another": (
        lambda b: shutil.copyfile(b / "payload.tar.001", b / "payload.tar.002"),
        ("payload.tar.002: its content is that of payload.tar.001", "copy payload.tar.002 again"),
        ("[FAIL] payload.tar.002: found SHA-256",),
    ),
    "duplicated": (
        lambda b: shutil.copyfile(b / "payload.tar.001", b / "payload.tar.001.copy"),
        ("payload.tar.001.copy: found a file that the bundle does not list", "move what is not listed"),
        ("[FAIL] payload.tar.001.copy: the bundle does not list it",),
    ),
    "extra part": (
        lambda b: shutil.copyfile(b / "payload.tar.001", b / "payload.tar.012"),
        ("payload.tar.012: found a file that the bundle does not list",),
        ("[FAIL] payload.tar.012: the bundle does not list it",),
    ),
    "extra folder": (
        lambda b: (b / "New Folder").mkdir(),
        ("'New Folder': found a directory that the bundle does not list",),
        ("[FAIL] New Folder: the bundle does not list it",),
    ),
    "part is a folder": (
        lambda b: [(b / "payload.tar.006").unlink(), (b / "payload.tar.006").mkdir()],
        ("payload.tar.006: found a directory, needed a file",),
        ("[FAIL] payload.tar.006: found something that is not a file",),
    ),
    "manifest edited": (
        edit_text("bundle.json", b'"name": "demo"', b'"name": "evil"'),
        ("bundle.json: found SHA-256", "by SHA256SUMS"),
        ("[FAIL] bundle.json: found SHA-256",),
    ),
    "manifest missing": (
        lambda b: (b / "bundle.json").unlink(),
        ("bundle.json: it is missing",),
        ("[FAIL] bundle.json: it is missing",),
    ),
    "readme edited": (
        edit_text("README.txt", b"demo 1", b"demo 2"),
        ("README.txt: found SHA-256",),
        ("[FAIL] README.txt: found SHA-256",),
    ),
    "checksum of a part edited": (
        edit_text("SHA256SUMS", b"  payload.tar.000", b"0  payload.tar.000"),
        ("SHA256SUMS: line 6: found", "needed a SHA-256, two spaces and a plain file name"),
        ("[FAIL] SHA256SUMS: a line is not a SHA-256 and a plain file name",),
    ),
    "checksum line dropped": (
        drop_line("payload.tar.009"),
        ("SHA256SUMS: payload.tar.009 is not listed, but bundle.json lists it",),
        ("needed 12", "[FAIL] payload.tar.009: the bundle does not list it"),
    ),
    "checksums with an escaping name": (
        edit_text("SHA256SUMS", b"  README.txt", b"  ../../etc/passwd"),
        ("SHA256SUMS: line 1: found",),
        ("[FAIL] SHA256SUMS: a line is not",),
    ),
    "several at once": (
        lambda b: [os.truncate(b / "payload.tar.000", 9), (b / "payload.tar.010").unlink(), (b / "x").write_bytes(b"")],
        ("payload.tar.000: it is cut short", "payload.tar.010: it is missing", "x: found a file"),
        ("[FAIL] payload.tar.000", "[FAIL] payload.tar.010", "[FAIL] x: the bundle"),
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_with_python(bundle, case):
    damage, words, _ = DAMAGE[case]
    damage(bundle)
    before = snapshot(bundle)
    done = install_sh(bundle, "--verify")
    assert done.returncode == ExitCode.INTEGRITY, done.stdout + done.stderr
    for word in words:
        assert word in done.stdout, done.stdout
    assert "What to do: " in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert snapshot(bundle) == before


@pytest.mark.parametrize("case", DAMAGE)
def test_without_python(bundle, case):
    damage, _, words = DAMAGE[case]
    damage(bundle)
    before = snapshot(bundle)
    done = install_sh(bundle, "--verify", python="none", shell_name="dash")
    assert done.returncode == ExitCode.INTEGRITY, done.stdout + done.stderr
    for word in words:
        assert word in done.stdout, done.stdout
    assert "What to do: " in done.stdout
    assert snapshot(bundle) == before


_SHOWS_ONLY_WHEN_READ = {"flipped", "swapped", "copied over another"}


@pytest.mark.parametrize("case", sorted(set(DAMAGE) - _SHOWS_ONLY_WHEN_READ))
def test_nothing_is_installed_from_it(bundle, case):
    """Whatever shows without reading the parts is refused before anything else is done."""
    DAMAGE[case][0](bundle)
    with pytest.raises(IntegrityError) as caught:
        trust(bundle)
    assert caught.value.details
    assert caught.value.remedy


def test_other_parts_stay_good(bundle):
    flip(bundle / "payload.tar.007", 4000)
    done = install_sh(bundle, "--verify")
    assert done.stdout.count("[FAIL]") == 1
    assert done.stdout.count(": 1 of 1 pieces are whole") == 11


def test_a_damaged_site_program_is_never_run(bundle):
    flip(bundle / "onsite.pyz", 5000)
    done = install_sh(bundle, "--status")
    assert done.returncode == ExitCode.INTEGRITY
    assert "onsite.pyz is damaged: found SHA-256 " in done.stderr
    assert "What to do: copy the bundle again" in done.stderr
    done = install_sh(bundle, "--verify")
    assert done.returncode == ExitCode.INTEGRITY
    assert "[FAIL] onsite.pyz: found SHA-256" in done.stdout
    done = install_sh(bundle, "--help")
    assert done.returncode == 0
    assert "--verify" in done.stdout


@pytest.mark.parametrize("name", ["onsite.pyz", "SHA256SUMS"])
def test_a_missing_file_of_the_site_program(bundle, name):
    (bundle / name).unlink()
    done = install_sh(bundle)
    assert done.returncode == ExitCode.INTEGRITY
    assert f"{name} is missing" in done.stderr


def test_debris_is_tolerated(bundle):
    for name in ("._payload.tar.000", ".DS_Store", "Thumbs.db", "desktop.ini", "FSCK0000.REC"):
        (bundle / name).write_bytes(b"debris")
    for name in (
        "System Volume Information",
        ".Trashes",
        "$RECYCLE.BIN",
        ".Spotlight-V100",
        ".fseventsd",
        "lost+found",
    ):
        (bundle / name).mkdir()
    before = snapshot(bundle)
    for python in (None, "none"):
        done = install_sh(bundle, "--verify", python=python)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "ignored, left by an operating system: $RECYCLE.BIN" in done.stderr
    assert snapshot(bundle) == before
