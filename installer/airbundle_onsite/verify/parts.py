"""Checks the bytes of every part, on all cores, and says which 64 MiB piece of which part is bad."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Optional

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.payload import Part
from airbundle_onsite.contract.record import record
from airbundle_onsite.system import Talk
from airbundle_onsite.verify import media
from airbundle_onsite.verify.bundle import TrustedManifest
from airbundle_onsite.verify.source import Copy, PartSource, Piece, holding, pieces_of

__all__ = ["Outcome", "Piece", "Reading", "check_parts", "pieces_of", "read_pieces", "results"]

_MAX_EVIDENCE = 20


@record
class Reading:
    """What one copy gave for a piece: the SHA-256 and the bytes found, or why it could not be read."""

    copy: Copy
    sha256: str = ""
    size: int = 0
    error: str = ""

    def is_of(self, piece: Piece) -> bool:
        return not self.error and self.sha256 == piece.sha256 and self.size == piece.size


@record
class Outcome:
    """What was read of a piece: of one copy after the other, up to the first that is good."""

    piece: Piece
    readings: tuple[Reading, ...]

    @property
    def good(self) -> bool:
        return bool(self.readings) and self.readings[-1].is_of(self.piece)


def check_parts(trusted: TrustedManifest, talk: Talk, workers: Optional[int] = None) -> list[CheckResult]:
    """Hash every piece of every part; one result per part, in order.

    Args:
        trusted: from `bundle.trust` or `bundle.structure_checks`.
        talk: told the bytes done as progress.
        workers: threads; None for one per core this process may use, or as many as the source allows.
    """
    return results(trusted, read_pieces(trusted, talk, workers))


def read_pieces(trusted: TrustedManifest, talk: Talk, workers: Optional[int] = None) -> list[Outcome]:
    """Hash every piece of every part, in order; see `check_parts`."""
    payload = trusted.manifest.payload
    pieces = [piece for part in payload.parts for piece in pieces_of(part)]
    hasher = _PieceHasher(trusted.source, talk, payload.size)
    count = workers or trusted.source.readers or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(count, thread_name_prefix="hash") as pool:
        return list(pool.map(hasher.run, pieces))


def results(trusted: TrustedManifest, outcomes: Sequence[Outcome]) -> list[CheckResult]:
    """One result for each part of which there are outcomes, in order."""
    by_part: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_part.setdefault(outcome.piece.part.name, []).append(outcome)
    return [_result(found[0].piece.part, found, trusted) for found in by_part.values()]


class _PieceHasher:
    """Hashes one piece at a time per thread, each thread with one small buffer of its own."""

    def __init__(self, source: PartSource, talk: Talk, total: int) -> None:
        self._source, self._talk, self._total = source, talk, total
        self._local, self._lock, self._done = threading.local(), threading.Lock(), 0

    def run(self, piece: Piece) -> Outcome:
        readings = []
        for copy in holding(self._source.copies(piece.part.name), piece):
            readings.append(self._read(copy, piece))
            if readings[-1].is_of(piece):
                break
        with self._lock:
            self._done += piece.size
            self._talk.progress("checking parts", self._done, self._total)
        return Outcome(piece, tuple(readings))

    def _read(self, copy: Copy, piece: Piece) -> Reading:
        try:
            return Reading(copy, *copy.hash_range(piece.offset, piece.size, self._buffer()))
        except media.Unreadable as error:
            return Reading(copy, error=str(error))

    def _buffer(self) -> memoryview:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = memoryview(bytearray(media.CHUNK))
        buffer: memoryview = self._local.buffer
        return buffer


def _result(part: Part, outcomes: Sequence[Outcome], trusted: TrustedManifest) -> CheckResult:
    copies = trusted.source.copies(part.name)
    whole = [copy for copy in copies if copy.piece is None]
    sizes = [size for size in (copy.size() for copy in whole) if size is not None]
    bad = [outcome for outcome in outcomes if not outcome.good]
    several = len(copies) > 1
    if not bad and (several or (copies and part.size == (sizes or [part.size])[0])):
        return _passed(part, outcomes)
    evidence = [_describe(outcome, several) for outcome in bad[:_MAX_EVIDENCE]]
    if len(bad) > _MAX_EVIDENCE:
        evidence.append(f"and {len(bad) - _MAX_EVIDENCE} more pieces")
    found = "not there" if not copies else f"{sizes[0]} bytes" if sizes else "single pieces"
    return CheckResult(
        "verify.part",
        "fail",
        _summary(part, outcomes, whole, sizes, trusted),
        expected=f"{part.size} bytes, SHA-256 {part.sha256}",
        actual=found if not copies else f"{found}, {len(bad)} bad pieces",
        remedy=_remedy(part, trusted.source),
        evidence=tuple(evidence),
    )


def _passed(part: Part, outcomes: Sequence[Outcome]) -> CheckResult:
    """A part that is whole, perhaps thanks to more than one copy."""
    summary = f"{part.name}: {len(outcomes)} of {len(outcomes)} pieces are whole"
    spare = [outcome for outcome in outcomes if len(outcome.readings) > 1]
    evidence = [f"{_describe(each, True)}; taken from {each.readings[-1].copy.place}" for each in spare[:_MAX_EVIDENCE]]
    if spare:
        summary += f", {len(spare)} of them only in a second copy"
    return CheckResult("verify.part", "pass", summary, evidence=tuple(evidence))


def _remedy(part: Part, source: PartSource) -> str:
    searched = source.places
    where = f" (looked in {', '.join(searched)})" if len(searched) > 1 else ""
    return (
        f"copy {part.name} again from where the bundle was built{where}, or have only what is bad sent: "
        "--repair-request FILE; the other parts and the media are untouched"
    )


def _summary(
    part: Part, outcomes: Sequence[Outcome], whole: Sequence[Copy], sizes: Sequence[int], trusted: TrustedManifest
) -> str:
    bad = sum(not outcome.good for outcome in outcomes)
    if not whole and bad == len(outcomes):
        return f"{part.name}: it is missing"
    if sizes:
        other = _whose_content(part, whole[0], outcomes, sizes[0], trusted.manifest.payload.parts)
        if other:
            return f"{part.name}: its content is that of {other}: they were mixed up when they were copied"
        if sizes[0] != part.size:
            kind = "cut short" if sizes[0] < part.size else "too long"
            return f"{part.name}: it is {kind}: found {sizes[0]} bytes, needed {part.size}"
    return f"{part.name}: {bad} of {len(outcomes)} pieces {'is' if bad == 1 else 'are'} bad"


def _whose_content(part: Part, copy: Copy, outcomes: Sequence[Outcome], found_size: int, parts: Sequence[Part]) -> str:
    """Name of another part whose content is what the copy holds; empty when it is none's."""
    read: Mapping[tuple[int, int], str] = {
        (outcome.piece.offset, reading.size): reading.sha256
        for outcome in outcomes
        for reading in outcome.readings
        if reading.copy == copy and not reading.error
    }
    for other in parts:
        if other.name == part.name or other.size != found_size:
            continue
        # Pieces of another part may end elsewhere than those hashed already: such a one is hashed here.
        if all(
            (read.get((piece.offset, piece.size)) or _hash_range(copy, piece)) == piece.sha256
            for piece in pieces_of(other)
        ):
            return other.name
    return ""


def _hash_range(copy: Copy, piece: Piece) -> str:
    """SHA-256 of the piece's range in a copy of another part; empty when it cannot be read."""
    try:
        return copy.hash_range(piece.offset, piece.size, memoryview(bytearray(media.CHUNK)))[0]
    except media.Unreadable:
        return ""


def _describe(outcome: Outcome, several: bool) -> str:
    wrong = [reading for reading in outcome.readings if not reading.is_of(outcome.piece)]
    reasons = [(f"in {each.copy.place}: " if several else "") + _reason(each, outcome.piece) for each in wrong]
    return f"{outcome.piece}: {'; '.join(dict.fromkeys(reasons)) or 'it is missing'}"


def _reason(reading: Reading, piece: Piece) -> str:
    if reading.error:
        return reading.error
    if reading.size != piece.size:
        return f"found {reading.size} bytes, needed {piece.size}"
    return f"found SHA-256 {reading.sha256[:16]}…, needed {piece.sha256[:16]}…"
