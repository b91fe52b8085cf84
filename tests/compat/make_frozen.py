"""Makes the bundles of a format's folder: ``PYTHONPATH=tests python tests/compat/make_frozen.py FOLDER KEY``.

A frozen bundle is made once and never again, since what is shown by it is that today's programs understand what
earlier ones wrote. This is for the next format, and to see how those of format 1 came about. KEY is the private half
of an ed25519 key pair, which ``airbundle keygen`` makes; what that prints for the site goes into
FOLDER/allowed_signers.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airbundle.cache import Cache
from airbundle.delta.base import Known, read_base
from airbundle.delta.rebase import rebase
from airbundle.delta.thin import Difference
from airbundle.signing import SigningKey, open_key, resign
from airbundle.splitting import pack
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.artifacts import WheelEntry
from airbundle_onsite.contract.base import Rollback
from airbundle_onsite.contract.manifest import BundleManifest, decode_manifest
from airbundle_onsite.system import Silent, SystemRunner
from parts import floats, gguf, images, tuned, wheels
from parts.bundles import seal
from parts.sites import release_bundle

# Real ones have 2 MB. This one does what the installer asks of it: put the wheels where they are imported from.
_PIP = """\
import hashlib, pathlib, sys, sysconfig, zipfile
words = sys.argv[1:]
assert words[0] == "install" and "--no-index" in words and "--require-hashes" in words, words
folder = pathlib.Path(words[words.index("--find-links") + 1])
for line in pathlib.Path(words[words.index("--requirement") + 1]).read_text().splitlines():
    project, wanted = line.split(" --hash=sha256:")
    wheel = next(folder.glob(project.replace("==", "-") + "-*.whl"))
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == wanted, wheel
    zipfile.ZipFile(wheel).extractall(sysconfig.get_path("purelib"))
"""
_COUNT, _SIZE = 4, 32_768
_ENGINE = images.Config(entrypoint=("/usr/bin/llama-server",))
_SPEC = """\
[bundle]
name = "image"
version = "v1"
[target]
profile = "cpu-x86_64"
[model]
source = "local:model.gguf"
served_name = "tiny"
[engine]
name = "llama.cpp"
[image]
source = "docker-archive:frozen.image.tar"
name = "airbundle-test/frozen:1"
[runtime]
kind = "docker"
[serving]
context = 64
"""


def make(folder: Path, key: SigningKey) -> None:
    """Bundles v1 to v5 under `folder`: in two parts, by difference, compressed, one file, and whole with wheels;
    one that leads back from v4 to v1; and one with a container image."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        _without_program(_release(folder, "v1", more=_weights(), part_size=100_000), key)
        second = _release(work, "v2", more=_weights(changed=2, note="a header that grew"))
        _without_program(_again(second, folder, work, read_base(folder / "demo-v1", Cache(work / "cache"))), key)
        third = _release(work, "v3", more=_weights(changed=1))
        _without_program(_again(third, folder, work, compress=True), key)
        fourth = _without_program(_release(folder, "v4", more=_weights()), key)
        pack(fourth, folder / "demo-v4.tar", Silent(), replace=False)
        _whole(folder, work, key)
        make_back(folder, key)
        make_image(folder, key)


def make_back(folder: Path, key: SigningKey) -> None:
    """``demo-v1-from-v4``, which takes from v4 what is the same in v1."""
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(folder / "demo-v4.tar") as archive:
            archive.extractall(scratch, filter="data")
        cache, newer = Cache(Path(scratch) / "cache"), Path(scratch) / "demo-v4"
        rollback = Rollback("v4", decode_manifest((newer / layout.MANIFEST).read_bytes()).sequence)
        difference = Difference(tuple(read_base(newer, cache)), rollback=rollback)
        made = rebase(folder / "demo-v1", difference, cache, folder, part_size=0, talk=Silent())
    _without_program(made.directory, key)


def make_image(folder: Path, key: SigningKey) -> None:
    """``image-v1``, as ``airbundle build`` writes it: a container image of a few files, and a model."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        images.small_image(work, "frozen", {"bin/engine": b"#!/bin/sh\n", "etc/version": b"1\n"}, _ENGINE)
        (work / "model.gguf").write_bytes(gguf.language_model())
        (work / "image.toml").write_text(_SPEC)
        words = ["build", str(work / "image.toml"), "-o", str(folder), "--cache", str(work / "cache"), "--quiet"]
        subprocess.run([sys.executable, "-m", "airbundle", *words], check=True)
    _without_program(folder / "image-v1", key)


def _release(folder: Path, version: str, **options: Any) -> Path:
    return release_bundle(folder, version, weights=b"GGUF" + bytes(2000), **options)


def _weights(*, changed: int = -1, note: str = "") -> dict[str, bytes]:
    """A model of four tensors, one of which is `changed`."""
    made = {
        f"layer.{number:03d}.weight": floats.bf16(floats.normal(_SIZE // 2, 100 + number + 50 * (number == changed)))
        for number in range(_COUNT)
    }
    return tuned.shards(made, 1, note=note)


def _again(bundle: Path, folder: Path, work: Path, known: Sequence[Known] = (), *, compress: bool = False) -> Path:
    cache = Cache(work / "cache")
    made = rebase(bundle, Difference(tuple(known)), cache, folder, part_size=0, talk=Silent(), compress=compress)
    return made.directory


def _without_program(bundle: Path, key: SigningKey) -> Path:
    """Without the site's program, which is far larger than the rest and installed by another one of that format."""
    manifest = decode_manifest((bundle / layout.MANIFEST).read_bytes())
    (bundle / layout.ONSITE).unlink()
    seal(bundle, replace(manifest, outer=tuple(each for each in manifest.outer if each.name != layout.ONSITE)))
    resign(bundle, [key], replace=True, talk=Silent())
    return bundle


def _whole(folder: Path, work: Path, key: SigningKey) -> None:
    """With the program and with wheels, and compressed: all that its own installer can be asked to do."""
    pip = wheels.make_wheel(work / "wheels", "pip", "99.0", files={"pip/__main__.py": _PIP})
    other = wheels.make_wheel(work / "wheels", "answering", "1.0")
    files = {f"wheels/{path.name}": path.read_bytes() for path in (pip, other)}
    hashes = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    entries = tuple(
        WheelEntry(path.split("/")[1].split("-")[0], path.split("-")[1], path, hashes[path]) for path in hashes
    )
    required = f"answering==1.0 --hash=sha256:{hashes[f'wheels/{other.name}']}\n"

    def edit(manifest: BundleManifest) -> BundleManifest:
        return replace(manifest, wheels=entries, launch=tuple(replace(each, wheels=True) for each in manifest.launch))

    more = {**files, layout.REQUIREMENTS: required.encode(), **_weights(changed=3)}
    bundle = _again(_release(work, "v5", more=more, edit=edit), folder, work, compress=True)
    resign(bundle, [key], replace=True, talk=Silent())


def _no_passphrase(question: str) -> str:
    raise SystemExit(f"{question} A key without a passphrase is needed.")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if list(target.glob("*-v*")):
        sys.exit(f"{target} has frozen bundles already, which stay as they are")
    target.mkdir(parents=True, exist_ok=True)
    make(target, open_key(Path(sys.argv[2]), ask=_no_passphrase, runner=SystemRunner()))
