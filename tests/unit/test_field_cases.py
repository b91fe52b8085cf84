"""Every test that docs/field-cases.md names is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "field-cases.md"
AREAS = {"Wheels", "Weights", "Images", "Media", "Installer", "GPU", "Engine", "Versions"}
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_each_row_is_of_an_area_and_names_tests() -> None:
    found = rows()
    assert {row[0] for row in found} == AREAS
    for row in found:
        assert len(row) == 4, row
        named = _NAMED.findall(row[3])
        assert named and len(named) == row[3].count("::") == row[3].count("`") // 2, row[1]


def test_each_test_that_is_named_is_there() -> None:
    named = {(ROOT / path, test) for row in rows() for path, test in _NAMED.findall(row[3])}
    missing = [f"{path}::{test}" for path, test in named if not path.is_file() or test not in names_in(path)]
    assert sorted(missing) == []
