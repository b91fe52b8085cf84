"""An existing bundle in other parts, or as one tar file; its payload stays the same, byte for byte."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from airbundle.assemble import write_stream
from airbundle.bundledir import appearing, counter, outer_entries, require_absent, write_manifest, write_synced
from airbundle.outer import render_outer
from airbundle.repair import small_files
from airbundle.signing import SigningKey, sign_all
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.system import Talk
from airbundle_onsite.verify import media
from airbundle_onsite.verify.bundle import TrustedManifest, trust
from airbundle_onsite.verify.source import pieces_of, read_proven
from airbundle_onsite.verify.stream import joined_payload

_BLOCK = 512


@record
class Reparted:
    """A bundle in other parts.

    Attributes:
        directory: the new bundle.
        parts: how many it has.
        largest: bytes of the largest.
        signed_by: fingerprints of the keys that signed it.
        was_signed: whether the old one was signed.
        left_out: files that listed the old parts, and that cannot be written again without the lock and the cache.
    """

    directory: str
    parts: int
    largest: int
    signed_by: tuple[str, ...]
    was_signed: bool
    left_out: tuple[str, ...]


def repart(
    bundle: Path,
    output: Path,
    *,
    part_size: int,
    keys: Sequence[SigningKey],
    talk: Talk,
    allowed_signers: bytes | None = None,
) -> Reparted:
    """Write ``<output>/<name>-<version>/`` with parts of another size, after every byte of the old one was proven.

    bundle.json lists the parts, so it changes, and a signature of the old one does not fit it: it is signed anew with
    `keys`, or not at all.

    Args:
        bundle: the old bundle, which stays as it is.
        output: another directory than the old one's.
        part_size: bytes per part; 0 for a single one.
        keys: sign the new bundle.
        talk: told about progress.
        allowed_signers: when given, one of these must have signed the old bundle.

    Raises:
        UsageError: there is such a directory already.
        TrustError, IntegrityError: the old bundle is not good.
    """
    trusted = trust(bundle, allowed_signers)
    old = trusted.manifest
    final = output / f"{old.name}-{old.version}"
    with appearing(final) as partial:
        advance = counter(talk, "writing", old.payload.size)
        payload = write_stream(
            joined_payload(trusted, _Quiet(talk)), old.payload.size, partial, part_size=part_size, advance=advance
        )
        rendered = render_outer(dataclasses.replace(old, payload=payload, outer=()))
        files = {each.name: (trusted.directory / each.name).read_bytes() for each in old.outer}
        if outer_entries(files) != tuple(sorted(old.outer, key=lambda each: each.name)):
            raise IntegrityError(f"files in {bundle} changed while it was read", remedy="let nothing write to it")
        files = {name: data for name, data in files.items() if name != layout.CONTENTS} | rendered
        manifest = dataclasses.replace(old, payload=payload, outer=outer_entries(files))
        for name, data in sorted(files.items()):
            write_synced(partial / name, data, 0o755 if name == layout.INSTALLER else 0o644)
        write_manifest(partial, manifest)
        if keys:
            write_synced(partial / layout.SIGNATURE, sign_all((partial / layout.MANIFEST).read_bytes(), keys), 0o644)
    left_out = tuple(each.name for each in old.outer if each.name == layout.CONTENTS)
    return Reparted(
        str(final),
        len(payload.parts),
        max(part.size for part in payload.parts),
        tuple(key.fingerprint for key in keys),
        bool(trusted.signature),
        left_out,
    )


def write_tar(bundle: Path, target: Path, talk: Talk) -> int:
    """Write a bundle's whole directory into one tar file, each byte proven on the way; returns its bytes.

    The same bundle gives the same file. ``tar -xf`` gives the directory back.

    Args:
        bundle: its directory.
        target: the file, which must not exist.
        talk: told about progress.

    Raises:
        UsageError: the file exists.
        TrustError, IntegrityError: the bundle is not good.
    """
    require_absent(target)
    trusted = trust(bundle)
    name = f"{trusted.manifest.name}-{trusted.manifest.version}"
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    advance = counter(talk, "writing", trusted.manifest.payload.size)
    try:
        with partial.open("wb") as handle:
            for each in (*small_files(trusted), *(part.name for part in trusted.manifest.payload.parts)):
                _add(handle, trusted, name, each, advance)
            handle.write(bytes(2 * _BLOCK))
            handle.flush()
            os.fsync(handle.fileno())
            size = handle.tell()
        partial.rename(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return size


def pack(bundle: Path, target: Path, talk: Talk, *, replace: bool) -> int:
    """Turn a bundle that was just built into one tar file; otherwise as `write_tar`. Both are on the disk for a while.

    Args:
        bundle, target, talk: as for `write_tar`; the directory is removed in the end.
        replace: whether the file may be there already.
    """
    if not replace:
        require_absent(target)
    fresh = target.with_name(f".{target.name}.fresh")
    fresh.unlink(missing_ok=True)
    size = write_tar(bundle, fresh, talk)
    fresh.replace(target)
    shutil.rmtree(bundle)
    return size


def _add(handle: BinaryIO, trusted: TrustedManifest, folder: str, name: str, advance: Callable[[int], None]) -> None:
    parts = {part.name: part for part in trusted.manifest.payload.parts}
    info = tarfile.TarInfo(f"{folder}/{name}")
    info.mtime, info.mode = trusted.manifest.created, 0o755 if name == layout.INSTALLER else 0o644
    if name in parts:
        info.size = parts[name].size
        handle.write(info.tobuf(tarfile.PAX_FORMAT))
        for block in part_blocks(trusted, name):
            handle.write(block)
            advance(len(block))
    else:
        data = (trusted.directory / name).read_bytes()
        info.size = len(data)
        handle.write(info.tobuf(tarfile.PAX_FORMAT) + data)
    handle.write(bytes(-info.size % _BLOCK))


def part_blocks(trusted: TrustedManifest, name: str, offset: int = 0) -> Iterator[bytes]:
    """A part's bytes from `offset` on, in blocks of at most 1 MiB, each proven. Raises IntegrityError."""
    part = next(part for part in trusted.manifest.payload.parts if part.name == name)
    for piece in pieces_of(part):
        skip = max(0, offset - piece.offset)
        if skip >= piece.size:
            continue
        try:
            blocks, _ = read_proven(trusted.source, piece)
        except media.Unreadable as error:
            raise IntegrityError(f"{piece} is bad: {error}", remedy=media.RECOPY) from error
        while blocks:
            block = blocks.popleft()
            if skip < len(block):
                yield block[skip:] if skip else block
            skip = max(0, skip - len(block))


class _Quiet:
    """Passes remarks on, and no progress: the writer tells that."""

    def __init__(self, talk: Talk) -> None:
        self.say = talk.say

    def progress(self, what: str, done: int, total: int) -> None:
        pass
