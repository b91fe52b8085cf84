"""From requirement lines to locked wheels: pip-tools finds the closure, pip names the file of each member."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name, parse_wheel_filename

from airbundle import web
from airbundle.contract.lock import LockedFile, LockedWheel, WheelSettings
from airbundle.contract.spec import WheelsTable
from airbundle.wheels.toolbox import PythonFacts, Toolbox, facts_of, failed, parse
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError, UsageError
from airbundle_onsite.system import Completed, Talk

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
_VIA = re.compile(r"^\s*#\s+(?:via\s+)?(\S.*?)\s*$")
_MISSING = re.compile(r"satisfies the requirement (.+?) \(from|No matching distribution found for (\S+)")
_CONFLICT = re.compile(r"The conflict is caused by:\s*\n((?:[ \t]*\S.*\n)+)")
_PROJECT = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_REPORT = ("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", "--no-deps")
_WHEELS_ONLY = ("--only-binary", ":all:")


@record
class Rim:
    """What the pipeline needs of the world.

    Attributes:
        own: a toolbox of the Python that runs this program, which has pip and pip-tools.
        own_options: pip options for the network, as `own` sees the files in them.
        size_of: bytes of a file, by name and URL.
        fetch: brings a file into the cache; returns its path.
        talk: for remarks.
    """

    own: Toolbox
    own_options: tuple[str, ...]
    size_of: Callable[[str, str], int]
    fetch: Callable[[LockedFile], Path]
    talk: Talk


def lock_wheels(
    table: WheelsTable, toolbox: Toolbox, profile: HardwareProfile, rim: Rim, options: Sequence[str]
) -> tuple[tuple[LockedWheel, ...], WheelSettings]:
    """Resolve a spec's requirements for the Python of `toolbox`.

    Args:
        table: requirements and index.
        toolbox: the Python to resolve for.
        profile: caps the glibc, and must have the toolbox's architecture.
        rim: see `Rim`.
        options: pip options for the network, as ``--cert FILE``, as the toolbox sees the file.

    Returns:
        The wheels, sorted by name, pip's own among them; and what they were resolved for.

    Raises:
        FetchError: a package has no fitting wheel, or the index cannot be reached.
        UsageError: the toolbox's Python does not fit the profile.
    """
    facts = facts_of(toolbox)
    glibc = _fit(facts, profile, toolbox.place)
    toolbox.write("glibc", glibc.encode())
    index = ("--index-url", table.index) if table.index else ()
    pip = _lock_pip(facts, rim, index, table.index)
    if not facts.pip_tools:
        _bring_tools(toolbox, pip, rim, (*options, *index))
        facts = facts_of(toolbox)
    toolbox.write("requirements.in", "".join(f"{line}\n" for line in sorted(table.requirements)).encode())
    rim.talk.say(f"resolving {', '.join(table.requirements)} for Python {facts.python} {toolbox.place}")
    compiled = _compile(toolbox, _target(facts, glibc), (*options, *index))
    toolbox.write("compiled.txt", compiled.encode())
    argv = ["pip", *_REPORT, *_WHEELS_ONLY, "--require-hashes", *options, *index, "-r"]
    done = toolbox.run([*argv, f"{toolbox.directory}/compiled.txt"])
    if done.code != 0:
        raise _explain(done, toolbox, _target(facts, glibc), (*options, *index))
    asked = requested_by(compiled)
    wheels = {wheel.name: wheel for wheel in _wheels(done.stdout, asked, table.index, rim.size_of)}
    wheels.setdefault("pip", pip)
    settings = WheelSettings(
        python=facts.python,
        platform=f"linux_{facts.machine}",
        glibc=glibc,
        resolver=f"pip-tools {facts.pip_tools}, pip {facts.pip}, {toolbox.place}",
    )
    return tuple(wheels[name] for name in sorted(wheels)), settings


def _target(facts: PythonFacts, glibc: str) -> str:
    return f"Python {facts.python} on {facts.machine} with glibc {glibc}"


def requested_by(compiled: str) -> dict[str, tuple[str, ...]]:
    """Who asked for each project, from the annotations of pip-compile; ``spec`` for the requirements themselves."""
    found: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in compiled.splitlines():
        if pin := _PIN.match(line):
            current = found.setdefault(canonicalize_name(pin[1]), set())
        elif (via := _VIA.match(line)) and via[1] != "via":
            asker = via[1]
            current.add("spec" if asker.startswith("-r ") else canonicalize_name(_PROJECT.findall(asker)[0]))
    return {name: tuple(sorted(askers)) for name, askers in found.items()}


def _fit(facts: PythonFacts, profile: HardwareProfile, place: str) -> str:
    """The glibc to resolve for: the lower of the profile's and the toolbox's."""
    if facts.machine != profile.arch:
        raise UsageError(
            f"wheels for {profile.arch} (profile {profile.id}) cannot be resolved {place}, which is {facts.machine}",
            remedy=f"run this on a {profile.arch} machine, or resolve in an image of that architecture",
        )
    if not facts.glibc:
        raise UsageError(
            f"the Python {place} does not use glibc, which wheels for this profile need",
            remedy="choose an image built on Debian, Ubuntu or a Red Hat base",
        )
    known = [text for text in (facts.glibc, profile.min_glibc) if text]
    return min(known, key=lambda text: [int(number) for number in text.split(".")])


def _lock_pip(facts: PythonFacts, rim: Rim, index: Sequence[str], index_url: str) -> LockedWheel:
    """pip's own wheel, the newest for that Python; the site installs by running it, and so does `_bring_tools`."""
    with tempfile.TemporaryDirectory(prefix="airbundle-pip-") as target:  # pip wants one beside --python-version
        argv = ["pip", *_REPORT, *_WHEELS_ONLY, "--python-version", facts.python, "--target", target]
        argv += [*rim.own_options, *index, "pip"]
        done = rim.own.run(argv)
    if done.code != 0:
        raise failed(
            f"pip's own wheel for Python {facts.python} could not be found",
            done,
            remedy="see that the package index can be reached: proxies, REQUESTS_CA_BUNDLE, wheels.index",
        )
    (wheel,) = _wheels(done.stdout, {"pip": ("airbundle",)}, index_url, rim.size_of)
    return wheel


