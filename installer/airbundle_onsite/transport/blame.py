"""The request for what is bad: written at the site, carried to the office, answered there by `airbundle repair`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import record
from airbundle_onsite.contract.repair import SCHEMA_VERSION, BadPart, RepairRequest
from airbundle_onsite.system import Talk
from airbundle_onsite.units import human_bytes
from airbundle_onsite.verify import media
from airbundle_onsite.verify.bundle import TrustedManifest
from airbundle_onsite.verify.parts import Outcome, read_pieces
from airbundle_onsite.verify.source import Directory, PartSource


@record
class Blame:
    """What is wrong with a bundle, and what to ask for.

    Attributes:
        request: to be carried to the office.
        bad: what is bad, a line each, for people.
        size: bytes of the pieces that are needed; None when only the office can tell.
    """

    request: RepairRequest
    bad: tuple[str, ...]
    size: Optional[int]


def blame(
    trusted: Optional[TrustedManifest],
    checks: Sequence[CheckResult],
    directory: Path,
    source: Optional[PartSource],
    talk: Talk,
) -> Blame:
    """Read every byte of a bundle and say what of it is needed again.

    Args:
        trusted: its manifest; None when that could not be believed.
        checks: what was found on the way to it.
        directory: the bundle's.
        source: where its parts are; None for `directory`.
        talk: told the bytes done.
    """
    files = _small_files(trusted, checks)
    if trusted is None:
        found = _found(source or Directory(directory), talk)
        return Blame(RepairRequest(SCHEMA_VERSION, found=found, files=files), files, None)
    bad = [outcome for outcome in read_pieces(trusted, talk) if not outcome.good]
    manifest = trusted.manifest
    request = RepairRequest(SCHEMA_VERSION, manifest.name, manifest.version, trusted.sha256, _by_part(bad), files=files)
    lines = (*files, *(str(outcome.piece) for outcome in bad))
    return Blame(request, lines, sum(outcome.piece.size for outcome in bad))


def _small_files(trusted: Optional[TrustedManifest], checks: Sequence[CheckResult]) -> tuple[str, ...]:
    """Files beside the parts that failed checks are about; surplus files are not among them."""
    known = {layout.MANIFEST, layout.SIGNATURE, layout.CHECKSUMS}
    if trusted is not None:
        known.update(outer.name for outer in trusted.manifest.outer)
    lines = [line for check in checks if check.status == "fail" for line in (check.evidence or (check.summary,))]
    return tuple(dict.fromkeys(name for name in (line.partition(":")[0] for line in lines) if name in known))


def _by_part(bad: Sequence[Outcome]) -> tuple[BadPart, ...]:
    numbers: dict[str, list[int]] = {}
    for outcome in bad:
        numbers.setdefault(outcome.piece.part.name, []).append(outcome.piece.number)
    return tuple(BadPart(name, tuple(each)) for name, each in numbers.items())


def _found(source: PartSource, talk: Talk) -> dict[str, tuple[str, ...]]:
    """SHA-256 of every 64 MiB of every part there is, of its first whole copy."""
    found: dict[str, tuple[str, ...]] = {}
    buffer, index, absent = memoryview(bytearray(media.CHUNK)), 0, 0
    while absent <= _GAP:
        name = layout.part_name(index)
        copies = [copy for copy in source.copies(name) if copy.piece is None and copy.size()]
        if copies:
            size, hashes = copies[0].size() or 0, []
            for offset in range(0, size, layout.PIECE_SIZE):
                try:
                    hashes.append(copies[0].hash_range(offset, min(layout.PIECE_SIZE, size - offset), buffer)[0])
                except media.Unreadable:
                    hashes.append("")
                talk.progress(f"reading {name}", min(offset + layout.PIECE_SIZE, size), size)
            found[name] = tuple(hashes)
        absent = 0 if copies else absent + 1
        index += 1
    return found


_GAP = 100
"""So many parts may be missing in a row before the last one is thought to have been seen."""


def blame_text(made: Blame, file: str) -> str:
    """What was asked for, and what to do with the file."""
    if not made.bad:
        return "every byte is there and good: nothing to ask for, and no file was written"
    size = "what the office finds to be bad" if made.size is None else human_bytes(made.size)
    return "\n".join(
        [
            *(f"bad or missing: {line}" for line in made.bad),
            f"{file} asks for it ({size}). Carry it to where the bundle was built, and there type",
            f"  airbundle repair BUNDLE --request {Path(file).name} -o DIR",
            "Bring back the folder that makes, and here type",
            f"  bash {layout.INSTALLER} --patch FOLDER",
        ]
    )
