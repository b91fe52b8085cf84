"""Where each key of a TOML document stands: `tomllib` gives values without lines."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_TABLE = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]\s*(?:#.*)?")
_ARRAY = re.compile(rf"\s*\[\[\s*({_DOTTED})\s*\]\]\s*(?:#.*)?")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=(.*)")
_QUOTES = ('"""', "'''")


def locate(text: str) -> dict[str, int]:
    """Line, counted from 1, of every table and key of a valid document, by path: ``model.source``, ``smoke[0]``."""
    found: dict[str, int] = {}
    arrays: dict[str, int] = {}
    prefix, inside = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if inside:  # a string of several lines: nothing in it is a key
            inside = "" if line.count(inside) % 2 else inside
            continue
        if match := _ARRAY.fullmatch(line):
            name = _plain(match[1])
            arrays[name] = arrays.get(name, -1) + 1
            prefix = f"{name}[{arrays[name]}]"
            found.setdefault(name, number)
            found[prefix] = number
        elif match := _TABLE.fullmatch(line):
            prefix = _plain(match[1])
            found.setdefault(prefix, number)
        elif match := _KEY.match(line):
            found.setdefault(f"{prefix}.{_plain(match[1])}" if prefix else _plain(match[1]), number)
        inside = next((quotes for quotes in _QUOTES if line.count(quotes) % 2), "")
    return found


def line_of(lines: Mapping[str, int], key: str) -> int:
    """Line of a key; of the nearest thing that holds it when it has none itself; 0 when there is neither."""
    while key:
        if key in lines:
            return lines[key]
        key = re.sub(r"(\[\d+\]|\.?[^.\[\]]+)$", "", key)
    return 0


def _plain(dotted: str) -> str:
    return ".".join(name.strip().strip("\"'") for name in re.findall(_NAME, dotted))
