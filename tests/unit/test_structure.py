"""Rules of structure that neither ruff nor import-linter keeps."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from parts import need

CHECKOUT = Path(__file__).resolve().parents[2]
SITE = CHECKOUT / "installer" / "airbundle_onsite"
ONLINE = CHECKOUT / "bundler" / "airbundle"
MAY_PRINT = {"cli.py", "__main__.py"}

NEWER_THAN_39 = {"tomllib", "annotationlib", "compression"}
# fmt: off
GONE_BY_313 = {
    "aifc", "asynchat", "asyncore", "audioop", "binhex", "cgi", "cgitb", "chunk", "crypt", "distutils", "formatter",
    "imghdr", "imp", "lib2to3", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "parser", "pipes", "smtpd",
    "sndhdr", "spwd", "sunau", "symbol", "telnetlib", "uu", "xdrlib",
}
# fmt: on
SITE_MAY_IMPORT = (sys.stdlib_module_names - NEWER_THAN_39 - GONE_BY_313) | {"airbundle_onsite"}

# Each in two halves, so that this file does not hold what it forbids.
FORBIDDEN = tuple(
    "".join(halves)
    for halves in (
        ("pypi", ".org"),
        ("python", "hosted.org"),
        ("deb.deb", "ian.org"),
        ("snapshot.deb", "ian.org"),
        ("npmjs", ".org"),
        ("/work", "/main"),
        ("/work", "/shared"),
        ("../", "shared"),
        ("/root/", ".pyenv"),
        ("/home/", "runner"),
    )
)

IMPORT_ALONE = """
import importlib, json, os, sys, traceback, warnings
failed = {}
for name in json.load(sys.stdin):
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(read)
        warnings.filterwarnings("error", module="airbundle")
        try:
            importlib.import_module(name)
        except BaseException:
            os.write(write, traceback.format_exc()[-1500:].encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        problem = pipe.read()
    os.wait()
    if problem:
        failed[name] = problem
print(json.dumps(failed))
"""


def sources(*roots: Path) -> list[Path]:
    return sorted(path for root in roots for path in root.rglob("*.py") if "_vendor" not in path.parts)


def name_of(path: Path) -> str:
    words = path.relative_to(path.parents[len(path.parents) - 1]).with_suffix("").parts
    start = next(number for number, word in enumerate(words) if word in ("airbundle", "airbundle_onsite"))
    return ".".join(word for word in words[start:] if word != "__init__")


def tracked() -> list[Path]:
    argv = ["git", "-c", f"safe.directory={CHECKOUT}", "-C", str(CHECKOUT), "ls-files", "-z"]
    listed = subprocess.run(argv, capture_output=True, check=True).stdout.decode().split("\0")
    return [CHECKOUT / name for name in listed if name and (CHECKOUT / name).is_file()]


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(CHECKOUT)}:{getattr(node, 'lineno', 0)}"


def imported(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Imports that happen when the module runs: those for type checkers alone are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield from imported(node)
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node, node.module or ""


def below_main(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those of ``if __name__ == "__main__":``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            continue
        yield node
        yield from below_main(node)


def calls_of(node: ast.AST) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return f"{node.func.value.id}.{node.func.attr}"
    return ""


def test_nothing_below_the_command_lines_prints_or_exits():
    forbidden = {"print", "exit", "quit", "sys.exit"}
    found = [
        f"{where(path, node)} {calls_of(node)}"
        for path in sources(SITE, ONLINE)
        if path.name not in MAY_PRINT
        for node in below_main(ast.parse(path.read_text()))
        if calls_of(node) in forbidden
    ]
    assert found == []


def test_every_module_imports_alone_without_a_warning():
    names = [name_of(path) for path in sources(SITE, ONLINE) if path.name != "__main__.py"]
    assert {"airbundle", "airbundle_onsite", "airbundle_onsite.errors"} <= set(names)
    argv = [sys.executable, "-c", IMPORT_ALONE]
    done = subprocess.run(argv, input=json.dumps(names), capture_output=True, text=True, timeout=300)
    assert json.loads(done.stdout) == {}, done.stderr


def test_every_module_compiles_without_a_warning():
    for path in sources(SITE, ONLINE, CHECKOUT / "tests", CHECKOUT / "benchmarks"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compile(path.read_text(), str(path), "exec", dont_inherit=True)


def test_the_site_half_is_python_39_and_imports_the_standard_library_alone():
    problems = []
    for path in sources(SITE):
        tree = ast.parse(path.read_text(), filename=str(path), feature_version=(3, 9))
        problems += [f"{where(path, node)} match" for node in ast.walk(tree) if isinstance(node, ast.Match)]
        problems += [
            f"{where(path, node)} imports {name}"
            for node, name in imported(tree)
            if name.split(".")[0] not in SITE_MAY_IMPORT
        ]
    assert problems == []


def test_no_tracked_file_names_a_registry_host_or_a_machines_path():
    found = []
    for path in tracked():
        if "_vendor" in path.parts:
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{path.relative_to(CHECKOUT)}: {word}" for word in FORBIDDEN if word in text]
    assert found == []


def test_no_test_is_skipped_or_expected_to_fail():
    words = ("pytest.mark.skip", "pytest.mark.xfail", "pytest.xfail(", "pytest.skip(", "importorskip")
    found = [
        f"{path.relative_to(CHECKOUT)}: {word}"
        for path in sources(CHECKOUT / "tests")
        if path not in {Path(__file__).resolve(), Path(need.__file__).resolve()}
        for word in words
        if word in path.read_text()
    ]
    assert found == []


@pytest.mark.real("shellcheck")
def test_our_own_scripts_pass_shellcheck():
    shells = (b"#!/bin/sh", b"#!/usr/bin/env bash")
    scripts = [path for path in tracked() if path.suffix != ".j2" and path.read_bytes()[:30].startswith(shells)]
    assert CHECKOUT / ".ci" / "run" in scripts
    done = subprocess.run([need.program("shellcheck"), *map(str, scripts)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
