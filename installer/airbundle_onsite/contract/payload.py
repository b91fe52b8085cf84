"""The payload and what it holds as bytes: parts of a tar, files, and the segments a file is put together from."""

from __future__ import annotations

from typing import Literal, Optional

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.names import check_sha256
from airbundle_onsite.contract.record import record

Role = Literal["image", "wheel", "model", "config", "license"]


@record
class Part:
    """One part of the payload.

    Attributes:
        name: ``payload.tar.000`` and so on, in order.
        size: bytes.
        sha256: of the whole part; the same as in SHA256SUMS.
        pieces: SHA-256 of each 64 MiB of it, in order; the last piece may be shorter.
    """

    name: str
    size: int
    sha256: str
    pieces: tuple[str, ...]

    def __post_init__(self) -> None:
        if not layout.PART_PATTERN.fullmatch(self.name):
            raise ValueError(f"part name {self.name!r:.80} is not like payload.tar.000")
        if self.size <= 0:
            raise ValueError(f"{self.name}: size {self.size} is not positive")
        for value in (self.sha256, *self.pieces):
            check_sha256(value)
        wanted = -(-self.size // layout.PIECE_SIZE)
        if len(self.pieces) != wanted:
            raise ValueError(f"{self.name}: {len(self.pieces)} pieces listed, {wanted} needed for {self.size} bytes")


@record
class OuterFile:
    """A file beside bundle.json that is neither a part, the checksums nor the signature."""

    name: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        if not layout.is_outer_name(self.name):
            raise ValueError(f"file name {self.name!r:.80} may hold only A-Z a-z 0-9 . _ -")
        check_sha256(self.sha256)


@record
class Segment:
    """A run of a file's bytes.

    Attributes:
        size: bytes.
        offset: where they begin, in the joined payload or in the base's file.
        base: SHA-256 of a file of the base release they come from; None when they are in the payload.
        compressed: bytes that they take in the payload as blocks of byte planes (see `airbundle_onsite.planes`); None
            when they are there as they are.
    """

    size: int
    offset: int
    base: Optional[str] = None
    compressed: Optional[int] = None

    @property
    def packed(self) -> int:
        """Bytes that it takes in the payload."""
        if self.base is not None:
            return 0
        return self.size if self.compressed is None else self.compressed


@record
class FileEntry:
    """A regular file of the payload.

    Attributes:
        path: inside the payload; relative and normalised.
        role: what it belongs to.
        size: bytes.
        sha256: of its content.
        segments: where its bytes are; together they make the file. Empty only for an empty file. Those in the payload
            follow each other there, in one entry of the tar.
    """

    path: str
    role: Role
    size: int
    sha256: str
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if not layout.is_payload_path(self.path):
            raise ValueError(f"path {self.path!r:.120} is not a plain relative path")
        check_sha256(self.sha256)
        if self.size < 0 or any(segment.size <= 0 or segment.offset < 0 for segment in self.segments):
            raise ValueError(f"{self.path}: negative size or offset")
        if sum(segment.size for segment in self.segments) != self.size:
            raise ValueError(f"{self.path}: its segments do not add up to {self.size} bytes")
        position: Optional[int] = None
        for segment in self.segments:
            if segment.compressed is not None and (segment.base or not 0 < segment.compressed < segment.size):
                raise ValueError(f"{self.path}: {segment.size} bytes compressed to {segment.compressed}")
            if segment.base is not None:
                check_sha256(segment.base)
                continue
            if position not in (None, segment.offset):
                raise ValueError(f"{self.path}: its segments in the payload do not follow each other")
            position = segment.offset + segment.packed

    @property
    def from_base(self) -> bool:
        """Whether some of its bytes are the base's."""
        return any(segment.base is not None for segment in self.segments)

    @property
    def is_compressed(self) -> bool:
        """Whether some of its bytes are compressed in the payload."""
        return any(segment.compressed is not None for segment in self.segments)

    @property
    def is_plain(self) -> bool:
        """Whether its entry in the payload is the file itself."""
        return not self.from_base and not self.is_compressed

    @property
    def packed(self) -> int:
        """Bytes of its entry in the payload's tar."""
        return sum(segment.packed for segment in self.segments)

    @property
    def member(self) -> str:
        """Path of its entry in the payload's tar: its own, or another when that is not the whole file; empty when it
        has none, since the base has all of its bytes."""
        if self.is_plain:
            return self.path
        if not self.from_base:
            return layout.packed_path(self.sha256)
        return layout.delta_path(self.sha256) if self.packed else ""

    @property
    def begins(self) -> Optional[int]:
        """Where the content of its entry begins in the joined payload; None when it has none."""
        return next((segment.offset for segment in self.segments if segment.base is None), None)


@record
class Payload:
    """The parts, which joined in order are one plain tar.

    Attributes:
        size: bytes of the joined tar.
        parts: in order.
        piece_size: bytes of a piece.
    """

    size: int
    parts: tuple[Part, ...]
    piece_size: int = layout.PIECE_SIZE

    def __post_init__(self) -> None:
        if self.piece_size != layout.PIECE_SIZE:
            raise ValueError(f"piece_size {self.piece_size}: this version reads only {layout.PIECE_SIZE}")
        if sum(part.size for part in self.parts) != self.size:
            raise ValueError(f"the parts do not add up to the payload's {self.size} bytes")
        for index, part in enumerate(self.parts):
            if part.name != layout.part_name(index):
                raise ValueError(f"part {index} is called {part.name}, not {layout.part_name(index)}")
