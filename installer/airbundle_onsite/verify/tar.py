"""The payload's tar, read strictly: regular files in the manifest's order and nothing else.

The manifest pins every byte, yet a bundle made by a hostile builder must not escape: so a header may only repeat
what the manifest says of the next file. Paths come from the manifest (where they were checked), never from a header.
"""

from __future__ import annotations

from typing import Callable, NoReturn

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.payload import FileEntry
from airbundle_onsite.errors import IntegrityError

BLOCK = 512
_PAX_LIMIT = 64 * 1024
_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"5": "a directory",
    b"6": "a named pipe",
    b"g": "a global extended header",
    b"L": "a GNU long name",
    b"K": "a GNU long link name",
    b"S": "a GNU sparse file",
}


def refuse(reason: str) -> NoReturn:
    """Raise the IntegrityError of a payload that does not follow its manifest."""
    raise IntegrityError(
        f"the payload is not what {layout.MANIFEST} describes: {reason}",
        remedy="do not use this bundle: it was built wrongly, or to do harm; ask its sender for another",
    )


def read_header(entry: FileEntry, read: Callable[[int], bytes]) -> None:
    """Read the header of the file that must come next, with an extended header before it where there is one.

    Args:
        entry: what the manifest says of that file, which has an entry in the tar.
        read: returns the next so many bytes of the payload.

    Raises:
        IntegrityError: the header says anything else.
    """
    header = read(BLOCK)
    extended: dict[str, str] = {}
    if _kind(header) == b"x":
        extended = _read_extended(header, read)
        header = read(BLOCK)
    if header == bytes(BLOCK):
        refuse(f"it ends before {entry.member}")
    kind = _kind(header)
    path = extended.get("path") or _path(header)
    if kind != b"0":
        refuse(
            f"{path!r:.200} is {_KINDS.get(kind, f'of the unknown type {kind!r}')}, needed the file {entry.member!r}"
        )
    if header[157:257].strip(b"\0"):
        refuse(f"{path!r:.200} has a link target")
    if path != entry.member:
        refuse(f"found {path!r:.200}, needed {entry.member!r}")
    size = _decimal(extended["size"]) if "size" in extended else _octal(header[124:136])
    if size != entry.packed:
        refuse(f"{entry.member}: found a file of {size} bytes, needed {entry.packed}")


def _read_extended(header: bytes, read: Callable[[int], bytes]) -> dict[str, str]:
    """The records of a PAX header: only ``path`` and ``size`` are allowed, each once."""
    size = _octal(header[124:136])
    if not 0 < size <= _PAX_LIMIT:
        refuse(f"an extended header of {size} bytes")
    data = read(size + -size % BLOCK)
    if data[size:].strip(b"\0"):
        refuse("an extended header with something after its end")
    records: dict[str, str] = {}
    rest = data[:size]
    while rest:
        length_text, _, _ = rest.partition(b" ")
        length = _decimal(length_text.decode("ascii", "replace"))
        record, rest = rest[:length], rest[length:]
        if len(record) != length or length <= len(length_text) + 1 or not record.endswith(b"\n"):
            refuse("an extended header with a broken record")
        key, equals, value = record[len(length_text) + 1 : -1].decode("utf-8", "surrogateescape").partition("=")
        if key not in ("path", "size") or not equals or key in records:
            refuse(f"an extended header with the record {key!r:.60}")
        records[key] = value
    return records


def _kind(header: bytes) -> bytes:
    """The type flag of a block that is a sound POSIX header; an all-zero block counts as a file's."""
    if header == bytes(BLOCK):
        return b"0"
    if header[257:265] != b"ustar\x0000":
        refuse("a header that is not POSIX tar's")
    if _octal(header[148:156]) != sum(header[:148]) + 8 * ord(" ") + sum(header[156:]):
        refuse("a header with a wrong checksum")
    return header[156:157]


def _path(header: bytes) -> str:
    name, prefix = (
        header[a:b].partition(b"\0")[0].decode("utf-8", "surrogateescape") for a, b in ((0, 100), (345, 500))
    )
    return f"{prefix}/{name}" if prefix else name


def _octal(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not digits or digits.strip(b"01234567"):
        refuse(f"a header with the number {field!r}")
    return int(digits, 8)


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        refuse(f"an extended header with the number {text!r:.30}")
    return int(text)
