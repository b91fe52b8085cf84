"""Answers a site's request: a directory with the pieces that went bad, and everything that stands beside the parts.

The pieces need no signature of their own: each is pinned by bundle.json, which comes along with the signature that the
bundle has.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from airbundle.bundledir import appearing, counter, write_synced
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.record import decode_json, record
from airbundle_onsite.contract.repair import RepairRequest
from airbundle_onsite.errors import ContractError, IntegrityError, UsageError
from airbundle_onsite.system import Talk
from airbundle_onsite.units import human_bytes
from airbundle_onsite.verify import checksums, media
from airbundle_onsite.verify.bundle import TrustedManifest, trust
from airbundle_onsite.verify.source import Piece, pieces_of, read_proven

REQUEST_LIMIT = 64 * 1024 * 1024


@record
class Repair:
    """What is to be carried to the site.

    Attributes:
        directory: holds everything.
        pieces: the pieces in it, as they are named to people.
        size: bytes of them.
    """

    directory: str
    pieces: tuple[str, ...]
    size: int


def read_request(path: Path) -> RepairRequest:
    """A site's request. Raises UsageError for a file that is none."""
    try:
        return decode_json(RepairRequest, media.read_small(path, REQUEST_LIMIT), path.name)
    except media.Unreadable as error:
        raise UsageError(f"{path}: {error}", remedy="name the file that --repair-request wrote at the site") from error
    except ContractError as error:
        raise UsageError(
            f"{path} is not what --repair-request writes",
            details=error.problems,
            remedy="carry the file as it is, not as text",
        ) from error


def repair(bundle: Path, request: RepairRequest, output: Path, talk: Talk) -> Repair:
    """Write ``<output>/<name>-<version>-repair/``.

    Args:
        bundle: as it left the office, whole as far as it is asked for.
        request: from the site.
        output: an existing directory, or one to be made.
        talk: told about progress.

    Raises:
        UsageError: the request is about another bundle, or the directory exists already.
        IntegrityError: this copy of the bundle is bad, too.
    """
    trusted = trust(bundle)
    manifest = trusted.manifest
    wanted = _wanted(trusted, request)
    total, lines = sum(piece.size for piece in wanted), {}
    advance = counter(talk, "copying pieces", total)
    final = output / f"{manifest.name}-{manifest.version}-repair"
    with appearing(final) as partial:
        _copy_small_files(trusted, partial)
        for piece in wanted:
            name = layout.piece_name(piece.part.name, piece.number)
            _write_piece(trusted, piece, partial / name)
            lines[name] = piece.sha256
            advance(piece.size)
        write_synced(partial / layout.PIECE_CHECKSUMS, checksums.text(lines), 0o644)
    return Repair(str(final), tuple(map(str, wanted)), total)


def repair_text(made: Repair) -> str:
    """What was made, and what to do with it."""
    lines = [
        *made.pieces,
        f"{made.directory}: {len(made.pieces)} piece{'s' if len(made.pieces) != 1 else ''}, {human_bytes(made.size)}, "
        "and all small files of the bundle.",
        f"Carry it to the site, and there type: bash {layout.INSTALLER} --patch {Path(made.directory).name}",
        "If the site's own install.sh is damaged, start the one in it, and name the stick with --from.",
    ]
    return "\n".join(lines)


def _wanted(trusted: TrustedManifest, request: RepairRequest) -> list[Piece]:
    manifest = trusted.manifest
    if request.manifest_sha256 and request.manifest_sha256 != trusted.sha256:
        asked = f"{request.name} {request.version}".strip()
        raise UsageError(
            f"the request is about {asked} with bundle.json {request.manifest_sha256[:16]}…, and this is "
            f"{manifest.name} {manifest.version} with {trusted.sha256[:16]}…",
            remedy="name the very bundle that was carried to the site",
        )
    pieces = {part.name: list(pieces_of(part)) for part in manifest.payload.parts}
    if not request.manifest_sha256:
        return [piece for each in pieces.values() for piece in each if _was_bad(piece, request)]
    wrong = [bad.part for bad in request.parts if not set(bad.pieces) <= set(range(len(pieces.get(bad.part, ()))))]
    if wrong:
        raise UsageError(
            f"the request asks for pieces that this bundle does not have, of {', '.join(wrong)}",
            remedy="carry the file that --repair-request wrote as it is",
        )
    return [pieces[bad.part][number] for bad in request.parts for number in sorted(bad.pieces)]


def _was_bad(piece: Piece, request: RepairRequest) -> bool:
    """Whether the site, which could not tell itself, found something else in that place, or nothing."""
    found = request.found.get(piece.part.name, ())
    return piece.number >= len(found) or found[piece.number] != piece.sha256


def small_files(trusted: TrustedManifest) -> Iterable[str]:
    """Names of everything in a bundle's directory but the parts, bundle.json last."""
    yield from (layout.CHECKSUMS, *(outer.name for outer in trusted.manifest.outer))
    if trusted.signature:
        yield layout.SIGNATURE
    yield layout.MANIFEST


def _copy_small_files(trusted: TrustedManifest, target: Path) -> None:
    for name in small_files(trusted):
        data = (trusted.directory / name).read_bytes()
        write_synced(target / name, data, 0o755 if name == layout.INSTALLER else 0o644)
    if hashlib.sha256((target / layout.MANIFEST).read_bytes()).hexdigest() != trusted.sha256:
        raise IntegrityError(f"{trusted.directory / layout.MANIFEST} changed while it was copied")


def _write_piece(trusted: TrustedManifest, piece: Piece, path: Path) -> None:
    try:
        blocks, _ = read_proven(trusted.source, piece)
    except media.Unreadable as error:
        raise IntegrityError(
            f"this copy of the bundle is bad in the same place: {piece}: {error}",
            remedy="take another copy of the bundle, or build it again from its lock: that gives the same bytes",
        ) from error
    with path.open("xb") as handle:
        while blocks:
            handle.write(blocks.popleft())
        handle.flush()
        os.fsync(handle.fileno())
