"""The order on the site: signature, manifest, parts, entries, content. Nothing acts on what was not yet proven."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import encode
from airbundle_onsite.verify import checksums
from airbundle_onsite.verify.bundle import trust
from parts import keys, watched_site
from parts.bundles import flip, make_bundle, tar_member, tar_of
from parts.keys import Key, sign, signed
from parts.sites import release_bundle

IMAGE = "images/blobs/sha256/" + "a" * 64
BEFORE_THE_MANIFEST = ["SHA256SUMS", "bundle.json", "bundle.json.sig"]
HOSTILE = {
    "nested": b"[" * 200_000,
    "not JSON": b"{]",
    "not UTF-8": b"\xff\xfe{}",
    "another schema": b'{"schema_version": 9}',
    "a huge number": b'{"schema_version": ' + b"9" * 100_000 + b"}",
    "empty": b"",
}


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return keys.make_key(tmp_path_factory.mktemp("keys"), "alice")


@pytest.fixture(scope="module")
def mallory(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return keys.make_key(tmp_path_factory.mktemp("keys"), "mallory")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release_bundle(tmp_path_factory.mktemp("bundles"), "v1", more={IMAGE: b"layer" * 1000})


class Seen:
    """What one run did, and how it ended."""

    def __init__(self, code: int, said: str, events: list[tuple[str, str]]) -> None:
        self.code, self.said, self.events = code, said, events

    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.events}

    def names(self, kind: str) -> list[str]:
        return list(dict.fromkeys(name for each, name in self.events if each == kind))

    def first(self, kind: str, name: str = "") -> int:
        return next(at for at, (each, what) in enumerate(self.events) if each == kind and what.startswith(name))

    def last(self, kind: str, name: str = "") -> int:
        return max(at for at, (each, what) in enumerate(self.events) if each == kind and what.startswith(name))


def _run(bundle: Path, tmp_path: Path, *words: object) -> Seen:
    record, root = tmp_path / "events.json", tmp_path / "root"
    argv = [sys.executable, watched_site.__file__, record, bundle, root, *words]
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), str(tests.parent / "installer")])
    done = subprocess.run(
        list(map(str, argv)), capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": paths}
    )
    assert record.exists(), done.stderr
    events = [(kind, name) for kind, name in json.loads(record.read_text())]
    return Seen(done.returncode, done.stdout + done.stderr, events)


def _reseal(bundle: Path, data: bytes) -> None:
    """Other bytes as bundle.json, with a SHA256SUMS that vouches for them."""
    sums, _ = checksums.parse((bundle / layout.CHECKSUMS).read_bytes())
    (bundle / layout.MANIFEST).write_bytes(data)
    (bundle / layout.CHECKSUMS).write_bytes(checksums.text({**sums, layout.MANIFEST: hashlib.sha256(data).hexdigest()}))


def test_everything_happens_in_its_turn(plain: Path, alice: Key, tmp_path: Path) -> None:
    seen = _run(signed(plain, tmp_path, alice), tmp_path, "--stage")
    assert seen.code == 0, seen.said
    assert seen.names("reads")[:3] == BEFORE_THE_MANIFEST
    key, install = seen.first("asks"), seen.last("asks")
    turns = [
        seen.first("reads", "bundle.json.sig"),
        key,  # whose key it is, before the manifest is parsed
        seen.first("reads", "install.sh"),
        seen.first("writes", "lock"),
        seen.first("looks at the host"),
        install,
        seen.first("writes", ".allowed_signers"),
        seen.first("journal", "before begin"),
        seen.first("reads", "payload.tar.000"),  # whole pieces, ahead of whoever takes them
        seen.first("image bytes"),
        seen.first("writes", "staging/demo-v1/models"),
        seen.last("writes", "staging/demo-v1/config"),
        seen.first("writes", "releases/demo/v1"),
        seen.first("runtime", "prepare"),
    ]
    assert turns == sorted(turns), seen.events
    assert seen.first("journal", "begin") < seen.first("runtime", "load_images") < seen.first("image bytes")


@pytest.mark.parametrize("content", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize("how", ["by somebody else", "over other bytes", "missing"])
def test_no_manifest_is_parsed_without_its_signature(
    plain: Path, alice: Key, mallory: Key, tmp_path: Path, how: str, content: bytes
) -> None:
    bundle = signed(plain, tmp_path, alice)
    _reseal(bundle, content)
    if how != "over other bytes":
        sign(bundle, *([mallory] if how == "by somebody else" else []))
    signers = tmp_path / "signers"
    signers.write_text(alice.line)
    seen = _run(bundle, tmp_path, "--allowed-signers", signers, "--yes")
    assert seen.code == 6, seen.said
    assert seen.names("reads") == BEFORE_THE_MANIFEST[: 2 if how == "missing" else 3]
    assert seen.kinds() == {"reads"}, seen.events
    assert "JSON" not in seen.said and "schema_version" not in seen.said


def test_a_key_that_is_not_accepted_ends_it_before_the_manifest(plain: Path, alice: Key, tmp_path: Path) -> None:
    bundle = signed(plain, tmp_path, alice)
    _reseal(bundle, HOSTILE["nested"])
    sign(bundle, alice)
    seen = _run(bundle, tmp_path, "--yes")
    assert (seen.code, seen.kinds(), seen.names("reads")) == (6, {"reads"}, BEFORE_THE_MANIFEST), seen.said


@pytest.mark.parametrize("content", HOSTILE.values(), ids=list(HOSTILE))
def test_a_signed_manifest_that_cannot_be_read_ends_it_before_the_parts(
    plain: Path, alice: Key, tmp_path: Path, content: bytes
) -> None:
    bundle = signed(plain, tmp_path, alice)
    _reseal(bundle, content)
    sign(bundle, alice)
    seen = _run(bundle, tmp_path, "--accept-signer", alice.fingerprint, "--yes")
    assert (seen.code, seen.kinds(), seen.names("reads")) == (5, {"reads"}, BEFORE_THE_MANIFEST), seen.said


def _flip_part(bundle: Path) -> None:
    flip(bundle / "payload.tar.000", 5000)


def _cut_part(bundle: Path) -> None:
    os.truncate(bundle / "payload.tar.000", 4096)


@pytest.mark.parametrize(("damage", "started"), [(_flip_part, True), (_cut_part, False)])
def test_no_byte_of_a_bad_part_is_used(
    plain: Path, alice: Key, tmp_path: Path, damage: Callable[[Path], None], started: bool
) -> None:
    bundle = signed(plain, tmp_path, alice)
    damage(bundle)
    seen = _run(bundle, tmp_path, "--accept-signer", alice.fingerprint, "--yes")
    assert seen.code == 5, seen.said
    assert ("writes" in seen.kinds()) is started, "a part of a wrong size is found before anything begins"
    assert "image bytes" not in seen.kinds()
    assert not [name for name in seen.names("writes") if name.startswith(("releases", "weights", "staging/demo-v1/"))]
    assert "start" not in seen.names("runtime")


def test_an_entry_that_is_not_the_manifests_reaches_no_final_path(alice: Key, plain: Path, tmp_path: Path) -> None:
    """The bytes are those that were signed: the tar itself is hostile, from its second member on."""
    model = trust(plain).manifest
    names = [entry.path for entry in model.files]
    members = [(tar_member(names[0]), b"layer" * 1000), (tar_member("../../escaped"), b"x")]

    def same(made: BundleManifest) -> BundleManifest:
        return replace(made, launch=model.launch, serving=model.serving, models=model.models)

    files = {names[0]: b"layer" * 1000, "models/demo/model.gguf": b"GGUF" + bytes(200_000)}
    bundle = make_bundle(tmp_path / "demo-v1", files, version="v1", edit=same, raw_tar=tar_of(members))
    sign(bundle, alice)
    seen = _run(bundle, tmp_path, "--accept-signer", alice.fingerprint, "--yes")
    assert seen.code == 5 and "escaped" in seen.said, seen.said
    assert not [name for name in seen.names("writes") if name.startswith(("releases", "weights")) or "escaped" in name]
    assert "start" not in seen.names("runtime")
    assert not list((tmp_path / "root" / "staging").iterdir())


def test_what_was_signed_is_what_is_decoded(plain: Path) -> None:
    """The manifest that is acted upon encodes to the very bytes that were signed."""
    assert encode(trust(plain).manifest) == (plain / layout.MANIFEST).read_bytes()
