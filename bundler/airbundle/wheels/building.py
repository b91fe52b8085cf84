"""Builds source distributions in the Python that will run them, and locks the wheels that come out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name, parse_wheel_filename

from airbundle.contract.lock import LockedFile, LockedWheel
from airbundle.wheels.pipfailures import build_failure
from airbundle.wheels.toolbox import Toolbox
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError

if TYPE_CHECKING:
    from airbundle.wheels.pipeline import Rim

_CREATED = re.compile(r"Created wheel for \S+: filename=(\S+\.whl)")
_INSTALLED = re.compile(r"Successfully installed (.+)")
_STEP = re.compile(r"Running command (.+)")


@record
class Sdist:
    """A source distribution as an index lists it."""

    name: str
    version: str
    file: str
    url: str
    sha256: str
    requires_python: str


def formats(build: Iterable[str]) -> tuple[str, ...]:
    """pip's options: wheels only, but for the packages that are built."""
    names = ",".join(sorted(canonicalize_name(name) for name in build))
    return ("--only-binary", ":all:", "--no-binary", names) if names else ("--only-binary", ":all:")


def build_wheels(
    sources: Sequence[Sdist],
    toolbox: Toolbox,
    rim: Rim,
    options: Sequence[str],
    earlier: Mapping[str, LockedWheel],
    asked: Mapping[str, tuple[str, ...]],
    index_of: Callable[[str], str],
) -> dict[str, LockedWheel]:
    """Build each, unless the earlier lock has a wheel of the same source and the cache still has that wheel.

    Args:
        sources: what to build.
        toolbox: where.
        rim: see `Rim`.
        options: pip options: formats, index, network.
        earlier: wheels of an earlier lock, by name.
        asked: who asked for each, by name.
        index_of: the index of a package.

    Raises:
        FetchError: a build fails, or wants what the index has not.
    """
    return {
        each.name: _one(each, toolbox, rim, options, earlier, asked.get(each.name, ()), index_of) for each in sources
    }


def _one(
    source: Sdist,
    toolbox: Toolbox,
    rim: Rim,
    options: Sequence[str],
    earlier: Mapping[str, LockedWheel],
    asked: tuple[str, ...],
    index_of: Callable[[str], str],
) -> LockedWheel:
    before = earlier.get(source.name)
    known = before.built_from if before and before.built_from.get("sha256") == source.sha256 else {}
    if before and known.get("place") == toolbox.place and rim.has(before.file.sha256, before.file.size):
        file, requirements = before.file, known["requirements"]
    else:
        rim.talk.say(f"building {source.name} {source.version} {toolbox.place}")
        file, requirements = _build(source, toolbox, rim, options, known.get("requirements", ""))
    return LockedWheel(
        name=source.name,
        version=str(parse_wheel_filename(file.path)[1]),
        file=file,
        index=index_of(source.name),
        requested_by=asked,
        requires_python=source.requires_python,
        built_from={
            "sdist": source.file,
            "sha256": source.sha256,
            "url": source.url,
            "place": toolbox.place,
            "requirements": requirements,
        },
    )


def _build(source: Sdist, toolbox: Toolbox, rim: Rim, options: Sequence[str], pins: str) -> tuple[LockedFile, str]:
    """The wheel, in the cache; and the build requirements that were used, pinned."""
    directory = f"{toolbox.directory}/built-{source.name}"
    wanted = f"{source.name}-source.txt"
    toolbox.write(wanted, f"{source.name}=={source.version} --hash=sha256:{source.sha256}\n".encode())
    words = ["pip", "wheel", "--verbose", "--no-deps", "--no-cache-dir", "--require-hashes", *options]
    if pins:
        toolbox.write(f"{source.name}-build.txt", "".join(f"{pin}\n" for pin in pins.split()).encode())
        words += ["--build-constraint", f"{toolbox.directory}/{source.name}-build.txt"]
    done = toolbox.run([*words, "--wheel-dir", directory, "-r", f"{toolbox.directory}/{wanted}"], timeout=7200)
    created = _CREATED.search(done.stdout)
    if done.code != 0 or not created:
        steps = _STEP.findall(done.stderr + done.stdout)
        raise build_failure(source.name, steps[-1] if steps else "starting", done)
    name = created[1]
    sha256, size = rim.keep(toolbox.read(f"built-{source.name}/{name}"))
    if canonicalize_name(parse_wheel_filename(name)[0]) != source.name:
        raise FetchError(f"{source.file}: its build gives {name}", remedy="name another version")
    origin = {"source": "built", "name": source.name, "place": toolbox.place}
    return LockedFile(name, sha256, size, origin), _requirements(done.stderr + done.stdout)


def _requirements(said: str) -> str:
    """``setuptools==80.9.0 wheel==0.45.1`` from what pip said of the environments it built in."""
    found = {tuple(item.rpartition("-")[::2]) for line in _INSTALLED.findall(said) for item in line.split()}
    return " ".join(sorted(f"{name}=={version}" for name, version in found))
