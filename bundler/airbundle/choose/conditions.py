"""Conditions written in data files: ``capability < '8.0' and dtype == 'bfloat16'``, over named facts.

The language is Python's own for comparisons, ``and``, ``or``, ``not``, arithmetic and ``in``, and nothing else. A
version compared with a text is compared as a version. An unknown fact (None) makes every comparison false but
``== None``, so that a rule fires only on what is known.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from packaging.version import Version

Value = bool | int | float | str | Version | None

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression.strip() or "True", mode="eval").body


def holds(expression: str, facts: Mapping[str, Value]) -> bool:
    """Whether a condition holds; an empty one always does.

    Raises:
        ValueError: it names a fact that there is none of, or uses more than the language has.
    """
    return bool(_value(_parsed(expression), facts))


def names(expression: str) -> frozenset[str]:
    """The facts a condition is about."""
    return frozenset(node.id for node in ast.walk(_parsed(expression)) if isinstance(node, ast.Name))


def _value(node: ast.expr, facts: Mapping[str, Value]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            if node.id not in facts:
                raise ValueError(f"there is no fact {node.id!r}")
            return facts[node.id]
        case ast.BoolOp():
            wanted = isinstance(node.op, ast.Or)
            return (
                any(_value(part, facts) for part in node.values)
                if wanted
                else all(_value(part, facts) for part in node.values)
            )
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand, facts)
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](_value(node.left, facts), _value(node.right, facts))
        case ast.Compare():
            return _compare(node, facts)
        case ast.Tuple() | ast.List():
            return tuple(_value(part, facts) for part in node.elts)
    raise ValueError(f"{ast.unparse(node)!r} is more than a condition may say")


def _compare(node: ast.Compare, facts: Mapping[str, Value]) -> bool:
    left = _value(node.left, facts)
    for sign, part in zip(node.ops, node.comparators, strict=True):
        right = _value(part, facts)
        if not _holds_between(sign, left, right):
            return False
        left = right
    return True


def _holds_between(sign: ast.cmpop, left: Any, right: Any) -> bool:
    if isinstance(sign, ast.In | ast.NotIn):
        return (left in right) == isinstance(sign, ast.In)
    if isinstance(left, Version) and isinstance(right, str):
        right = Version(right)
    elif isinstance(right, Version) and isinstance(left, str):
        left = Version(left)
    if (left is None or right is None) and not isinstance(sign, ast.Eq | ast.NotEq):
        return False
    if type(sign) not in _COMPARE:
        raise ValueError("only ==, !=, <, <=, >, >=, in and not in compare")
    return _COMPARE[type(sign)](left, right)
