"""Runs uv, which finds the closure for a target that is not here. Nothing of this machine's settings reaches it."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.utils import canonicalize_name
from uv import find_uv_bin

from airbundle import web
from airbundle.contract.spec import IndexTable
from airbundle.sources.base import SourceContext
from airbundle.wheels.target import Target
from airbundle.wheels.toolbox import ca_bundle, neutral_environment
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError
from airbundle_onsite.system import Completed, Runner

_URL = re.compile(r"--(?:default-index|index-url) (\S+)")
_SECONDS = 1800


@record
class Question:
    """What uv is asked.

    Attributes:
        requirements, constraints: requirement lines.
        target: see `Target`.
        index: URL, or empty for uv's own default.
        indexes: further ones, with the packages bound to each.
        prereleases: packages of which a pre-release may be taken.
        before: see `WheelsTable`.
        pins: versions to keep where they still do, by name.
    """

    requirements: tuple[str, ...]
    target: Target
    index: str = ""
    indexes: tuple[IndexTable, ...] = ()
    constraints: tuple[str, ...] = ()
    prereleases: tuple[str, ...] = ()
    before: str = ""
    pins: Mapping[str, str] | None = None


@record
class Answer:
    """What uv found: the packages of its lock file, as PEP 751 has them; and what it remarked on the way."""

    packages: tuple[Mapping[str, Any], ...]
    remarks: str


class NoAnswer(Exception):
    """There is no solution, or it could not be found: `said` is uv's explanation."""

    def __init__(self, done: Completed) -> None:
        super().__init__(done.stderr)
        self.code, self.said = done.code, web.scrubbed(done.stderr)


class Uv:
    """The uv that was installed with this program.

    Attributes:
        version: for people.
    """

    def __init__(self, runner: Runner, directory: Path, environment: Mapping[str, str]) -> None:
        self._runner, self._directory, self._environment = runner, directory, environment
        self._bin = find_uv_bin()
        self.version = self._run(["--version"]).stdout.split(" (")[0].strip()

    def solve(self, question: Question) -> Answer:
        """The closure.

        Raises:
            NoAnswer: see there.
        """
        project, result = self._directory / "pyproject.toml", self._directory / "pylock.toml"
        project.write_text(_project(question), encoding="utf-8")
        (self._directory / "constraints.txt").write_text("".join(f"{line}\n" for line in sorted(question.constraints)))
        result.unlink(missing_ok=True)
        if question.pins:
            result.write_text(_pinned(question.pins), encoding="utf-8")
        words = ["pip", "compile", project.name, "--constraints", "constraints.txt", "--output-file", result.name]
        words += _options(question)
        done = self._run(words)
        if done.code != 0:
            raise NoAnswer(done)
        packages = tomllib.loads(result.read_text(encoding="utf-8")).get("packages", [])
        return Answer(tuple(packages), web.scrubbed(done.stderr))

    def default_index(self) -> str:
        """URL of the index that uv asks when none is named."""
        (self._directory / "nothing.in").write_text("")
        done = self._run(["pip", "compile", "nothing.in", "--emit-index-url", "--python", sys.executable])
        found = _URL.search(done.stdout)
        if done.code != 0 or not found:
            raise FetchError(
                f"uv does not say which index it asks (exit {done.code})",
                details=done.stderr.splitlines()[-3:],
                remedy="name one in wheels.index",
            )
        return found[1]

    def _run(self, words: Sequence[str]) -> Completed:
        return self._runner.run(
            [self._bin, "--no-config", "--color", "never", "--no-progress", *words],
            timeout=_SECONDS,
            env=self._environment,
            cwd=self._directory,
        )


@contextmanager
def new_uv(context: SourceContext) -> Iterator[Uv]:
    """uv in a temporary directory, with what of the environment may count: proxies, certificates, netrc."""
    with TemporaryDirectory(prefix="airbundle-uv-") as name:
        directory = Path(name)
        yield Uv(context.runner, directory, _environment(context.environ, directory, context.cache.root / "uv"))


def _environment(environ: Callable[[str], str | None], directory: Path, cache: Path) -> dict[str, str]:
    made = {name: value for name, value in neutral_environment(environ).items() if not name.startswith("PIP_")}
    netrc = environ("NETRC") or str(Path(environ("HOME") or "/nonexistent", ".netrc"))
    # HOME is empty, so that no configuration and no store of credentials is found in it but the netrc.
    made.update({"HOME": str(directory), "NETRC": netrc, "UV_CACHE_DIR": str(cache), "PATH": "/usr/bin:/bin"})
    if bundle := ca_bundle(environ, system=True):
        made["SSL_CERT_FILE"] = str(bundle)
    return made


def _options(question: Question) -> list[str]:
    target = question.target
    words = ["--format", "pylock.toml", "--no-header", "--only-binary", ":all:"]
    words += ["--python", sys.executable, "--no-python-downloads", "--python-version", target.python]
    words += [
        "--python-platform",
        target.uv_platform(),
        "--prerelease",
        "explicit",
        "--keyring-provider",
        "disabled",
    ]
    words += [f"--prerelease-package={canonicalize_name(name)}=allow" for name in question.prereleases]
    if question.index:
        words += ["--default-index", question.index]
    if question.before:
        words += ["--exclude-newer", question.before]
    return words


def _project(question: Question) -> str:
    """A pyproject.toml: the one place where uv binds a package to an index."""
    bound = {canonicalize_name(name): table.name for table in question.indexes for name in table.packages}
    lines = ["[project]", 'name = "airbundle-closure"', 'version = "0"']
    lines += [f'requires-python = ">={question.target.python}"']
    lines += [f"dependencies = {_array((*sorted(question.requirements), *sorted(bound)))}"]
    for table in question.indexes:
        lines += ["[[tool.uv.index]]", f"name = {_quoted(table.name)}", f"url = {_quoted(table.url)}"]
        lines += ["explicit = true"]
    lines += ["[tool.uv.sources]"] if bound else []
    lines += [f"{_quoted(name)} = {{ index = {_quoted(index)} }}" for name, index in sorted(bound.items())]
    return "\n".join(lines) + "\n"


def _pinned(pins: Mapping[str, str]) -> str:
    """A lock file that says no more than versions: uv keeps them where nothing speaks against it."""
    lines = ['lock-version = "1.0"', 'created-by = "airbundle"']
    for name, version in sorted(pins.items()):
        lines += ["[[packages]]", f"name = {_quoted(name)}", f"version = {_quoted(version)}"]
    return "\n".join(lines) + "\n"


def _array(items: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, items))}]"


def _quoted(text: str) -> str:
    """A basic string of TOML: JSON's escapes are among TOML's."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
