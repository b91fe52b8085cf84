"""SHA256SUMS: the list of a bundle's files that ``sha256sum -c`` reads, parsed strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airbundle_onsite.contract import layout

LIMIT = 4 * 1024 * 1024
"""Bytes; room for about 45,000 files."""

_LINE = re.compile(r"([0-9a-f]{64})  ([^\n]+)")


def parse(data: bytes) -> tuple[dict[str, str], list[str]]:
    """Names with their SHA-256, and what is wrong with the text; bad lines are left out of the names."""
    if b"\r" in data:
        return {}, ["found lines ending in CR LF, needed LF: it was copied as text or edited"]
    if not data.endswith(b"\n"):
        return {}, ["found no line end after the last line: it is cut short"]
    sums: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n")[:-1], 1):
        match = _LINE.fullmatch(line)
        if not match or not layout.is_outer_name(match.group(2)):
            problems.append(f"line {number}: found {line[:100]!r}, needed a SHA-256, two spaces and a plain file name")
        elif match.group(2) in sums:
            problems.append(f"line {number}: {match.group(2)} is listed twice")
        elif match.group(2) in (layout.CHECKSUMS, layout.SIGNATURE):
            problems.append(f"line {number}: {match.group(2)} cannot be listed here")
        else:
            sums[match.group(2)] = match.group(1)
    if layout.MANIFEST not in sums and not problems:
        problems.append(f"{layout.MANIFEST} is not listed")
    return sums, problems


def text(sums: Mapping[str, str]) -> bytes:
    """The file's content for these names and hashes, in order of name."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode()
