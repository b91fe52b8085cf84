"""From requirement lines to locked wheels in the Python that will run them: pip-tools finds the closure, pip names the
file of each member."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

from airbundle import web
from airbundle.contract.lock import LockedFile, LockedWheel, WheelSettings
from airbundle.contract.spec import IndexTable, WheelsTable
from airbundle.wheels.building import Sdist, build_wheels, formats
from airbundle.wheels.closure import Member, walk
from airbundle.wheels.pipfailures import explain
from airbundle.wheels.toolbox import PythonFacts, Toolbox, facts_of, failed, parse
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError, UsageError
from airbundle_onsite.system import Completed, Talk

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
        keep: puts bytes into the cache; returns their SHA-256 and size.
        has: whether the cache has a file, by SHA-256 and size.
        talk: for remarks.
    """

    own: Toolbox
    own_options: tuple[str, ...]
    size_of: Callable[[str, str], int]
    fetch: Callable[[LockedFile], Path]
    keep: Callable[[Any], tuple[str, int]]
    has: Callable[[str, int], bool]
    talk: Talk


def lock_wheels(
    table: WheelsTable,
    toolbox: Toolbox,
    profile: HardwareProfile,
    rim: Rim,
    options: Sequence[str],
    earlier: Mapping[str, LockedWheel],
) -> tuple[tuple[LockedWheel, ...], WheelSettings]:
    """Resolve a spec's requirements for the Python of `toolbox`.

    Args:
        table: ``[wheels]`` of the spec.
        toolbox: the Python to resolve for.
        profile: caps the glibc, and must have the toolbox's architecture.
        rim: see `Rim`.
        options: pip options for the network, as ``--cert FILE``, as the toolbox sees the file.
        earlier: wheels of an earlier lock, whose versions are kept where they still do.

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
    pip = _lock_pip(facts, rim, index, table.index, earlier)
    if not facts.pip_tools:
        _bring_tools(toolbox, pip, rim, (*options, *index))
        facts = facts_of(toolbox)
    target = f"Python {facts.python} on {facts.machine} with glibc {glibc}"
    all_options = (*formats(table.build), *options, *index, *_wishes(table))
    rim.talk.say(f"resolving {', '.join(table.requirements)} for Python {facts.python} {toolbox.place}")
    bound = _bound(table, toolbox, target, options, earlier)
    _write_question(table, toolbox, earlier, bound)
    try:
        _compile(toolbox, target, all_options)
    except FetchError:
        fresh = _bound(table, toolbox, target, options, {})
        if fresh == bound:
            raise
        _write_question(table, toolbox, earlier, fresh)  # versions are kept where they still do
        _compile(toolbox, target, all_options)
    done = toolbox.run(["pip", *_REPORT, "--require-hashes", *all_options, "-r", f"{toolbox.directory}/compiled.txt"])
    if done.code != 0:
        raise explain(done, toolbox, target, all_options)
    report: Any = parse(done.stdout)
    wheels = _closure(report, table, toolbox, rim, all_options, earlier)
    wheels.setdefault("pip", pip)
    settings = WheelSettings(
        python=facts.python,
        platform=f"linux_{facts.machine}",
        glibc=glibc,
        resolver=f"pip-tools {facts.pip_tools}, pip {facts.pip}, {toolbox.place}",
        indexes={each.name: each.url for each in table.indexes},
    )
    return tuple(wheels[name] for name in sorted(wheels)), settings


def moment(before: str) -> str:
    """`WheelsTable.before` with its time, in UTC: tools take a bare date in the time zone of the machine."""
    return before if "T" in before else f"{before}T00:00:00Z"


def _wishes(table: WheelsTable) -> tuple[str, ...]:
    words = [f"--all-releases={canonicalize_name(name)}" for name in table.prereleases]
    return (*words, "--uploaded-prior-to", moment(table.before)) if table.before else tuple(words)


def _write_question(
    table: WheelsTable, toolbox: Toolbox, earlier: Mapping[str, LockedWheel], bound: Sequence[str]
) -> None:
    """The files of pip-compile: requirements, constraints, and as an earlier answer the versions to keep."""
    kept = [f"{name}=={earlier[name].version}" for name in sorted(earlier)]
    for file, lines in (
        ("requirements.in", sorted(table.requirements)),
        ("constraints.txt", [*sorted(table.constraints), *bound]),
        ("compiled.txt", kept),
    ):
        toolbox.write(file, "".join(f"{line}\n" for line in lines).encode())


def _bound(
    table: WheelsTable, toolbox: Toolbox, target: str, options: Sequence[str], earlier: Mapping[str, LockedWheel]
) -> list[str]:
    """For each package that is bound to an index, the one wheel of that index, as a constraint that names its URL.

    It is that of the earlier lock, where the index still has it and the spec allows it.
    """
    found: list[str] = []
    for index in table.indexes:
        words = ["pip", *_REPORT, *_WHEELS_ONLY, *options, *_wishes(table), "--index-url", index.url]
        for name in sorted(index.packages):
            limits, before = _limits(name, table), earlier.get(canonicalize_name(name))
            kept = before and before.index == index.url and limits.contains(before.version, prereleases=True)
            pinned = [f"{name}=={before.version}"] if before and kept else []
            done = _first_that_works(toolbox, words, pinned, f"{name}{limits}")
            if done.code != 0:
                raise explain(done, toolbox, f"{target}, from index {index.name}", (*options, "--index-url", index.url))
            report: Any = parse(done.stdout)
            (item,) = report["install"]
            _refuse_yanked(name, item)  # here: of a URL, pip would not say it any more
            url, sha256 = item["download_info"]["url"], item["download_info"]["archive_info"]["hashes"]["sha256"]
            found.append(f"{name} @ {quote(web.without_user(url), safe=':/%?=&')}#sha256={sha256}")
    return found


def _limits(name: str, table: WheelsTable) -> SpecifierSet:
    """Every limit that the spec sets to one project."""
    lines = [Requirement(line) for line in (*table.requirements, *table.constraints)]
    own = [str(each.specifier) for each in lines if canonicalize_name(each.name) == canonicalize_name(name)]
    return SpecifierSet(",".join(filter(None, own)))


def _fit(facts: PythonFacts, profile: HardwareProfile, place: str) -> str:
    """The glibc to resolve for: the lower of the profile's and the toolbox's."""
    if facts.machine != profile.arch:
        raise UsageError(
            f"wheels for {profile.arch} (profile {profile.id}) cannot be resolved {place}, which is {facts.machine}",
            remedy='set wheels.resolve = "cross", or resolve in an image of that architecture',
        )
    if not facts.glibc:
        raise UsageError(
            f"the Python {place} does not use glibc, which wheels for this profile need",
            remedy="choose an image built on Debian, Ubuntu or a Red Hat base",
        )
    known = [text for text in (facts.glibc, profile.min_glibc) if text]
    return min(known, key=lambda text: [int(number) for number in text.split(".")])


def _lock_pip(
    facts: PythonFacts, rim: Rim, index: Sequence[str], index_url: str, earlier: Mapping[str, LockedWheel]
) -> LockedWheel:
    """pip's own wheel, that of the earlier lock or the newest for that Python.

    The site installs by running it, and so does `_bring_tools`.
    """
    before = earlier.get("pip")
    with tempfile.TemporaryDirectory(prefix="airbundle-pip-") as target:  # pip wants one beside --python-version
        argv = ["pip", *_REPORT, *_WHEELS_ONLY, "--python-version", facts.python, "--target", target]
        argv += [*rim.own_options, *index]
        done = _first_that_works(rim.own, argv, [f"pip=={before.version}"] if before else [], "pip")
    if done.code != 0:
        raise failed(
            f"pip's own wheel for Python {facts.python} could not be found",
            done,
            remedy="see that the package index can be reached: proxies, REQUESTS_CA_BUNDLE, wheels.index",
        )
    report: Any = parse(done.stdout)
    (item,) = report["install"]
    _refuse_yanked("pip", item)
    return _wheel(item, ("airbundle",), index_url or "pypi", rim.size_of)


def _first_that_works(toolbox: Toolbox, argv: Sequence[str], kept: Sequence[str], wanted: str) -> Completed:
    """pip's answer for what is to be kept, else for what is wanted."""
    for line in kept:
        done = toolbox.run([*argv, line])
        if done.code == 0:
            return done
    return toolbox.run([*argv, wanted])


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


