"""bundle.json made to hurt its reader, with a SHA256SUMS that vouches for it: refused in a sentence, and soon."""

from __future__ import annotations

import hashlib
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airbundle_onsite.contract import layout
from airbundle_onsite.errors import ExitCode
from parts.bundles import make_bundle

MEMORY = 600 << 20  # bytes of address space; a gigabyte of spaces must not be read into it


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("whole") / "demo-1", {"models/m/w.gguf": bytes(4096)})


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return edit


BOMBS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "deep arrays": (lambda data: b"[" * 1_000_000, "not valid JSON"),
    "deep objects": (lambda data: b'{"a":' * 1_000_000, "not valid JSON"),
    "not a number": (replaced(b'"created": 1', b'"created": NaN, "x-a": 1'), "NaN is not a JSON number"),
    "infinity": (replaced(b'"created": 1', b'"created": -Infinity, "x-a": 1'), "-Infinity is not a JSON number"),
    "a key twice": (replaced(b'"name": "demo"', b'"name": "demo", "name": "evil"'), "the key 'name' appears twice"),
    "a huge integer": (replaced(b'"created": 1', b'"created": ' + b"9" * 1_000_000 + b', "x-a": 1'), "bundle.json"),
    "a negative size": (replaced(b'"size": 4096', b'"size": -4096'), "negative size"),
    "true for a number": (replaced(b'"size": 4096', b'"size": true'), "expected an integer"),
    "no UTF-8": (replaced(b'"demo"', b'"d\xffmo"'), "not valid JSON"),
    "a mark before it": (lambda data: b"\xef\xbb\xbf" + data, "not valid JSON"),
    "UTF-16": (lambda data: data.decode().encode("utf-16"), "not valid JSON"),
    "null": (lambda data: b"null\n", "expected an object"),
    "empty": (lambda data: b"", "bundle.json"),
    "a name that leaves": (replaced(b'"name": "demo"', b'"name": "../../../etc"'), "name '../../../etc'"),
    "a version that leaves": (replaced(b'"version": "1"', b'"version": ".."'), "version '..'"),
    "the store's own file as version": (replaced(b'"version": "1"', b'"version": "seen.json"'), "version 'seen.json'"),
    "a newer schema": (replaced(b'"schema_version": 1', b'"schema_version": 99'), "this tool reads version 1"),
    "a wrong type everywhere": (replaced(b'"files": [', b'"files": 5, "x-files": ['), "files: expected an array"),
}


def sealed(whole: Path, target: Path, edit: Callable[[bytes], bytes]) -> Path:
    shutil.copytree(whole, target)
    manifest, sums = target / layout.MANIFEST, target / layout.CHECKSUMS
    before = manifest.read_bytes()
    after = edit(before)
    manifest.write_bytes(after)
    old, new = (hashlib.sha256(data).hexdigest().encode() for data in (before, after))
    sums.write_bytes(sums.read_bytes().replace(old, new))
    return target


def verify(bundle: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(bundle / "onsite.pyz"), "--bundle", str(bundle), *words],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("case", BOMBS)
def test_a_bomb(whole: Path, tmp_path: Path, case: str) -> None:
    edit, sentence = BOMBS[case]
    bundle = sealed(whole, tmp_path / "demo-1", edit)
    began = time.monotonic()
    done = verify(bundle, "--verify")
    assert done.returncode == ExitCode.INTEGRITY, done.stdout[-2000:] + done.stderr[-2000:]
    assert sentence in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert len(done.stdout) < 20_000
    assert time.monotonic() - began < 20


def test_it_is_not_installed_either(whole: Path, tmp_path: Path) -> None:
    bundle = sealed(whole, tmp_path / "demo-1", BOMBS["deep arrays"][0])
    done = verify(bundle, "--yes", "--root", str(tmp_path / "root"))
    assert done.returncode == ExitCode.INTEGRITY, done.stderr
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", ["bundle.json", "SHA256SUMS", "bundle.json.sig"])
def test_a_gigabyte_of_spaces(whole: Path, tmp_path: Path, name: str) -> None:
    bundle = shutil.copytree(whole, tmp_path / "demo-1")
    with (bundle / name).open("wb") as file:
        file.truncate(1 << 30)
    done = verify(bundle, "--verify")
    assert done.returncode in (ExitCode.INTEGRITY, ExitCode.TRUST), done.stdout + done.stderr
    assert f"{name}: " in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "mark", [b" *", b" ./", b"  /etc/", b"\t", b" "], ids=["binary", "dot", "absolute", "tab", "one space"]
)
def test_lines_of_checksums_that_other_tools_write(whole: Path, tmp_path: Path, mark: bytes) -> None:
    bundle = shutil.copytree(whole, tmp_path / "demo-1")
    sums = bundle / layout.CHECKSUMS
    sums.write_bytes(sums.read_bytes().replace(b"  README.txt", mark + b"README.txt"))
    done = verify(bundle, "--verify")
    assert done.returncode == ExitCode.INTEGRITY
    assert "needed a SHA-256, two spaces and a plain file name" in done.stdout