def _bring_tools(toolbox: Toolbox, pip: LockedWheel, rim: Rim, options: Sequence[str]) -> None:
    """Install pip-tools beside `inside.py`, with nothing there but a Python."""
    toolbox.write(pip.file.path, rim.fetch(pip.file).read_bytes())
    target = f"{toolbox.directory}/tools"
    done = toolbox.run(
        ["pip", "install", "--quiet", "--no-cache-dir", "--target", target, *_WHEELS_ONLY, *options, "pip-tools"]
    )
    if done.code != 0:
        raise failed(
            f"pip-tools could not be installed {toolbox.place}",
            done,
            remedy="see that the package index can be reached from there: proxies, REQUESTS_CA_BUNDLE, wheels.index",
        )


def _compile(toolbox: Toolbox, target: str, options: Sequence[str]) -> str:
    """The closure, pinned and hashed, as pip-compile writes it."""
    directory = toolbox.directory
    argv = [
        "piptools",
        "compile",
        *("--no-config", "--resolver", "backtracking", "--generate-hashes", "--allow-unsafe"),
        *("--no-header", "--annotate", "--annotation-style", "split", "--strip-extras"),
        *("--no-emit-index-url", "--no-emit-options", "--cache-dir", f"{directory}/pip-tools-cache"),
        *("--pip-args", shlex.join((*_WHEELS_ONLY, *options))),
        *("--output-file", "-", f"{directory}/requirements.in"),
    ]
    done = toolbox.run(argv)
    if done.code != 0:
        raise _explain(done, toolbox, target, options)
    return done.stdout


def _explain(done: Completed, toolbox: Toolbox, target: str, options: Sequence[str]) -> FetchError:
    """Why nothing could be resolved: no wheel, no such project, a conflict, or no network."""
    if "conflicting dependencies" in done.stderr:
        return _conflict(toolbox, target, options)
    missing = _MISSING.search(done.stderr)
    if missing is None:
        return failed(
            f"the requirements cannot be resolved for {target}",
            done,
            remedy="see that the index can be reached: proxies, REQUESTS_CA_BUNDLE, wheels.index",
        )
    requirement = missing[1] or missing[2]
    name = _PROJECT.findall(requirement)[0]
    listed = toolbox.run(["pip", "index", "versions", *options, name], timeout=120)
    if listed.code == 0:
        return FetchError(
            f"{requirement}: the index has it, but no wheel for {target}; a source distribution is not taken, "
            "since the site cannot build it (--only-binary)",
            remedy="name a version that has a wheel, or build one (`pip wheel`) and serve it from an index of your "
            "own, named in wheels.index",
        )
    return FetchError(
        f"{requirement}: the index has nothing for {target}",
        details=[line.strip() for line in listed.stderr.splitlines() if "ERROR" in line][-2:],
        remedy="check the name; if it is right, see that the index can be reached: proxies, REQUESTS_CA_BUNDLE, "
        "wheels.index",
    )


def _conflict(toolbox: Toolbox, target: str, options: Sequence[str]) -> FetchError:
    """Which requirements exclude each other: pip-compile keeps that to itself, pip says it."""
    words = ["pip", "install", "--dry-run", "--ignore-installed", *_WHEELS_ONLY, *options]
    done = toolbox.run([*words, "-r", f"{toolbox.directory}/requirements.in"])
    said = _CONFLICT.search(done.stdout + done.stderr)
    return FetchError(
        f"the requirements exclude each other for {target}",
        details=[line.strip() for line in said[1].splitlines()][:12] if said else (),
        remedy="loosen one of these in wheels.requirements",
    )


def _wheels(
    report: str, asked: Mapping[str, tuple[str, ...]], index: str, size_of: Callable[[str, str], int]
) -> list[LockedWheel]:
    """The wheels of a pip installation report."""
    document: Any = parse(report)
    items = document["install"]
    urls = [web.without_user(item["download_info"]["url"]) for item in items]
    names = [unquote(PurePosixPath(urlsplit(url).path).name) for url in urls]
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(size_of, names, urls))
    return [
        _wheel(item, name, url, size, asked, index)
        for item, name, url, size in zip(items, names, urls, sizes, strict=True)
    ]


def _wheel(
    item: Mapping[str, Any], filename: str, url: str, size: int, asked: Mapping[str, tuple[str, ...]], index: str
) -> LockedWheel:
    name, version, _, _ = parse_wheel_filename(filename)
    sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
    return LockedWheel(
        name=name,
        version=str(version),
        file=LockedFile(filename, sha256, size, {"source": "pypi", "url": url}),
        index=index or "pypi",
        requested_by=asked.get(name, ()),
        requires_python=item["metadata"].get("requires_python", "") or "",
    )