def _compile(toolbox: Toolbox, target: str, options: Sequence[str]) -> None:
    """The closure, pinned and hashed, as pip-compile writes it, in ``compiled.txt``."""
    directory = toolbox.directory
    argv = [
        "piptools",
        "compile",
        *("--no-config", "--resolver", "backtracking", "--generate-hashes", "--allow-unsafe", "--quiet"),
        *("--no-header", "--no-annotate", "--strip-extras", "--no-emit-index-url", "--no-emit-options"),
        *("--cache-dir", f"{directory}/pip-tools-cache", "--pip-args", shlex.join(options)),
        *("--constraint", f"{directory}/constraints.txt"),
        *("--output-file", f"{directory}/compiled.txt", f"{directory}/requirements.in"),
    ]
    done = toolbox.run(argv)
    if done.code != 0:
        raise explain(done, toolbox, target, options)


def _closure(
    report: Mapping[str, Any],
    table: WheelsTable,
    toolbox: Toolbox,
    rim: Rim,
    options: Sequence[str],
    earlier: Mapping[str, LockedWheel],
) -> dict[str, LockedWheel]:
    """The wheels of a pip installation report, each with who asked for it; source distributions are built."""
    items = {canonicalize_name(item["metadata"]["name"]): item for item in report["install"]}
    for name, item in items.items():
        _refuse_yanked(name, item)
    members = [_member(name, item["metadata"]) for name, item in items.items()]
    found = walk(table.requirements, members, report["environment"])
    if found.problems:
        raise FetchError(
            f"the closure is not whole: {found.problems[0]}",
            details=found.problems[1:8],
            remedy="add what is missing to wheels.requirements",
        )
    asked, index_of = found.asked, _index_of(table.indexes, table.index)
    sources = {name: _sdist(name, item) for name, item in items.items() if not _file_name(item).endswith(".whl")}
    wheels = build_wheels(list(sources.values()), toolbox, rim, options, earlier, asked, index_of)
    ready = [name for name in items if name not in sources]
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(
            lambda name: _wheel(items[name], asked.get(name, ()), index_of(name), rim.size_of),
            ready,
        )
    return {**wheels, **dict(zip(ready, made, strict=True))}


