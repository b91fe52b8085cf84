"""Parts received one at a time, for a site that a whole bundle cannot be carried to at once.

``<root>/received/<name>-<version>/`` is a bundle's directory in which parts lie as single pieces, each in a file of its
own that got its name after its bytes were proven and synced. So an interrupted receive goes on with the next piece,
and installing reads from there as from any other medium.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from airbundle_onsite.capacity import MARGIN
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.layout import StoreLayout
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import IntegrityError, PreflightError
from airbundle_onsite.store.disk import (
    FILE_MODE,
    make_directory,
    remove_tree,
    sync_directory,
    sync_file,
    tree_bytes,
    write_atomic,
    write_new,
)
from airbundle_onsite.system import Talk
from airbundle_onsite.units import human_bytes
from airbundle_onsite.verify import media
from airbundle_onsite.verify.bundle import TrustedManifest
from airbundle_onsite.verify.source import (
    Directory,
    FileCopy,
    PartSource,
    Piece,
    lacking_pieces,
    pieces_of,
    read_proven,
)

_PARTIAL = "received.partial"


@record
class State:
    """How much of a bundle has been received.

    Attributes:
        directory: where.
        name, version: the bundle's.
        parts: names of those that are here whole.
        lacking: what is not: parts, or pieces of parts that are here in part, each as it is named to people.
        size: bytes of the payload.
        missing: bytes of it that are not here.
    """

    directory: str
    name: str
    version: str
    parts: tuple[str, ...]
    lacking: tuple[str, ...]
    size: int
    missing: int

    @property
    def complete(self) -> bool:
        return not self.lacking


@record
class Arrival:
    """What came of one receive.

    Attributes:
        state: afterwards.
        received: pieces that are new here.
        known: pieces that were here, and are good.
        bad: pieces that were given but are bad, each with the reason.
    """

    state: State
    received: int
    known: int
    bad: tuple[str, ...]


def directories(store: StoreLayout) -> list[Path]:
    """Every bundle that something was received of."""
    folder = store.received
    return sorted(path for path in folder.iterdir() if (path / layout.MANIFEST).is_file()) if folder.is_dir() else []


def matching(store: StoreLayout, directory: Path) -> Optional[Path]:
    """Where parts of the bundle in `directory` were received: its bundle.json there is the same."""
    found = directories(store)
    if not found:
        return None
    with contextlib.suppress(OSError):
        wanted = (directory / layout.MANIFEST).read_bytes()
        return next((path for path in found if (path / layout.MANIFEST).read_bytes() == wanted), None)
    return None


def state_of(trusted: TrustedManifest, directory: Path) -> State:
    """What is in a directory of received parts, by names and sizes: its files were proven when they got their names."""
    source, whole, lacking, missing = Directory(directory), [], [], 0
    for part in trusted.manifest.payload.parts:
        absent = lacking_pieces(source, part)
        if not absent:
            whole.append(part.name)
        elif len(absent) == len(part.pieces):
            lacking.append(part.name)
        else:
            lacking += [str(piece) for piece in absent]
        missing += sum(piece.size for piece in absent)
    manifest = trusted.manifest
    return State(
        str(directory), manifest.name, manifest.version, tuple(whole), tuple(lacking), manifest.payload.size, missing
    )


class Reception:
    """Takes in parts of one bundle. The store's lock must be held.

    Args:
        store: where.
        trusted: the bundle's manifest, and the small files beside it.
        talk: told about progress.
    """

    def __init__(self, store: StoreLayout, trusted: TrustedManifest, talk: Talk) -> None:
        self._store, self._trusted, self._talk = store, trusted, talk
        manifest = trusted.manifest
        self.directory = store.received / f"{manifest.name}-{manifest.version}"
        self._partial = store.staging / _PARTIAL

    def take(self, given: PartSource) -> Arrival:
        """Copy every piece that `given` has a copy of and that is not here yet; its files may go away afterwards.

        Raises:
            PreflightError: there is no room for it.
            IntegrityError: another bundle of this name and version is being received.
            OSError: as the system says.
        """
        self._begin()
        pieces = [piece for piece in self._pieces() if _offered(given, piece)]
        here = [piece for piece in pieces if self._has(piece)]
        known = {(piece.part.name, piece.number) for piece in here}
        wanted = [piece for piece in pieces if (piece.part.name, piece.number) not in known]
        self._require_room(sum(piece.size for piece in wanted))
        bad, done, total = [], 0, sum(piece.size for piece in wanted)
        for piece in wanted:
            try:
                self._keep(piece, given)
            except media.Unreadable as error:
                bad.append(f"{piece}: {error}")
            done += piece.size
            self._talk.progress("receiving", done, total)
        state = state_of(self._trusted, self.directory)
        return Arrival(state, len(wanted) - len(bad), len(here), tuple(bad))

    def _pieces(self) -> list[Piece]:
        return [piece for part in self._trusted.manifest.payload.parts for piece in pieces_of(part)]

    def _begin(self) -> None:
        """The small files of the bundle, bundle.json last: with it the directory counts."""
        make_directory(self._partial.parent, self._store.base)
        there = self.directory / layout.MANIFEST
        data = (self._trusted.directory / layout.MANIFEST).read_bytes()
        if there.is_file():
            if there.read_bytes() == data:
                return
            raise IntegrityError(
                f"{self.directory} holds parts of another bundle of this name and version",
                remedy=f"if that one is no longer wanted, remove it: rm -r {self.directory}",
            )
        remove_tree(self.directory)
        make_directory(self.directory, self._store.base)
        for name in [layout.CHECKSUMS, *(outer.name for outer in self._trusted.manifest.outer)]:
            write_atomic(self.directory / name, (self._trusted.directory / name).read_bytes())
        if self._trusted.signature:
            write_atomic(self.directory / layout.SIGNATURE, self._trusted.signature)
        write_atomic(there, data)

    def _has(self, piece: Piece) -> bool:
        """Whether it is here and still good; a file that went bad is removed, so that the piece can come again."""
        path = self._path(piece)
        if not path.exists():
            return False
        with contextlib.suppress(media.Unreadable):
            buffer = memoryview(bytearray(media.CHUNK))
            found = FileCopy(path, piece.number).hash_range(piece.offset, piece.size, buffer)
            if found == (piece.sha256, piece.size):
                return True
        remove_tree(path)
        return False

    def _keep(self, piece: Piece, given: PartSource) -> None:
        """Copy one piece. Raises Unreadable when no copy given is good."""
        blocks, _ = read_proven(given, piece)
        remove_tree(self._partial)
        write_new(self._partial, _drained(blocks), FILE_MODE)
        sync_file(self._partial)
        self._partial.replace(self._path(piece))
        sync_directory(self.directory)

    def _path(self, piece: Piece) -> Path:
        return self.directory / layout.piece_name(piece.part.name, piece.number)

    def _require_room(self, needed: int) -> None:
        free = shutil.disk_usage(self.directory).free
        if needed and free < needed + MARGIN:
            raise PreflightError(
                f"{self.directory} has {human_bytes(free)} free; receiving this needs {human_bytes(needed + MARGIN)}",
                remedy="free some space there, or choose another place with --root DIR",
            )


def free(store: StoreLayout, trusted: TrustedManifest) -> int:
    """Remove what was received of a bundle that is installed now; returns the bytes freed."""
    here = matching(store, trusted.directory)
    if here is None:
        return 0
    size = tree_bytes(here)
    (here / layout.MANIFEST).unlink()  # first: from now on it is no bundle, whatever happens
    remove_tree(here)
    return size


def kept_bytes(store: StoreLayout, trusted: TrustedManifest) -> int:
    """Bytes that `free` would free."""
    here = matching(store, trusted.directory)
    return tree_bytes(here) if here is not None else 0


def _offered(given: PartSource, piece: Piece) -> bool:
    return any(copy.piece in (None, piece.number) for copy in given.copies(piece.part.name))


def _drained(blocks: deque[bytes]) -> Iterator[bytes]:
    while blocks:
        yield blocks.popleft()


def state_text(state: State, root: str) -> str:
    """A state for people: what is here, what is lacking, and what to type next."""
    total = len(state.parts) + len({each.partition(",")[0] for each in state.lacking})
    here = f"{human_bytes(state.size - state.missing)} of {human_bytes(state.size)}"
    lines = [f"{state.name} {state.version}: {len(state.parts)} of {total} parts are here, {here}: {state.directory}"]
    if state.complete:
        lines.append(f"It is complete. To install it: bash {state.directory}/{layout.INSTALLER} --root {root}")
    else:
        runs = layout.runs_of_parts(state.lacking)
        lines += [f"  missing: {run[0] if len(run) == 1 else f'{run[0]} to {run[-1]}'}" for run in runs]
    return "\n".join(lines)


def arrival_text(arrival: Arrival, root: str) -> str:
    """What came of a receive, for people."""
    lines = [f"bad, and not kept: {each}" for each in arrival.bad]
    if arrival.bad:
        lines.append("  What to do: hand these parts over once more; everything else that was given is kept")
    known = f", {arrival.known} were here already" if arrival.known else ""
    lines.append(f"{_pieces(arrival.received)} received and proven{known}")
    return "\n".join([*lines, state_text(arrival.state, root)])


def _pieces(count: int) -> str:
    return f"{count} piece{'s' if count != 1 else ''}"
