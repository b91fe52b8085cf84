"""Files that are not in the bundle as they are: left out, in whole or in part, and put together again from what the
site has, or compressed.

A file of the base is found by its content: under weights/, or in an installed release whose manifest lists that
SHA-256. One that a proof vouches for counts as it is; every other is hashed. A file that was put together is hashed
while it is written, so that nothing gets a name that is not, byte for byte, what the manifest says.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Optional

from airbundle_onsite import planes
from airbundle_onsite.contract.base import BaseFile
from airbundle_onsite.contract.payload import FileEntry, Segment
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import AirbundleError, IntegrityError
from airbundle_onsite.store.releases import StagedRelease, Store
from airbundle_onsite.store.weights import Weights
from airbundle_onsite.system import Talk
from airbundle_onsite.verify import media

_AHEAD = 8  # chunks that may wait to be hashed
BUILT_WRONGLY = "do not use this bundle: it was built wrongly, or to do harm; ask its sender for another"
FULL_BUNDLE = "carry the full bundle, built without --base, and install that"


@record
class Found:
    """What the site has of a file of the base.

    Attributes:
        file: what was looked for.
        path: where it is, proven; None when it is nowhere.
        changed: places that should hold it, but hold something else.
    """

    file: BaseFile
    path: Optional[Path] = None
    changed: tuple[str, ...] = ()


def find_base(store: Store, files: Sequence[BaseFile], talk: Talk, *, paranoid: bool = False) -> list[Found]:
    """Look for files of the base; changes nothing.

    Args:
        store: what is installed.
        files: what to look for.
        talk: told the bytes hashed, as progress.
        paranoid: hash also what a proof vouches for.
    """
    places = _places(store, [file.sha256 for file in files])
    weights = Weights(store.layout)
    found: dict[str, Found] = {}
    unproven = []
    for file in files:
        stored = store.layout.weight(file.sha256)
        if not paranoid and weights.proven(file.sha256, file.size):
            found[file.sha256] = Found(file, stored)
        else:
            unproven.append(file)
    hasher = _Hasher(talk, sum(file.size for file in unproven))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="base") as pool:
        for each in pool.map(lambda file: _prove(file, places.get(file.sha256, ()), hasher), unproven):
            found[each.file.sha256] = each
    return [found[file.sha256] for file in files]


def _places(store: Store, wanted: Collection[str]) -> dict[str, list[Path]]:
    """Where files with these contents should be, by SHA-256: under weights/, then in releases, as their manifests say.
    Nothing is read of the files."""
    found = {sha256: [store.layout.weight(sha256)] for sha256 in wanted}
    for release in whole_releases(store):
        for entry in release.manifest.files:
            if entry.sha256 in found and entry.role != "image":
                found[entry.sha256].append(release.directory / entry.path)
    return {sha256: _once(paths) for sha256, paths in found.items()}


def whole_releases(store: Store) -> Iterator[StagedRelease]:
    """Every installed release whose records can be read."""
    for name in store.bundles():
        for made in store.versions(name):
            with contextlib.suppress(AirbundleError):
                yield store.load(name, made.version)


def _once(paths: Iterable[Path]) -> list[Path]:
    """Those that are there, each file once, however many links to it there are."""
    found: dict[tuple[int, int], Path] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            facts = path.lstat()
            found.setdefault((facts.st_dev, facts.st_ino), path)
    return list(found.values())


def _prove(file: BaseFile, places: Sequence[Path], hasher: _Hasher) -> Found:
    """The first place whose bytes are right."""
    changed = []
    for path in places:
        try:
            if hasher.sha256(path, file.size) == file.sha256:
                return Found(file, path)
        except media.Unreadable as error:
            changed.append(f"{path}: {error}")
        else:
            changed.append(f"{path}: its content was changed since it was installed")
    return Found(file, None, tuple(changed))


class _Hasher:
    """Hashes whole files, and tells how far it is."""

    def __init__(self, talk: Talk, total: int) -> None:
        self._talk, self._total = talk, total
        self._lock, self._done = threading.Lock(), 0

    def sha256(self, path: Path, size: int) -> str:
        """Raises Unreadable, also when the file has another size."""
        hasher = hashlib.sha256()
        for chunk in read_range(path, 0, size, whole=True):
            hasher.update(chunk)
            with self._lock:
                self._done += len(chunk)
                self._talk.progress("looking at what is installed", min(self._done, self._total), self._total)
        return hasher.hexdigest()


def rebuilt(entry: FileEntry, packed: Iterable[bytes], base: Mapping[str, Path]) -> Iterator[bytes]:
    """The whole content of a file that takes bytes from the base or is compressed, in chunks of at most 1 MiB.

    Args:
        entry: of the file.
        packed: the bytes of its segments in the payload, in order; taken to the end.
        base: where the files of the base are, by SHA-256.

    Raises:
        IntegrityError: a file of the base cannot be read, what is compressed cannot be decompressed, or what was put
            together is not what the manifest says. The last is raised after the last chunk, so whoever takes them must
            not keep them before.
    """
    hasher, source = hashlib.sha256(), planes.ChunkReader(packed)
    pending: deque[Future[None]] = deque()
    with contextlib.ExitStack() as threads:  # one hashes while the chunks are being written
        aside = threads.enter_context(ThreadPoolExecutor(1, thread_name_prefix="rebuilt"))
        pool = threads.enter_context(ThreadPoolExecutor(planes.workers(), thread_name_prefix="planes"))
        for segment in entry.segments:
            if segment.base is not None:
                chunks = _of_base(entry, segment, base)
            elif segment.compressed is not None:
                chunks = _decompressed(entry, segment, source, pool)
            else:
                chunks = source.take(segment.size)  # should too few bytes come, the hash will show it
            for chunk in chunks:
                pending.append(aside.submit(hasher.update, chunk))
                if len(pending) > _AHEAD:
                    pending.popleft().result()
                yield chunk
    if hasher.hexdigest() != entry.sha256:
        raise _blame(entry, hasher.hexdigest(), base)


def _decompressed(entry: FileEntry, segment: Segment, source: planes.ChunkReader, pool: Executor) -> Iterator[bytes]:
    assert segment.compressed is not None
    try:
        yield from planes.decoded(source.read, segment.compressed, segment.size, pool)
    except ValueError as error:
        raise IntegrityError(
            f"{entry.path} cannot be decompressed: {error}, though every piece of the bundle is whole",
            remedy=BUILT_WRONGLY,
        ) from error


def _of_base(entry: FileEntry, segment: Segment, base: Mapping[str, Path]) -> Iterator[bytes]:
    path = base.get(segment.base or "")
    if path is None:
        raise IntegrityError(
            f"{entry.path}: the file it is built on, with SHA-256 {segment.base}, is not here", remedy=FULL_BUNDLE
        )
    try:
        yield from read_range(path, segment.offset, segment.size)
    except media.Unreadable as error:
        raise _damaged(entry, [f"{path}: {error}"]) from error


def read_range(path: Path, offset: int, size: int, *, whole: bool = False) -> Iterator[bytes]:
    """A range of a file, at most 1 MiB at a time. Raises Unreadable; with `whole`, also when the file is longer."""
    with media.open_regular(path) as descriptor:
        found = os.fstat(descriptor).st_size
        if found < offset + size or (whole and found != size):
            raise media.Unreadable(f"found {found} bytes, needed {offset + size}")
        media.will_need(descriptor, offset, min(size, 16 * media.CHUNK))
        while size:
            try:
                chunk = os.pread(descriptor, min(media.CHUNK, size), offset)
            except OSError as error:
                raise media.Unreadable(f"reading it failed at byte {offset}: {error.strerror}") from error
            if not chunk:
                raise media.Unreadable(f"it ends at byte {offset}, while it is read")
            offset += len(chunk)
            size -= len(chunk)
            yield chunk


def _blame(entry: FileEntry, found: str, base: Mapping[str, Path]) -> IntegrityError:
    """Whose fault it is that a file was not put together as it must be."""
    changed = []
    for sha256 in dict.fromkeys(segment.base for segment in entry.segments if segment.base is not None):
        try:
            if media.hash_file(base[sha256])[1] != sha256:
                changed.append(f"{base[sha256]}: its content was changed since it was installed")
        except media.Unreadable as error:
            changed.append(f"{base[sha256]}: {error}")
    if changed:
        return _damaged(entry, changed)
    return IntegrityError(
        f"{entry.path}: put together, it has SHA-256 {found[:16]}…, needed {entry.sha256[:16]}…, though all that it is "
        "made of is whole",
        remedy=BUILT_WRONGLY,
    )


def _damaged(entry: FileEntry, changed: Sequence[str]) -> IntegrityError:
    return IntegrityError(
        f"{entry.path} cannot be put together: what it is built on is not as it was installed",
        details=changed,
        remedy=f"install the release that this file belongs to once more, from its own bundle with --reinstall; or "
        f"{FULL_BUNDLE}",
    )
