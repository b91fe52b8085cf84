"""Compresses the weights among a payload's members, and says what that saved and what was left as it was.

Each run of a file's bytes that travels is compressed by itself, into the cache, and is kept there: so sizes are known
before the payload is written, and the next build finds it made. What does not shrink travels as it is.
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from airbundle.assemble import Extent, Member, extents_within
from airbundle.cache import Cache
from airbundle.compress.encode import encode_block, share_left
from airbundle.delta.content import Extents, of_file, read_at, stream
from airbundle.weights import is_weight
from airbundle_onsite.contract.payload import Segment
from airbundle_onsite.contract.record import decode_json, encode, record
from airbundle_onsite.errors import ContractError
from airbundle_onsite.planes import BLOCK, ChunkReader
from airbundle_onsite.system import Talk
from airbundle_onsite.units import human_bytes

FORMAT = 1
"""Part of the name under which results are kept; raise it when a block comes out otherwise."""

_SMALLEST = 64 * 1024  # a run below this many bytes travels as it is
_WORTH = 0.97  # a run of which more is left travels as it is: its bytes can then be checked by hand
_PROBES = 32  # blocks that are tried before all of a run is compressed
_MOST_WORKERS = 16  # each has two blocks in memory
_AHEAD = 2


@record
class Weight:
    """What became of one file of weights.

    Attributes:
        path: inside the payload.
        before, after: bytes of it that travel, before compression and after; the same when it was left as it was.
    """

    path: str
    before: int
    after: int


@record
class Compression:
    """What compression did.

    Attributes:
        members: all of the payload's, those that were compressed among them.
        weights: what became of each file of weights of which something travels.
    """

    members: tuple[Member, ...]
    weights: tuple[Weight, ...]

    @property
    def saved(self) -> int:
        """Bytes that need not travel."""
        return sum(weight.before - weight.after for weight in self.weights)


@record
class Foreseen:
    """What is known of compression before anything is read.

    Attributes:
        weights: bytes of weights that would travel as they are.
        saved: bytes that need not, of those that were compressed for a build before.
        untried: bytes of those that were not; they may shrink, and their compressed form takes less than that in the
            cache.
    """

    weights: int
    saved: int
    untried: int


@record
class _Made:
    """What was learnt of one run: the compressed form's SHA-256 and size in bytes; empty when it is not worth it."""

    sha256: str = ""
    size: int = 0


def compress_members(members: Sequence[Member], cache: Cache, talk: Talk) -> Compression:
    """Compress the runs of weights that shrink.

    Args:
        members: as they would travel; content of weights in files.
        cache: where compressed runs are kept.
        talk: progress.

    Raises:
        FetchError, OSError: a file cannot be read, or the cache cannot be written.
        IntegrityError: a file is not as long as it should be.
    """
    work = _Work(cache, talk, sum(_carried(member) for member in members if _is_candidate(member)))
    made, weights = [], []
    for member in members:
        packed = work.compressed(member) if _is_candidate(member) else member
        made.append(packed)
        if is_weight(member.path) and member.role == "model" and (before := _carried(member)):
            weights.append(Weight(member.path, before, _carried(packed)))
    return Compression(tuple(made), tuple(weights))


def foresee(members: Sequence[Member], cache: Cache) -> Foreseen:
    """What `compress_members` would find made already."""
    weights = saved = untried = 0
    for member in members:
        if not _is_candidate(member):
            continue
        weights += _carried(member)
        for segment in member.runs:
            if segment.base is not None or segment.size < _SMALLEST:
                continue
            made = _kept(cache, member, segment)
            if made is None:
                untried += segment.size
            elif made.sha256:
                saved += segment.size - made.size
    return Foreseen(weights, saved, untried)


def compression_text(compression: Compression) -> list[str]:
    """What was saved, and what was left as it was, in sentences."""
    shrunk = [weight for weight in compression.weights if weight.after < weight.before]
    left = [weight for weight in compression.weights if weight.after == weight.before]
    lines = []
    if shrunk:
        before, after = sum(weight.before for weight in shrunk), sum(weight.after for weight in shrunk)
        lines.append(
            f"Compressed {len(shrunk)} file(s) of weights from {human_bytes(before)} to {human_bytes(after)} "
            f"({after / before:.0%}), saving {human_bytes(before - after)}"
        )
    if left:
        names = ", ".join(weight.path for weight in left[:3]) + (", …" if len(left) > 3 else "")
        size = human_bytes(sum(weight.before for weight in left))
        lines.append(f"Left as they are, since they do not shrink: {len(left)} file(s) of weights, {size} ({names})")
    return lines or ["Nothing to compress: no weights travel"]


