"""Small bundles for tests: whole ones by the real assembler and renderer, and ones a hostile builder would make."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from airbundle.assemble import PayloadPlan, bytes_member, part_sizes, plan_payload, write_payload
from airbundle.outer import onsite_pyz, render_outer
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.manifest import SCHEMA_VERSION, BundleManifest, HostNeeds, Serving
from airbundle_onsite.contract.payload import FileEntry, OuterFile, Part, Payload, Role, Segment
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import encode
from airbundle_onsite.verify import checksums

EPOCH = 1_700_000_000
_ROLES: dict[str, Role] = {"images": "image", "wheels": "wheel", "models": "model", "licenses": "license"}


def make_bundle(
    directory: Path,
    files: Mapping[str, bytes],
    *,
    part_size: int = 0,
    name: str = "demo",
    version: str = "1",
    edit: Callable[[BundleManifest], BundleManifest] = lambda manifest: manifest,
    raw_tar: bytes | None = None,
) -> Path:
    """Write a bundle into `directory`, which is made.

    Args:
        directory: the bundle's own directory.
        files: payload paths with their content, in payload order.
        part_size: bytes per part; 0 for one part.
        name, version: the bundle's.
        edit: changes the manifest before it is written; SHA256SUMS then vouches for the changed one.
        raw_tar: bytes to use as the joined payload instead of a sound one, as a hostile builder would.
    """
    directory.mkdir(parents=True)
    plan = plan_payload([bytes_member(path, _role(path), data) for path, data in files.items()], EPOCH)
    if raw_tar is None:
        payload, entries = write_payload(plan, directory, part_size=part_size), plan.entries()
    else:
        payload, entries = _write_raw(raw_tar, directory, part_size), _entries_within(plan, raw_tar)
    draft = BundleManifest(
        schema_version=SCHEMA_VERSION,
        name=name,
        version=version,
        sequence=EPOCH,
        created=EPOCH,
        tool="airbundle test",
        payload=payload,
        outer=(),
        files=entries,
        needs=HostNeeds(
            profile=HardwareProfile(id="any", title="any machine", arch=os.uname().machine), runtime="venv", disk=0
        ),
        serving=Serving(),
    )
    outer = {**render_outer(draft), layout.ONSITE: onsite_pyz(EPOCH)}
    for file, data in outer.items():
        (directory / file).write_bytes(data)
    seal(directory, edit(replace(draft, outer=tuple(outer_entry(file, data) for file, data in sorted(outer.items())))))
    return directory


def seal(directory: Path, manifest: BundleManifest) -> None:
    """Write bundle.json and the SHA256SUMS that belongs to it."""
    data = encode(manifest)
    sums = {part.name: part.sha256 for part in manifest.payload.parts}
    sums.update((outer.name, outer.sha256) for outer in manifest.outer)
    sums[layout.MANIFEST] = hashlib.sha256(data).hexdigest()
    (directory / layout.MANIFEST).write_bytes(data)
    (directory / layout.CHECKSUMS).write_bytes(checksums.text(sums))


def outer_entry(name: str, data: bytes) -> OuterFile:
    """The manifest's entry of a file beside it."""
    return OuterFile(name, len(data), hashlib.sha256(data).hexdigest())


def tar_of(members: Sequence[tuple[tarfile.TarInfo, bytes]], *, tail: bytes = bytes(1024)) -> bytes:
    """A tar of any members whatever, sound or hostile, with `tail` as its end."""
    stream = io.BytesIO()
    for info, data in members:
        info.size = len(data)
        stream.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        stream.write(data + bytes(-len(data) % 512))
    return stream.getvalue() + tail


def tar_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    """A header for `tar_of`."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mtime = kind, link, EPOCH
    return info


def snapshot(directory: Path) -> dict[str, tuple[str, int, int, str]]:
    """What can be seen of a directory: kinds, sizes, modification times, content; shows that nothing changed."""
    seen = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = ""
        if stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(status.st_mode):
            content = str(path.readlink())
        seen[str(path.relative_to(directory))] = (oct(status.st_mode), status.st_size, status.st_mtime_ns, content)
    return seen


def flip(path: Path, offset: int) -> None:
    """Change one byte."""
    with path.open("r+b") as handle:
        handle.seek(offset)
        byte = handle.read(1)
        handle.seek(offset)
        handle.write(bytes([byte[0] ^ 0x40]))


def _role(path: str) -> Role:
    return _ROLES.get(path.partition("/")[0], "config")


def _write_raw(data: bytes, directory: Path, part_size: int) -> Payload:
    parts, start = [], 0
    for index, size in enumerate(part_sizes(len(data), part_size)):
        content = data[start : start + size]
        start += size
        (directory / layout.part_name(index)).write_bytes(content)
        pieces = tuple(
            hashlib.sha256(content[at : at + layout.PIECE_SIZE]).hexdigest() for at in range(0, size, layout.PIECE_SIZE)
        )
        parts.append(Part(layout.part_name(index), size, hashlib.sha256(content).hexdigest(), pieces))
    return Payload(len(data), tuple(parts))


def _entries_within(plan: PayloadPlan, data: bytes) -> tuple[FileEntry, ...]:
    """The sound plan's entries, each where its content really lies in the hostile tar, if it does."""
    entries = []
    for item in plan.placed:
        content = item.member.content
        assert isinstance(content, bytes)
        offset = max(data.find(content[:256]), 0)
        segments = (Segment(item.member.size, offset),) if item.member.size else ()
        entries.append(FileEntry(item.member.path, item.member.role, item.member.size, item.member.sha256, segments))
    return tuple(entries)
