"""The seam between resolving and the Python that is resolved for; and that Python on this machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from airbundle.sources.base import SourceContext
from airbundle_onsite.contract.record import decode_json, record
from airbundle_onsite.errors import FetchError, UsageError
from airbundle_onsite.system import Completed, Runner

SCRIPT = "inside.py"
CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE")
SYSTEM_CA = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
_CHUNK = 1 << 20
_EPOCH = "315532800"  # the first day that a zip file can name
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_PASSED = (*_PROXIES, *(name.upper() for name in _PROXIES), "NETRC", "SSL_CERT_DIR")
_STEERING = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PIP_CONSTRAINT",
    "PIP_PRE",
    "PIP_ONLY_BINARY",
    "PIP_NO_BINARY",
    "PIP_PREFER_BINARY",
    "PIP_PLATFORM",
    "PIP_PYTHON_VERSION",
    "PIP_TRUSTED_HOST",
    "PIP_CONFIG_FILE",
    "UV_INDEX",
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_NO_INDEX",
    "UV_CONSTRAINT",
    "UV_OVERRIDE",
    "UV_EXCLUDE_NEWER",
    "UV_PRERELEASE",
    "UV_RESOLUTION",
    "UV_TORCH_BACKEND",
    "UV_CONFIG_FILE",
)


@record
class PythonFacts:
    """A Python as it describes itself; `pip` and `pip_tools` are versions, empty when it has none."""

    python: str
    implementation: str
    machine: str
    glibc: str
    pip: str = ""
    pip_tools: str = ""


class Toolbox(Protocol):
    """A Python that wheels are resolved for, with a directory of its own for tools and files.

    Attributes:
        place: for people, e.g. ``in image sha256:…``.
        directory: the directory's path, as that Python sees it.
    """

    place: str
    directory: str

    def run(self, words: Sequence[str], *, timeout: float = 900) -> Completed:
        """Run ``inside.py`` with these words, `timeout` seconds at most, where nothing ambient steers it."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Put a file into the directory."""
        ...

    def read(self, name: str) -> Iterator[bytes]:
        """A file of the directory, in pieces."""
        ...


def facts_of(toolbox: Toolbox) -> PythonFacts:
    """What that Python is. Raises UsageError when it cannot be run or is no CPython."""
    done = toolbox.run(["facts"], timeout=60)
    if done.code != 0:
        raise UsageError(
            f"the Python {toolbox.place} does not run (exit {done.code})",
            details=done.stderr.strip().splitlines()[-3:],
            remedy="choose an image, or a target.python, with a working Python 3.9 or newer",
        )
    facts = decode_json(PythonFacts, done.stdout.encode(), f"facts of the Python {toolbox.place}")
    if facts.implementation != "CPython" or tuple(map(int, facts.python.split("."))) < (3, 9):
        raise UsageError(
            f"the Python {toolbox.place} is {facts.implementation} {facts.python}, needed is CPython 3.9 or newer",
            remedy="choose another image, or set target.python",
        )
    return facts


def neutral_environment(environ: Callable[[str], str | None]) -> dict[str, str]:
    """What pip may know of the environment: proxies and netrc; no configuration file, no PIP_* variable."""
    passed = {name: value for name in _PASSED if (value := environ(name))}
    return {
        **passed,
        "PIP_CONFIG_FILE": "/dev/null",  # pip's own word for "no configuration file at all"
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "LC_ALL": "C.UTF-8",
        "SOURCE_DATE_EPOCH": environ("SOURCE_DATE_EPOCH") or _EPOCH,  # so that a wheel built twice is the same
    }


def ca_bundle(environ: Callable[[str], str | None], *, system: bool) -> Path | None:
    """The CA file named by the environment; with `system`, else the host's own; None when there is neither."""
    named = next((value for name in CA_VARIABLES if (value := environ(name))), None)
    candidates = [named] if named else list(SYSTEM_CA) if system else []
    return next((Path(path) for path in candidates if Path(path).is_file()), None)


def ignored_settings(environ: Callable[[str], str | None]) -> list[str]:
    """Names of set variables that would steer pip or uv and are left out on purpose."""
    return [name for name in _STEERING if environ(name)]


class HostToolbox:
    """An interpreter of this machine."""

    def __init__(self, python: str, directory: Path, runner: Runner, environment: Mapping[str, str]) -> None:
        self.place = "on this machine"
        self.directory = str(directory)
        self._python, self._runner, self._environment = python, runner, environment
        shutil.copyfile(Path(__file__).with_name(SCRIPT), directory / SCRIPT)

    def run(self, words: Sequence[str], *, timeout: float = 900) -> Completed:
        script = str(Path(self.directory) / SCRIPT)
        return self._runner.run(
            [self._python, "-I", script, *words], timeout=timeout, env=self._environment, cwd=Path(self.directory)
        )

    def write(self, name: str, data: bytes) -> None:
        (Path(self.directory) / name).write_bytes(data)

    def read(self, name: str) -> Iterator[bytes]:
        with (Path(self.directory) / name).open("rb") as handle:
            yield from iter(lambda: handle.read(_CHUNK), b"")


@contextmanager
def host_toolbox(python: str, context: SourceContext) -> Iterator[HostToolbox]:
    """A toolbox for an interpreter of this machine, in a temporary directory that goes with it.

    Args:
        python: ``3.11`` and the like; empty for the one that runs this program.
        context: for the runner and the environment.

    Raises:
        UsageError: no such interpreter is on PATH.
    """
    environment = neutral_environment(context.environ)
    for name in ("PATH", "HOME", "TMPDIR"):
        if value := context.environ(name):
            environment[name] = value
    executable = find_python(python, context.environ("PATH") or os.defpath, context.runner)
    with tempfile.TemporaryDirectory(prefix="airbundle-wheels-") as directory:
        environment["PIP_TOOLS_CACHE_DIR"] = directory
        yield HostToolbox(executable, Path(directory), context.runner, environment)


def find_python(version: str, path: str, runner: Runner) -> str:
    """The interpreter of that version, this one when it fits. Raises UsageError when PATH has none that runs."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version in ("", own):
        return sys.executable
    for directory in path.split(os.pathsep):
        found = shutil.which(f"python{version}", path=directory)
        if found and runner.run([found, "-I", "-c", ""], timeout=30).code == 0:  # version managers leave dead shims
            return found
    raise UsageError(
        f"target.python is {version}, but no working python{version} is on PATH (this program runs on {own})",
        remedy=f'set wheels.resolve = "cross", which needs no Python {version} here; or install it',
    )


def failed(what: str, done: Completed, *, remedy: str) -> FetchError:
    """A FetchError with the end of what the tool said, for an answer that means nothing in particular."""
    said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in said if "ERROR" in line or "rror:" in line]
    return FetchError(f"{what} (exit {done.code})", details=(errors or said)[-4:], remedy=remedy)


def parse(text: str) -> object:
    """JSON of a tool that may print remarks before it."""
    return json.loads(text[text.index("{") :])
