"""What a site asks the office for when bytes went bad on the way: a small document that fits on a slip of a stick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.record import record

SCHEMA_VERSION = 1


@record
class BadPart:
    """Pieces of one part that are bad or missing.

    Attributes:
        part: name of the part.
        pieces: their numbers, from 0.
    """

    part: str
    pieces: tuple[int, ...]

    def __post_init__(self) -> None:
        if not layout.PART_PATTERN.fullmatch(self.part):
            raise ValueError(f"part name {self.part!r:.80} is not like payload.tar.000")
        if any(number < 0 for number in self.pieces) or len(set(self.pieces)) != len(self.pieces):
            raise ValueError(f"{self.part}: piece numbers are 0 or more, each once")


@record
class RepairRequest:
    """Which bytes a site needs again.

    Attributes:
        schema_version: of this document.
        name, version: the bundle's; empty when its bundle.json could not be believed.
        manifest_sha256: of its bundle.json; empty when that could not be believed.
        parts: what is bad, for a bundle.json that could be.
        found: else, what there is of each part: the SHA-256 of each of its pieces, from which the office finds out.
        files: small files that are bad or missing, for people: all of them are sent with every repair.
    """

    schema_version: int
    name: str = ""
    version: str = ""
    manifest_sha256: str = ""
    parts: tuple[BadPart, ...] = ()
    found: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(f"schema_version {self.schema_version}: this tool reads version {SCHEMA_VERSION}")