def _carried(member: Member) -> int:
    return sum(segment.packed for segment in member.runs)


def _is_candidate(member: Member) -> bool:
    return member.role == "model" and is_weight(member.path) and not isinstance(member.content, bytes)


class _Work:
    """Compresses runs, one after the other, the blocks of each side by side."""

    def __init__(self, cache: Cache, talk: Talk, total: int) -> None:
        self._cache, self._talk, self._total, self._done = cache, talk, total, 0
        self._threads = min(os.cpu_count() or 1, _MOST_WORKERS)

    def compressed(self, member: Member) -> Member:
        """The member with those of its runs compressed that shrink; the same when none does."""
        content = _content_of(member)
        segments: list[Segment] = []
        carried: list[Extent] = []
        for segment in member.runs:
            if segment.base is not None:
                segments.append(segment)
                continue
            source = tuple(extents_within(content, segment.offset, segment.size))
            made = self._run(member, segment, source)
            if made.sha256:
                segments.append(dataclasses.replace(segment, compressed=made.size))
                carried += of_file(self._cache.path(made.sha256), made.size)
            else:
                segments.append(segment)
                carried += source
        if all(segment.compressed is None for segment in segments):
            return member
        return dataclasses.replace(member, segments=tuple(segments), carried=tuple(carried))

    def _run(self, member: Member, segment: Segment, source: Extents) -> _Made:
        """One run, from what is kept, or fresh."""
        if segment.size < _SMALLEST:
            self._advance(segment.size)
            return _Made()
        kept = _kept(self._cache, member, segment)
        if kept is not None:
            self._advance(segment.size)
            return kept
        made = self._fresh(source, segment.size)
        fact = _fact(self._cache, member, segment)
        fact.parent.mkdir(parents=True, exist_ok=True)
        temporary = fact.with_name(f".{fact.name}.{os.getpid()}")
        temporary.write_bytes(encode(made))
        temporary.replace(fact)
        return made

    def _fresh(self, source: Extents, size: int) -> _Made:
        with ThreadPoolExecutor(self._threads, thread_name_prefix="compress") as pool:
            probes = list(pool.map(lambda offset: read_at(source, offset, BLOCK), _spread(size)))
            if share_left(probes) > _WORTH:
                self._advance(size)
                return _Made()
            sha256, packed = self._cache.add_stream(self._encoded(source, size, pool))
        if packed > size * _WORTH:
            self._cache.drop(sha256)
            return _Made()
        return _Made(sha256, packed)

    def _encoded(self, source: Extents, size: int, pool: ThreadPoolExecutor) -> Iterator[bytes]:
        reader = ChunkReader(stream(source))
        pending: deque[tuple[Future[bytes], int]] = deque()
        for begin in range(0, size, BLOCK):
            block = reader.read(min(BLOCK, size - begin))
            pending.append((pool.submit(encode_block, block), len(block)))
            if len(pending) >= _AHEAD * self._threads:
                yield self._finished(*pending.popleft())
        while pending:
            yield self._finished(*pending.popleft())

    def _finished(self, block: Future[bytes], size: int) -> bytes:
        made = block.result()
        self._advance(size)
        return made

    def _advance(self, count: int) -> None:
        self._done += count
        self._talk.progress("compressing weights", self._done, self._total)


def _content_of(member: Member) -> Extents:
    assert not isinstance(member.content, bytes)
    return member.content if isinstance(member.content, tuple) else of_file(member.content, member.size)


def _spread(size: int) -> list[int]:
    """Where blocks begin that stand for all of a run of `size` bytes."""
    blocks = -(-size // BLOCK)
    count = min(blocks, _PROBES)
    return [blocks * number // count * BLOCK for number in range(count)]


def _fact(cache: Cache, member: Member, segment: Segment) -> Path:
    """Where is kept what was learnt of a run."""
    directory = cache.root / "facts" / f"planes-{FORMAT}-zlib-{zlib.ZLIB_RUNTIME_VERSION}"
    return directory / f"{segment.offset}-{segment.size}-{member.sha256}.json"


def _kept(cache: Cache, member: Member, segment: Segment) -> _Made | None:
    """What was learnt of a run, if its compressed form is still there."""
    path = _fact(cache, member, segment)
    try:
        made = decode_json(_Made, path.read_bytes(), str(path))
    except (FileNotFoundError, ContractError):
        return None
    return made if not made.sha256 or cache.has(made.sha256, made.size) else None
