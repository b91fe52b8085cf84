"""What the commands share: the console, the cache, ``--json``, and the options that many of them take."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from airbundle.cache import Cache, default_root
from airbundle.console import Console
from airbundle.sources.base import SourceContext
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult, exit_code
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import ExitCode, UsageError
from airbundle_onsite.render import checks_text, json_text
from airbundle_onsite.system import SystemRunner

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SMALLEST_PART = 1_000_000
_F = TypeVar("_F", bound=Callable[..., Any])


@record
class App:
    """What every command works with."""

    console: Console
    cache: Cache
    json: bool

    def result(self, text: str, value: Any) -> None:
        """Print a result: `text` for people, `value` for ``--json``."""
        self.console.result(json_text(value) if self.json else text)

    def context(self, base: Path) -> SourceContext:
        """What sources get."""
        return SourceContext(self.cache, self.console, SystemRunner(), base, os.environ.get)


def size(text: str) -> int:
    """Bytes of ``4GB``, ``64MiB`` or ``0``."""
    found = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text)
    if not found or found[2].upper() not in _UNITS:
        raise click.BadParameter(f"{text!r} is not a size like 4GB, 64MiB or 0")
    count = int(found[1]) * _UNITS[found[2].upper()]
    if 0 < count < _SMALLEST_PART:
        raise click.BadParameter(f"{text!r} is {count} bytes; needed 1 MB or more, or 0 for one part")
    return count


def with_app(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--json``, ``--quiet`` and ``--cache``, and an `App` made of them as its first argument."""

    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
    @click.option("-q", "--quiet", is_flag=True, help="No progress and no remarks.")
    @click.option(
        "--cache", type=click.Path(path_type=Path, file_okay=False), help="Cache directory (~/.cache/airbundle)."
    )
    @functools.wraps(command)
    def wrapped(*, as_json: bool, quiet: bool, cache: Path | None, **arguments: Any) -> None:
        command(App(Console(quiet=quiet), Cache(cache or default_root()), as_json), **arguments)

    return wrapped


class _BundlePath(click.Path):
    """The directory of a bundle; a file in its place is told what it probably is."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, context: click.Context | None
    ) -> Path:
        path = Path(value)
        if not path.is_file():
            return path
        if path.suffix == ".toml":
            raise UsageError(
                f"{path} is a spec, and no bundle yet",
                remedy=f"`airbundle plan {path}` shows what it asks for, and `airbundle build {path}` builds it",
            )
        if path.suffix == ".tar":
            raise UsageError(
                f"{path} is a file, and a bundle is a directory", remedy=f"unpack it first: tar -xf {path.name}"
            )
        raise UsageError(
            f"{path} is a file, and a bundle is a directory",
            remedy=f"name the directory that holds {layout.INSTALLER} and {layout.MANIFEST}",
        )


BUNDLE = _BundlePath()
"""Type of an argument that names a bundle."""


def spec_options(command: _F, *, required: bool = True) -> _F:
    """The arguments that name a spec: SPEC, which may be left out unless `required`, ``--lock`` and ``--set``."""
    command = click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, as image.source=daemon:x:1."
    )(command)
    command = click.option(
        "--lock", "lock_path", type=click.Path(path_type=Path), help="Lock file (beside the spec: NAME.lock.json)."
    )(command)
    metavar = "SPEC" if required else "[SPEC]"
    return click.argument("spec_path", metavar=metavar, required=required, type=click.Path(path_type=Path))(command)


def finish(app: App, checks: Sequence[CheckResult], failure: ExitCode, strict: bool) -> None:
    """Print checks; end with `failure` when one failed, with code 4 when `strict` and one warned."""
    app.result(checks_text(checks), list(checks))
    end_with(checks, failure, strict=strict)


def end_with(checks: Sequence[CheckResult], failure: ExitCode, *, strict: bool = False) -> None:
    """End the command when the checks ask for it; see `finish`."""
    code = exit_code(checks, failure, strict=strict)
    if code:
        raise click.exceptions.Exit(int(code))


def read_file(path: Path) -> bytes:
    """Content of a file that a person named. Raises UsageError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", remedy="name a readable file") from error
