"""What the site holds a bundle by difference against, and what it puts together from it."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from airbundle.assemble import Member, plan_payload, write_payload
from airbundle_onsite.contract.artifacts import ImageEntry, Layer
from airbundle_onsite.contract.base import BaseFile, BaseRelease, Rollback
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.payload import FileEntry, Payload, Segment
from airbundle_onsite.contract.record import decode_json, encode
from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.runtimes.base import Blob
from airbundle_onsite.runtimes.docker_archive import docker_archive
from airbundle_onsite.runtimes.docker_layers import cannot_complete, check_layers
from airbundle_onsite.store.rebuild import rebuilt
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import trust
from airbundle_onsite.verify.stream import PayloadReader
from parts.bundles import make_bundle, seal

OLD = bytes(range(256)) * 16
NEW = b"head" + OLD[:1000] + b"middle" + OLD[2000:]
DIGEST = sha256(OLD).hexdigest()
SEGMENTS = (Segment(4, 0), Segment(1000, 0, DIGEST), Segment(6, 1004), Segment(len(OLD) - 2000, 2000, DIGEST))
BASE = BaseRelease("demo", "0", "1" * 64, (BaseFile("models/m/old", len(OLD), DIGEST),))


def member(path: str, data: bytes, segments: tuple[Segment, ...] = ()) -> Member:
    role = "model" if path.startswith("models") else "config"
    return Member(path, role, len(data), sha256(data).hexdigest(), data, segments)  # type: ignore[arg-type]


def delta(folder: Path, edit: Callable[[BundleManifest], BundleManifest] = lambda made: made) -> Path:
    """A bundle of a file that is whole, one that is partly new, one that the base has, and one that is empty."""
    bundle = make_bundle(folder / "bundle", {})
    (bundle / "payload.tar.000").unlink()
    plan = plan_payload(
        [
            member("config/a", b"whole"),
            member("models/m/new", NEW, SEGMENTS),
            member("models/m/same", OLD, (Segment(len(OLD), 0, DIGEST),)),
            member("config/z", b""),
        ],
        0,
    )
    payload: Payload = write_payload(plan, bundle, part_size=700)
    manifest = decode_json(BundleManifest, (bundle / "bundle.json").read_bytes(), "bundle.json")
    seal(bundle, edit(dataclasses.replace(manifest, payload=payload, files=plan.entries(), bases=(BASE,))))
    return bundle


@pytest.fixture
def base(tmp_path: Path) -> dict[str, Path]:
    path = tmp_path / "old"
    path.write_bytes(OLD)
    return {DIGEST: path}


def read(bundle: Path, base: dict[str, Path]) -> dict[str, bytes]:
    found = {}
    for entry, chunks in PayloadReader(trust(bundle), Silent()).files():
        found[entry.path] = b"".join(rebuilt(entry, chunks, base) if entry.from_base else chunks)
    return found


def test_files_are_put_together(tmp_path: Path, base: dict[str, Path]) -> None:
    assert read(delta(tmp_path), base) == {
        "config/a": b"whole",
        "models/m/new": NEW,
        "models/m/same": OLD,
        "config/z": b"",
    }


def test_the_payload_holds_only_what_is_new(tmp_path: Path) -> None:
    manifest = trust(delta(tmp_path)).manifest
    members = [entry.member for entry in manifest.files]
    assert members == ["config/a", f"delta/{sha256(NEW).hexdigest()}", "", "config/z"]
    assert [entry.packed for entry in manifest.files] == [5, 10, 0, 0]
    assert decode_json(BundleManifest, encode(manifest), "again") == manifest


def test_a_base_of_other_bytes_is_named(tmp_path: Path, base: dict[str, Path]) -> None:
    bundle = delta(tmp_path)
    base[DIGEST].write_bytes(OLD[:-1] + b"!")
    with pytest.raises(IntegrityError, match="models/m/new cannot be put together") as caught:
        read(bundle, base)
    assert caught.value.details == (f"{base[DIGEST]}: its content was changed since it was installed",)


@pytest.mark.parametrize("spoil", ["short", "gone", "link", "directory"])
def test_a_base_that_is_no_file_is_named(tmp_path: Path, base: dict[str, Path], spoil: str) -> None:
    bundle, path = delta(tmp_path), base[DIGEST]
    path.unlink()
    if spoil == "short":
        path.write_bytes(OLD[:100])
    elif spoil == "link":
        path.symlink_to(bundle / "bundle.json")
    elif spoil == "directory":
        path.mkdir()
    with pytest.raises(IntegrityError) as caught:
        read(bundle, base)
    assert str(path) in caught.value.details[0]


def test_a_base_that_nobody_found(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=f"SHA-256 {DIGEST}, is not here"):
        read(delta(tmp_path), {})


def test_a_bundle_built_wrongly_is_not_blamed_on_the_site(tmp_path: Path, base: dict[str, Path]) -> None:
    def edit(made: BundleManifest) -> BundleManifest:
        files = list(made.files)
        first, taken, *rest = files[1].segments
        files[1] = dataclasses.replace(files[1], segments=(first, dataclasses.replace(taken, offset=1), *rest))
        return dataclasses.replace(made, files=tuple(files))

    with pytest.raises(IntegrityError, match="though all that it is made of is whole"):
        read(delta(tmp_path, edit), base)


# --- the contract -----------------------------------------------------------------------------------------
def entry(*segments: Segment, role: str = "model") -> FileEntry:
    path = {"image": "images/x", "model": "models/x"}[role]
    return FileEntry(path, role, sum(each.size for each in segments), "2" * 64, segments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("segments", "reason"),
    [
        ((Segment(1, 0), Segment(1, 5)), "do not follow each other"),
        ((Segment(1, 5), Segment(3, 0, DIGEST), Segment(1, 5)), "do not follow each other"),
        ((Segment(1, 0, "abc"),), "is not a SHA-256"),
        ((Segment(1, -1, DIGEST),), "negative"),
    ],
)
def test_segments_that_cannot_be(segments: tuple[Segment, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        entry(*segments)


def with_files(*files: FileEntry, **changes: object) -> BundleManifest:
    made = decode_json(BundleManifest, _plain(), "bundle.json")
    return dataclasses.replace(made, files=files, **changes)  # type: ignore[arg-type]


def _plain() -> bytes:
    needs = '{"profile": {"id": "any", "title": "t", "arch": "x86_64"}, "runtime": "venv", "disk": 0}'
    return (
        '{"schema_version": 1, "name": "demo", "version": "1", "sequence": 5, "created": 1, "tool": "t", '
        f'"payload": {{"size": 0, "parts": []}}, "outer": [], "files": [], "needs": {needs}, "serving": {{}}}}'
    ).encode()


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (entry(Segment(len(OLD), 1, DIGEST)), "or a shorter one"),
        (entry(Segment(1, 0, "3" * 64)), "lists no such file"),
        (entry(Segment(1, 0, DIGEST), role="image"), "cannot take bytes from a base"),
    ],
)
def test_bytes_that_no_base_has(file: FileEntry, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        with_files(file, bases=(BASE,))


def layer(name: str) -> Layer:
    digest = f"sha256:{sha256(name.encode()).hexdigest()}"
    return Layer(digest, 1, digest, "application/vnd.oci.image.layer.v1.tar")


def image(names: str) -> ImageEntry:
    return ImageEntry("i:1", layer("m").digest, "", layer("c").digest, "linux/amd64", tuple(map(layer, names)), 1)


def thin_image(names: str, absent: str) -> BundleManifest:
    base = dataclasses.replace(BASE, layers=tuple(layer(name).digest for name in absent))
    return with_files(images=(image(names),), bases=(base,))


def test_layers_are_left_out_only_from_below() -> None:
    assert thin_image("abc", "ab").absent_layers == {layer("a").digest, layer("b").digest}
    with pytest.raises(ValueError, match="above layers that were not"):
        thin_image("abc", "bc")


@pytest.mark.parametrize(
    ("stacks", "status"), [(["ab"], "pass"), (["abx", "q"], "pass"), (["ba"], "fail"), ([], "fail")]
)
def test_the_engine_must_have_the_layers_in_place(stacks: list[str], status: str) -> None:
    found = [[layer(name).diff_id for name in names] for names in stacks]
    (check,) = check_layers(thin_image("abc", "ab"), found)
    assert check.status == status
    if status == "fail":
        assert check.actual == "0 of them"
        assert "--base-skip images" in check.remedy


def test_an_archive_lists_layers_that_do_not_come() -> None:
    manifest = thin_image("abc", "ab")
    blobs = (Blob(f"images/blobs/{layer(name).digest.replace(':', '/')}", 1, [b"x"]) for name in "mcz")
    with pytest.raises(IntegrityError, match="not in the payload"):
        list(docker_archive(manifest.images, blobs, {layer("a").digest}))
    blobs = (Blob(f"images/blobs/{layer(name).digest.replace(':', '/')}", 1, [b"x"]) for name in "mc")
    made = b"".join(docker_archive(manifest.images, blobs, manifest.absent_layers))
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        names = archive.getnames()
        (listed,) = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
    assert len(listed["Layers"]) == 3
    assert set(listed["Layers"]) - set(names) == {f"blobs/{layer(name).digest.replace(':', '/')}" for name in "ab"}


def test_an_engine_that_takes_only_whole_images() -> None:
    check = cannot_complete(thin_image("abc", "ab"), "podman")
    assert (check.status, check.actual) == ("fail", "podman")
    assert "i:1 came without the layers of demo 0" in check.summary


def test_what_a_site_takes_after() -> None:
    assert with_files().taken_after == 5
    assert with_files(rollback=Rollback("2", 9)).taken_after == 9
    assert with_files(rollback=Rollback("2", 3)).taken_after == 5
