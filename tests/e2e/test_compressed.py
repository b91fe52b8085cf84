"""Compressed weights, end to end: installed, also by difference, repaired, received, after a kill, and back again."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from airbundle.cache import Cache
from airbundle.delta.base import Known, read_base
from airbundle.delta.rebase import rebase
from airbundle.delta.thin import Difference
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.base import Rollback
from airbundle_onsite.contract.manifest import BundleManifest, decode_manifest
from airbundle_onsite.contract.payload import FileEntry, Segment
from airbundle_onsite.planes import BLOCK
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import trust
from parts import floats, sites, tuned
from parts.bundles import bytes_member, flip, plan_payload, seal, write_payload
from parts.gguf import language_model
from parts.journeys import airbundle
from parts.sites import Site, release_bundle
from parts.specs import write_spec

pytestmark = pytest.mark.timeout(300)

COUNT = 40
MODEL = "models/demo/model-00001-of-00002.safetensors"


def tensors(changed: frozenset[int] = frozenset()) -> dict[str, bytes]:
    """BF16 weights of 128 KiB each; those whose numbers are `changed` differ from the same call without."""
    values = floats.bf16(floats.normal(1 << 17, 7))
    other = floats.bf16(floats.normal(1 << 17, 8))
    size = tuned.TENSOR
    return {
        f"layer.{number:03d}.weight": (other if number in changed else values)[2 * number :][:size]
        for number in range(COUNT)
    }


def packed(bundle: Path, folder: Path, known: tuple[Known, ...] = (), rollback: Rollback | None = None) -> Path:
    """The bundle again, with its weights compressed, without what is known; from an empty cache."""
    made = rebase(
        bundle,
        Difference(known, rollback=rollback),
        Cache(folder / "cache"),
        folder / "packed",
        part_size=1_000_000,
        talk=Silent(),
        compress=True,
    )
    return made.directory


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plain")
    return {
        "v1": release_bundle(folder, "v1", more=tuned.shards(tensors(), 2)),
        "v2": release_bundle(folder, "v2", more=tuned.shards(tensors(frozenset({3, 30})), 2, note="more")),
    }


@pytest.fixture(scope="module")
def bundles(plain: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both compressed in full, and ``thin``: v2 upon the compressed v1, compressed."""
    folder = tmp_path_factory.mktemp("compressed")
    made = {version: packed(bundle, folder / version) for version, bundle in plain.items()}
    known = read_base(made["v1"], Cache(folder / "empty"))
    return {**made, "thin": packed(made["v2"], folder / "thin", known)}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with sites.site(tmp_path / "site") as made:
        yield made


def manifest_of(bundle: Path) -> BundleManifest:
    return trust(bundle).manifest


def require_whole(site: Site, bundle: Path) -> None:
    """Every file of the installed release has the SHA-256 of its manifest, and that of the plain bundle."""
    manifest = manifest_of(bundle)
    release = site.root / "releases/demo" / manifest.version
    found = {e.path: hashlib.sha256((release / e.path).read_bytes()).hexdigest() for e in manifest.files}
    assert found == {entry.path: entry.sha256 for entry in manifest.files}


def test_a_compressed_bundle_installs(site: Site, plain: Mapping[str, Path], bundles: Mapping[str, Path]) -> None:
    before, after = manifest_of(plain["v1"]), manifest_of(bundles["v1"])
    assert after.payload.size < 0.75 * before.payload.size
    assert [(e.path, e.size, e.sha256) for e in after.files] == [(e.path, e.size, e.sha256) for e in before.files]
    assert after.features == ("byte-planes",)
    assert "    packed/      weights that are compressed" in (bundles["v1"] / layout.README).read_text()
    assert "packed/" not in (plain["v1"] / layout.README).read_text()
    assert site.run("--bundle", bundles["v1"], "--verify").code == 0
    done = site.install(bundles["v1"])
    assert done.code == 0, done
    assert site.answer() == "Paris, says v1"
    require_whole(site, plain["v1"])
    assert site.leftovers() == []
    assert site.install(bundles["v1"]).code == 0
    assert site.install(bundles["v1"], "--reinstall").code == 0
    require_whole(site, plain["v1"])


