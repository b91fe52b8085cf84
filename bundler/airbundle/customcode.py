"""Python code that a model brings: where its configuration names it, and which files that takes. Pure."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from airbundle_onsite.contract.record import record


@record
class Reference:
    """A class that an ``auto_map`` names.

    Attributes:
        file: the JSON file that names it.
        text: as it stands there.
        repository: the repository it lives in, or empty for the model's own.
        module: file name of its module, ``modeling_x.py``.
    """

    file: str
    text: str
    repository: str
    module: str


@record
class Imports:
    """What a module needs: `own` file names beside it, and `packages` by their top-level import names.

    `packages` leaves out the standard library, and what stands in a ``try`` or under an ``if``: that may be absent.
    """

    own: tuple[str, ...]
    packages: tuple[str, ...]


def references(documents: Mapping[str, Mapping[str, Any]]) -> tuple[Reference, ...]:
    """Every class named by an ``auto_map``, in any of a model's JSON files and at any depth.

    Args:
        documents: file name -> its content; only files at the top of the model count, as in transformers.
    """
    found = {}
    for name, document in sorted(documents.items()):
        for text in _named(document):
            repository, _, target = text.rpartition("--")
            module = target.rpartition(".")[0]
            if module:
                found[name, text] = Reference(name, text, repository, f"{module}.py")
    return tuple(found.values())


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        auto_map = value.get("auto_map")
        if isinstance(auto_map, Mapping):
            for target in auto_map.values():
                yield from (
                    text for text in (target if isinstance(target, list) else [target]) if isinstance(text, str)
                )
        for key, inner in value.items():
            if key != "auto_map":
                yield from _named(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _named(inner)


def imports(source: bytes) -> Imports:
    """What a module imports.

    Raises:
        ValueError: it is not Python, or imports from above its own directory.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"not Python that can be read: {error}") from error
    own: set[str] = set()
    packages: set[str] = set()
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            packages.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            packages.add(str(node.module).partition(".")[0])
    for node in ast.walk(tree):  # relative ones count wherever they stand: the file has to be there
        if isinstance(node, ast.ImportFrom) and node.level > 1:
            raise ValueError(f"line {node.lineno} imports from above the model's own directory")
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            modules = [node.module] if node.module else [alias.name for alias in node.names]
            own.update(f"{module.replace('.', '/')}.py" for module in modules)
    return Imports(tuple(sorted(own)), tuple(sorted(packages - set(sys.stdlib_module_names))))


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements that run whenever the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def closure(wanted: set[str], sources: Mapping[str, bytes]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files that `wanted` modules need, themselves included, and problems.

    Args:
        wanted: file names.
        sources: the Python files there are.

    Returns:
        File names, sorted; and a line for each that is missing or cannot be read.
    """
    files: set[str] = set()
    problems: dict[str, str] = {}
    todo = [(name, "auto_map") for name in sorted(wanted, reverse=True)]
    while todo:
        name, asked_by = todo.pop()
        if name in files or name in problems:
            continue
        if name not in sources:
            problems[name] = f"missing, though {asked_by} names it"
            continue
        files.add(name)
        try:
            todo.extend((each, name) for each in imports(sources[name]).own)
        except ValueError as error:
            problems[name] = str(error)
    return tuple(sorted(files)), tuple(f"{name}: {problem}" for name, problem in problems.items())


def parsed(text: str) -> Mapping[str, Any]:
    """A JSON object; an empty one for anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, Mapping) else {}


def localized(document: bytes, repositories: set[str]) -> bytes:
    """A JSON file whose references into these repositories point beside it; every other byte stays as it is."""
    for repository in sorted(repositories):
        document = document.replace(f'"{repository}--'.encode(), b'"')
    return document
