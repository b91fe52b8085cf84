"""Checks the bytes of every part, on all cores, and says which 64 MiB piece of which part is bad."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Optional

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.manifest import Part
from airbundle_onsite.contract.record import record
from airbundle_onsite.system import Talk
from airbundle_onsite.verify import media
from airbundle_onsite.verify.bundle import TrustedManifest

_MAX_EVIDENCE = 20
_READ_AHEAD = 16 * 1024 * 1024


@record
class Piece:
    """A range of a part: its number from 0, where it begins in the part, its bytes, the SHA-256 it must have."""

    part: Part
    number: int
    offset: int
    size: int
    sha256: str

    def __str__(self) -> str:
        """How a piece is named everywhere: ``payload.tar.003, piece 5 of 60 (bytes 268435456 to 335544319)``."""
        last = self.offset + self.size - 1
        return f"{self.part.name}, piece {self.number + 1} of {len(self.part.pieces)} (bytes {self.offset} to {last})"


def pieces_of(part: Part) -> Iterator[Piece]:
    """The pieces of a part, in order."""
    for number, sha256 in enumerate(part.pieces):
        offset = number * layout.PIECE_SIZE
        yield Piece(part, number, offset, min(layout.PIECE_SIZE, part.size - offset), sha256)


@record
class _Outcome:
    """What was read of a piece: the SHA-256 and size found, or why it could not be read."""

    piece: Piece
    sha256: str = ""
    size: int = 0
    error: str = ""

    @property
    def good(self) -> bool:
        return not self.error and self.sha256 == self.piece.sha256 and self.size == self.piece.size


def check_parts(trusted: TrustedManifest, talk: Talk, workers: Optional[int] = None) -> list[CheckResult]:
    """Hash every piece of every part; one result per part, in order.

    Args:
        trusted: from `bundle.trust` or `bundle.structure_checks`.
        talk: told the bytes done as progress.
        workers: threads; None for one per core this process may use.
    """
    payload = trusted.manifest.payload
    pieces = [piece for part in payload.parts for piece in pieces_of(part)]
    hasher = _PieceHasher(trusted.directory, talk, payload.size)
    count = workers or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(count, thread_name_prefix="hash") as pool:
        outcomes = list(pool.map(hasher.run, pieces))
    by_part: dict[str, list[_Outcome]] = {part.name: [] for part in payload.parts}
    for outcome in outcomes:
        by_part[outcome.piece.part.name].append(outcome)
    return [_result(part, by_part[part.name], trusted) for part in payload.parts]


class _PieceHasher:
    """Hashes one piece at a time per thread, each thread with one small buffer of its own."""

    def __init__(self, directory: Path, talk: Talk, total: int) -> None:
        self._directory, self._talk, self._total = directory, talk, total
        self._local, self._lock, self._done = threading.local(), threading.Lock(), 0

    def run(self, piece: Piece) -> _Outcome:
        try:
            with media.open_regular(self._directory / piece.part.name) as descriptor:
                media.will_need(descriptor, piece.offset, min(piece.size, _READ_AHEAD))
                sha256, size = media.hash_range(descriptor, piece.offset, piece.size, self._buffer())
                outcome = _Outcome(piece, sha256, size)
        except media.Unreadable as error:
            outcome = _Outcome(piece, error=str(error))
        with self._lock:
            self._done += piece.size
            self._talk.progress("checking parts", self._done, self._total)
        return outcome

    def _buffer(self) -> memoryview:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = memoryview(bytearray(media.CHUNK))
        buffer: memoryview = self._local.buffer
        return buffer


def _result(part: Part, outcomes: Sequence[_Outcome], trusted: TrustedManifest) -> CheckResult:
    found_size = _size(trusted.directory / part.name)
    bad = [outcome for outcome in outcomes if not outcome.good]
    if not bad and found_size == part.size:
        return CheckResult("verify.part", "pass", f"{part.name}: {len(outcomes)} of {len(outcomes)} pieces are whole")
    remedy = f"copy {part.name} again from where the bundle was built; the other parts and the media are untouched"
    evidence = [_describe(outcome) for outcome in bad[:_MAX_EVIDENCE]]
    if len(bad) > _MAX_EVIDENCE:
        evidence.append(f"and {len(bad) - _MAX_EVIDENCE} more pieces")
    return CheckResult(
        "verify.part",
        "fail",
        _summary(part, outcomes, found_size, trusted),
        expected=f"{part.size} bytes, SHA-256 {part.sha256}",
        actual="not there" if found_size is None else f"{found_size} bytes, {len(bad)} bad pieces",
        remedy=remedy,
        evidence=tuple(evidence),
    )


def _summary(part: Part, outcomes: Sequence[_Outcome], found_size: Optional[int], trusted: TrustedManifest) -> str:
    if found_size is None:
        return f"{part.name}: it is missing"
    other = _whose_content(trusted.directory / part.name, outcomes, found_size, trusted.manifest.payload.parts)
    if other:
        return f"{part.name}: its content is that of {other}: they were mixed up when they were copied"
    if found_size != part.size:
        kind = "cut short" if found_size < part.size else "too long"
        return f"{part.name}: it is {kind}: found {found_size} bytes, needed {part.size}"
    bad = sum(not outcome.good for outcome in outcomes)
    return f"{part.name}: {bad} of {len(outcomes)} pieces {'is' if bad == 1 else 'are'} bad"


def _whose_content(path: Path, outcomes: Sequence[_Outcome], found_size: int, parts: Sequence[Part]) -> str:
    """Name of another part whose content is what lies at `path`; empty when it is none's."""
    read: Mapping[tuple[int, int], str] = {
        (outcome.piece.offset, outcome.size): outcome.sha256 for outcome in outcomes if not outcome.error
    }
    for other in parts:
        if other.name == path.name or other.size != found_size:
            continue
        # Pieces of another part may end elsewhere than those hashed already: such a one is hashed here.
        if all(
            (read.get((piece.offset, piece.size)) or _hash_range(path, piece)) == piece.sha256
            for piece in pieces_of(other)
        ):
            return other.name
    return ""


def _hash_range(path: Path, piece: Piece) -> str:
    """SHA-256 of the piece's range in the file at `path`; empty when it cannot be read."""
    try:
        with media.open_regular(path) as descriptor:
            return media.hash_range(descriptor, piece.offset, piece.size, memoryview(bytearray(media.CHUNK)))[0]
    except media.Unreadable:
        return ""


def _describe(outcome: _Outcome) -> str:
    if outcome.error:
        return f"{outcome.piece}: {outcome.error}"
    if outcome.size != outcome.piece.size:
        return f"{outcome.piece}: found {outcome.size} bytes, needed {outcome.piece.size}"
    return f"{outcome.piece}: found SHA-256 {outcome.sha256[:16]}…, needed {outcome.piece.sha256[:16]}…"


def _size(path: Path) -> Optional[int]:
    """Bytes of what lies there; None when nothing does."""
    try:
        return path.lstat().st_size
    except OSError:
        return None