def test_by_difference_and_back(
    site: Site, plain: Mapping[str, Path], bundles: Mapping[str, Path], tmp_path: Path
) -> None:
    """What the base has stays out, the rest is compressed; its tensors are read out of its own compressed bundle."""
    thin = manifest_of(bundles["thin"])
    assert thin.payload.size < 0.08 * manifest_of(plain["v2"]).payload.size
    assert any(segment.compressed for entry in thin.files for segment in entry.segments)
    assert any(segment.base for entry in thin.files for segment in entry.segments)
    assert site.install(bundles["v1"]).code == 0
    done = site.install(bundles["thin"])
    assert done.code == 0, done
    require_whole(site, plain["v2"])
    known = read_base(bundles["v2"], Cache(tmp_path / "empty"))
    back = packed(bundles["v1"], tmp_path, known, Rollback("v2", manifest_of(plain["v2"]).sequence))
    assert manifest_of(back).payload.size < 0.08 * manifest_of(plain["v1"]).payload.size
    assert site.run("--uninstall", "v1", "--yes").code == 0
    done = site.install(back)
    assert done.code == 0, done
    assert site.answer() == "Paris, says v1"
    require_whole(site, plain["v1"])


def test_damage_is_repaired_with_just_its_pieces(site: Site, bundles: Mapping[str, Path], tmp_path: Path) -> None:
    stick = tmp_path / "stick"
    shutil.copytree(bundles["v1"], stick)
    flip(stick / layout.part_name(1), 99)
    done = site.install(stick)
    assert done.code == 5, done
    assert "payload.tar.001, piece 1 of 1" in done.err
    assert site.run("--bundle", stick, "--repair-request", tmp_path / "request.json").code == 0
    airbundle("repair", bundles["v1"], "--request", tmp_path / "request.json", "-o", tmp_path / "answer").check()
    done = site.install(stick, "--patch", tmp_path / "answer/demo-v1-repair")
    assert done.code == 0, done
    require_whole(site, bundles["v1"])