def _refuse_yanked(name: str, item: Mapping[str, Any]) -> None:
    if item.get("is_yanked"):
        raise FetchError(
            f"{name}=={item['metadata']['version']}: its makers have withdrawn (yanked) it",
            remedy="ask for another version; when it comes from an earlier lock, run "
            f"`airbundle lock SPEC --upgrade {name}`",
        )


def _index_of(indexes: Sequence[IndexTable], default: str) -> Callable[[str], str]:
    bound: dict[str, str] = {canonicalize_name(name): each.url for each in indexes for name in each.packages}
    return lambda name: bound.get(name) or default or "pypi"


def _member(name: str, metadata: Mapping[str, Any]) -> Member:
    python = metadata.get("requires_python") or ""
    return Member(name, metadata["version"], tuple(metadata.get("requires_dist") or ()), python)


def _sdist(name: str, item: Mapping[str, Any]) -> Sdist:
    info, metadata = item["download_info"], item["metadata"]
    sha256 = info["archive_info"]["hashes"]["sha256"]
    python = metadata.get("requires_python") or ""
    return Sdist(name, metadata["version"], _file_name(item), web.without_user(info["url"]), sha256, python)


def _file_name(item: Mapping[str, Any]) -> str:
    return unquote(PurePosixPath(urlsplit(item["download_info"]["url"]).path).name)


def _wheel(
    item: Mapping[str, Any], asked: tuple[str, ...], index: str, size_of: Callable[[str, str], int]
) -> LockedWheel:
    url, filename = web.without_user(item["download_info"]["url"]), _file_name(item)
    name, version, _, _ = parse_wheel_filename(filename)
    sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
    return LockedWheel(
        name=name,
        version=str(version),
        file=LockedFile(filename, sha256, size_of(filename, url), {"source": "pypi", "url": url}),
        index=index,
        requested_by=asked,
        requires_python=item["metadata"].get("requires_python") or "",
    )
