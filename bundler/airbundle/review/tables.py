"""The forms in which facts reach the page: terms with values, tables of text, numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from airbundle_onsite.contract.record import record

Fact = tuple[str, str]
"""A term and what is so."""


@record
class Column:
    """A table's column.

    Attributes:
        kind: ``number`` is set to the right; ``word``, ``code`` and ``hash`` in a fixed width: one that is never
            broken, one that is broken where it must be, and one that is broken anywhere.
    """

    title: str
    kind: Literal["text", "number", "word", "code", "hash"] = "text"


@record
class Table:
    """A table whose first column names the row. A line break inside a cell is kept."""

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


def count(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def exact_bytes(size: int) -> str:
    """All digits of a number of bytes, in groups of three."""
    return f"{size:,}".replace(",", "\N{NO-BREAK SPACE}")


def moment(seconds: int) -> str:
    """Seconds since the epoch as date and time of day, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