def test_received_part_by_part(site: Site, bundles: Mapping[str, Path], tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    for path in bundles["v1"].iterdir():
        if not layout.PART_PATTERN.fullmatch(path.name):
            shutil.copy(path, small)
    for path in sorted(bundles["v1"].glob("payload.tar.*"), reverse=True):
        assert site.run("--bundle", small, "--receive", path).code == 0
    done = site.run("install", "--yes", "--port", site.port)
    assert done.code == 0, done
    require_whole(site, bundles["v1"])


def test_killed_while_it_is_staged_it_installs_the_next_time(site: Site, bundles: Mapping[str, Path]) -> None:
    assert site.install(bundles["v1"], kill_at="staging").code == -9
    done = site.install(bundles["v1"])
    assert done.code == 0, done
    require_whole(site, bundles["v1"])
    assert site.leftovers() == []


def test_split_and_inspected_and_compared(
    plain: Mapping[str, Path], bundles: Mapping[str, Path], tmp_path: Path
) -> None:
    airbundle("split", bundles["v1"], "-o", tmp_path, "--part-size", "2MB").check()
    airbundle("verify", tmp_path / "demo-v1").check()
    text = airbundle("inspect", tmp_path / "demo-v1").check().out
    assert "weights compressed: " in text
    said = airbundle("diff", bundles["v1"], bundles["v2"], "--json").check().json
    assert said == airbundle("diff", plain["v1"], plain["v2"], "--json").check().json


def test_asked_for_on_the_command_line_and_in_the_spec(tmp_path: Path, wheel_index: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(language_model(vocabulary=1000, width=64))
    spec = write_spec(tmp_path / "tiny.toml", wheel_index, tmp_path / "m.gguf")
    said = airbundle("build", spec, "-o", tmp_path / "plain", "--json").check().json
    assert "compressed" not in said
    plain = airbundle("plan", spec, "--json").check().json
    wanted = ("build", spec, "--dry-run", "--compress", "weights", "--json")
    before = airbundle(*wanted).check().json
    assert (before["payload"], before["compression"]["saved"]) == (plain["payload"], 0)
    assert plain["payload"] >= said["manifest"]["payload"]["size"], "an estimate from above"
    assert before["office_peak"] == plain["office_peak"] + before["compression"]["untried"]
    first = airbundle("build", spec, "-o", tmp_path / "a", "--compress", "weights", "--json").check().json
    again = airbundle("build", spec, "-o", tmp_path / "b", "--compress", "weights", "--json").check().json
    assert again["manifest"] == first["manifest"]
    airbundle("verify", tmp_path / "a/tiny-v1").check()
    assert first["compressed"]["saved"] > 0.1 * said["manifest"]["payload"]["size"]
    after = airbundle(*wanted).check().json
    assert (after["compression"]["saved"], after["compression"]["untried"]) == (first["compressed"]["saved"], 0)
    assert after["payload"] == plain["payload"] - first["compressed"]["saved"] >= first["manifest"]["payload"]["size"]
    in_spec = ("--set", "bundle.compress=weights")
    asked = airbundle("build", spec, "-o", tmp_path / "c", *in_spec).check()
    assert "Compressed 1 file(s) of weights from" in asked.out
    assert "need not travel" in airbundle("plan", spec, *in_spec).check().out
    assert "Compress" not in airbundle("build", spec, "--dry-run", "--compress", "none", *in_spec).check().out
    refused = airbundle("build", spec, "--compress", "everything").check(2)
    assert "weights" in refused.err


# --- builders who err, or mean harm --------------------------------------------------------------------------
def hostile(folder: Path, data: bytes, size: int, content: bytes = b"") -> Path:
    """v2 whose model is `data`, said to be `size` bytes compressed."""
    bundle = release_bundle(folder, "v2")
    manifest = decode_manifest((bundle / layout.MANIFEST).read_bytes())
    plan = plan_payload([bytes_member(f"packed/{hashlib.sha256(content).hexdigest()}", "model", data)], 0)
    for part in bundle.glob("payload.tar.*"):
        part.unlink()
    payload = write_payload(plan, bundle, part_size=0)
    (offset,) = [item.offset for item in plan.placed]
    entry = FileEntry(
        "models/demo/model.gguf",
        "model",
        size,
        hashlib.sha256(content).hexdigest(),
        (Segment(size, offset, compressed=len(data)),),
    )
    model = dataclasses.replace(manifest.models[0], size=size)
    seal(
        bundle,
        dataclasses.replace(
            manifest,
            payload=payload,
            files=(entry,),
            models=(model,),
            features=("byte-planes",),
            launch=manifest.launch,
        ),
    )
    return bundle


def _deflated(size: int) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    return stream.compress(bytes(size)) + stream.flush()


@pytest.mark.parametrize("kind", ["bomb", "short", "content"])
def test_what_does_not_decompress_is_refused(
    site: Site, bundles: Mapping[str, Path], tmp_path: Path, kind: str
) -> None:
    """The last release goes on, and nothing is left of the new one."""
    assert site.install(bundles["v1"]).code == 0
    made = {"bomb": _deflated(64 * BLOCK), "short": _deflated(BLOCK - 1), "content": _deflated(BLOCK)}[kind]
    bundle = hostile(tmp_path, struct.pack("<II", 1, len(made)) + made, BLOCK, b"other")
    assert site.run("--bundle", bundle, "--verify").code == 0  # every byte is as its builder wanted it
    done = site.install(bundle)
    assert done.code == 5, done
    needed = {
        "bomb": "block 0 of 1: plane 0: it holds more than the 262144 bytes needed",
        "short": "block 0 of 1: plane 0: it ends after 262143 bytes, needed 262144",
        "content": "put together, it has SHA-256",
    }[kind]
    assert needed in done.err
    assert "do not use this bundle" in done.err
    assert site.answer() == "Paris, says v1"
    assert site.leftovers() == []
    assert not (site.root / "releases/demo/v2").exists()


def test_a_program_that_is_too_old_says_so(site: Site, tmp_path: Path) -> None:
    """A bundle with a feature of tomorrow: one sentence, and not every key that is unknown."""
    bundle = release_bundle(tmp_path, "v1")
    text = (bundle / layout.MANIFEST).read_bytes()
    text = text.replace(
        b'"schema_version"', b'"features": ["byte-planes", "wavelets"],\n "waves": [],\n "schema_version"'
    )
    (bundle / layout.MANIFEST).write_bytes(text)
    sums = bundle / layout.CHECKSUMS
    lines = [line for line in sums.read_text().splitlines() if not line.endswith(layout.MANIFEST)]
    sums.write_text("\n".join([*lines, f"{hashlib.sha256(text).hexdigest()}  {layout.MANIFEST}"]) + "\n")
    done = site.install(bundle)
    assert done.code == 5, done
    assert "this bundle needs a program that can read wavelets, and this one, which is older, cannot" in done.err
    assert "unknown key" not in done.err
