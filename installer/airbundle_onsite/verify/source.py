"""Where the bytes of a payload's parts are read from: one directory, several, pieces sent to repair them, a server.

A `PartSource` names the copies of a part that it knows of. What a copy holds proves nothing: every piece is hashed by
whoever reads it, and the first copy whose bytes are right is taken.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional, Protocol

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.payload import Part
from airbundle_onsite.contract.record import record
from airbundle_onsite.verify import media


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


class Copy(Protocol):
    """Something that should hold a part, or one piece of it.

    Attributes:
        place: where it is, for people: a directory or a URL.
        piece: number of the only piece that it should hold; None when it should be the whole part.
    """

    @property
    def place(self) -> str: ...

    @property
    def piece(self) -> Optional[int]: ...

    def size(self) -> Optional[int]:
        """Bytes of what is there, without reading it; None when that cannot be told."""
        ...

    def hash_range(self, offset: int, size: int, buffer: memoryview) -> tuple[str, int]:
        """SHA-256 of a range of the part, and how many of its bytes there were; an early end is no error.

        Raises:
            Unreadable: it cannot be read.
        """
        ...

    def read_range(self, offset: int, size: int) -> tuple[deque[bytes], str]:
        """A range of the part as blocks of at most 1 MiB, and its SHA-256.

        Raises:
            Unreadable: it cannot be read, or ends before.
        """
        ...


class PartSource(Protocol):
    """Knows where copies of parts are.

    Attributes:
        places: where it looks, for people.
        readers: how many ranges may be read at once; None for as many as there are cores.
    """

    @property
    def places(self) -> Sequence[str]: ...

    @property
    def readers(self) -> Optional[int]: ...

    def copies(self, name: str) -> Sequence[Copy]:
        """What there is of the part of that name, the most promising first; nothing is read for that."""
        ...


@record
class FileCopy:
    """A file on the media that should hold a part, or one piece of it.

    Attributes:
        path: the file.
        piece: see `Copy`.
    """

    path: Path
    piece: Optional[int] = None

    @property
    def place(self) -> str:
        return str(self.path.parent)

    def size(self) -> Optional[int]:
        try:
            return self.path.lstat().st_size
        except OSError:
            return None

    def hash_range(self, offset: int, size: int, buffer: memoryview) -> tuple[str, int]:
        with media.open_regular(self.path) as descriptor:
            begin = self._within(offset)
            media.will_need(descriptor, begin, min(size, media.READ_AHEAD))
            return media.hash_range(descriptor, begin, size, buffer)

    def read_range(self, offset: int, size: int) -> tuple[deque[bytes], str]:
        with media.open_regular(self.path) as descriptor:
            begin = self._within(offset)
            media.will_need(descriptor, begin, size)
            return media.read_range(descriptor, begin, size)

    def _within(self, offset: int) -> int:
        return offset - (self.piece or 0) * layout.PIECE_SIZE


class Directory:
    """A directory with parts in it, single pieces, or both; a piece of its own comes before the part it belongs to."""

    readers: Optional[int] = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pieces: dict[str, list[FileCopy]] = {}
        for name in sorted(_names(path)):
            match = layout.PIECE_PATTERN.fullmatch(name)
            if match:
                self._pieces.setdefault(match[1], []).append(FileCopy(path / name, int(match[2])))

    @property
    def places(self) -> Sequence[str]:
        return (str(self._path),)

    @property
    def has_pieces(self) -> bool:
        """Whether there are single pieces in it."""
        return bool(self._pieces)

    def copies(self, name: str) -> Sequence[Copy]:
        found: list[Copy] = [*self._pieces.get(name, ())]
        return [*found, FileCopy(self._path / name)] if os.path.lexists(self._path / name) else found


class Files:
    """Single files, each called like a part or like a piece of one."""

    readers: Optional[int] = None

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    @property
    def places(self) -> Sequence[str]:
        return tuple(map(str, self._paths))

    def copies(self, name: str) -> Sequence[Copy]:
        found: list[Copy] = []
        for path in self._paths:
            match = layout.PIECE_PATTERN.fullmatch(path.name)
            if path.name == name:
                found.append(FileCopy(path))
            elif match and match[1] == name:
                found.append(FileCopy(path, int(match[2])))
        return found


class Several:
    """Several sources as one: single pieces before whole parts, else in the order given."""

    def __init__(self, sources: Sequence[PartSource]) -> None:
        self._sources = sources

    @property
    def places(self) -> Sequence[str]:
        return tuple(dict.fromkeys(place for source in self._sources for place in source.places))

    @property
    def readers(self) -> Optional[int]:
        limits = [source.readers for source in self._sources if source.readers is not None]
        return min(limits) if limits else None

    def copies(self, name: str) -> Sequence[Copy]:
        found = [copy for source in self._sources for copy in source.copies(name)]
        return sorted(found, key=lambda copy: copy.piece is None)


def holding(copies: Sequence[Copy], piece: Piece) -> list[Copy]:
    """Those that may hold a piece."""
    return [copy for copy in copies if copy.piece in (None, piece.number)]


def lacking_pieces(source: PartSource, part: Part) -> list[Piece]:
    """Pieces of a part of which there is no copy, as far as names and sizes tell."""
    copies = source.copies(part.name)
    ends = [(copy.piece, _end(copy, part)) for copy in copies]
    return [
        piece
        for piece in pieces_of(part)
        if not any(number in (None, piece.number) and end >= piece.offset + piece.size for number, end in ends)
    ]


def _end(copy: Copy, part: Part) -> int:
    """Up to which byte of the part a copy may go."""
    size = copy.size()
    return part.size if size is None else size + (copy.piece or 0) * layout.PIECE_SIZE


def read_proven(source: PartSource, piece: Piece) -> tuple[deque[bytes], list[str]]:
    """A piece's bytes as blocks of at most 1 MiB, from the first copy where they are right.

    Returns:
        The blocks, and for each copy that was passed over a clause that says where and why.

    Raises:
        Unreadable: no copy has them.
    """
    passed_over: list[str] = []
    candidates = holding(source.copies(piece.part.name), piece)
    for copy in candidates:
        where = f"in {copy.place}: " if len(candidates) > 1 else ""
        try:
            blocks, found = copy.read_range(piece.offset, piece.size)
        except media.Unreadable as error:
            passed_over.append(f"{where}{error}")
            continue
        if found == piece.sha256:
            return blocks, passed_over
        passed_over.append(f"{where}found SHA-256 {found[:16]}…, needed {piece.sha256[:16]}…")
    raise media.Unreadable("; ".join(dict.fromkeys(passed_over)) or "it is missing")


def _names(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir()]
    except OSError:
        return []
