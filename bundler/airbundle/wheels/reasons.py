"""Why there is no closure: uv's explanation, made into the package at fault, what it has, and the cure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from airbundle.wheels.pages import IndexFile
from airbundle.wheels.target import Target, needed_glibc
from airbundle.wheels.uv import NoAnswer
from airbundle_onsite.errors import FetchError

ListFiles = Callable[[str], "list[IndexFile] | None"]

_MARKER = re.compile(r"\{[^{}]*\}")
_NAME = r"([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?"
_WHEELS_WANTED = re.compile(r"Wheels are required for `([^`]+)`")
_NO_WHEELS = re.compile(_NAME + r"([<>=!~][^ ]*)? (?:has|have) no (?:usable )?wheels")
_PYTHON = re.compile(r"\(e\.g\., (\S+) only supports ([^)]+)\)")
_YANKED = re.compile(r"([A-Za-z0-9][\w.-]*==[^ ]+) was yanked(?: \(reason: (.*?)\))?(?= and| |,|$)")
_YANKED_REMARK = re.compile(r'^warning: `([^`]+)` is yanked(?: \(reason: "(.*)"\))?', re.MULTILINE)
_UNKNOWN = re.compile(_NAME + r" was not found in the (?:package )?(?:registry|cache)")
_PRERELEASE = re.compile(r"`([^`]+)` was requested with a pre-release marker \(e\.g\., ([^)]+)\)")
_NETWORK = re.compile(r"Request failed|Failed to fetch|error sending request|HTTP status|invalid peer certificate")
_NETWORK_CURE = "see that the index can be reached: proxies, REQUESTS_CA_BUNDLE, netrc, wheels.index"


def explain(problem: NoAnswer, target: Target, wanted: str, list_files: ListFiles) -> FetchError:
    """The error to raise.

    Args:
        problem: what uv said.
        target: what was resolved for.
        wanted: the requirements, for people.
        list_files: the files of a project, as its index lists them.
    """
    said = _MARKER.sub("", " ".join(problem.said.split()))
    if "No solution found" not in problem.said:
        return _not_answered(problem, wanted, target)
    for rule in (_unknown, _yanked, _python):
        if error := rule(said, target):
            return error
    if names := sorted({name for name in _WHEELS_WANTED.findall(said)} | {m[0] for m in _NO_WHEELS.findall(said)}):
        return without_wheels(names, {name: spec for name, spec in _NO_WHEELS.findall(said)}, target, list_files)
    if found := _PRERELEASE.search(said):
        return FetchError(
            f"{found[2]}: only a pre-release answers it, and none was asked for",
            remedy=f'allow it: wheels.prereleases = ["{found[1]}"]; or choose another version of what needs it',
        )
    lines = [_MARKER.sub("", line).strip() for line in problem.said.splitlines() if line.strip()]
    return FetchError(
        f"the requirements exclude each other for {target}",
        details=[line.removeprefix("cause: ") for line in lines if not line.startswith(("warning:", "error:"))][:12],
        remedy="loosen one of these in wheels.requirements or wheels.constraints",
    )


def wanted_prerelease(problem: NoAnswer) -> str | None:
    """The package of which only a pre-release would have answered, or None."""
    found = _PRERELEASE.search(_MARKER.sub("", " ".join(problem.said.split())))
    return canonicalize_name(found[1]) if found else None


def only_prereleases(files: Sequence[IndexFile]) -> bool:
    """Whether a project has pre-releases and nothing else: then PEP 440 takes them without being asked."""
    versions = [version_of(file.name) for file in files if not file.yanked]
    return all(version.is_prerelease for version in versions if version is not None)


def refuse_yanked(remarks: str) -> None:
    """Raise FetchError when uv took a yanked release, as it does when just that one was asked for."""
    found = _YANKED_REMARK.search(remarks)
    if found:
        raise _yanked_error(found[1], found[2])


def _not_answered(problem: NoAnswer, wanted: str, target: Target) -> FetchError:
    lines = [line.strip() for line in problem.said.splitlines() if line.strip() and not line.startswith("warning")]
    network = _NETWORK.search(problem.said)
    return FetchError(
        f"{wanted}: cannot be resolved for {target}" + (": the index does not answer" if network else ""),
        details=lines[:6],
        remedy=_NETWORK_CURE if network else "correct what uv names",
    )


def _unknown(said: str, target: Target) -> FetchError | None:
    found = _UNKNOWN.search(said)
    if found is None:
        return None
    return FetchError(
        f"{found[1]}: the index has no such project", remedy=f"check the name; if it is right, {_NETWORK_CURE}"
    )


def _yanked(said: str, target: Target) -> FetchError | None:
    found = _YANKED.search(said)
    return _yanked_error(found[1], found[2]) if found else None


def _yanked_error(release: str, reason: str | None) -> FetchError:
    name = release.partition("==")[0]
    return FetchError(
        f"{release}: its makers have withdrawn (yanked) it: {reason or 'no reason given'}",
        remedy="ask for another version; when it comes from an earlier lock, run "
        f"`airbundle lock SPEC --upgrade {name}`",
    )


def _python(said: str, target: Target) -> FetchError | None:
    found = _PYTHON.search(said)
    if found is None:
        return None
    return FetchError(
        f"{found[1]}: needs Python {found[2]}; the target has {target.python}",
        remedy="set target.python to one of these, or name a version that still supports it",
    )


# --- a package that has no wheel for the target ------------------------------------------------------------------


def without_wheels(names: Sequence[str], ranges: dict[str, str], target: Target, list_files: ListFiles) -> FetchError:
    """Names each package without a fitting wheel, and what it has instead.

    Args:
        names: the packages.
        ranges: the versions that were wanted, as specifiers; all when there are none.
        target: what was resolved for.
        list_files: see `explain`.
    """
    said = [_lack(name, ranges.get(name, ""), target, list_files(name) or []) for name in names]
    return FetchError(
        said[0][0],
        details=[sentence for sentence, _ in said[1:]],
        remedy=said[0][1],
    )


def _lack(name: str, wanted: str, target: Target, files: Sequence[IndexFile]) -> tuple[str, str]:
    """One sentence on what is there, and the cure."""
    versions = _by_version(files)
    chosen = [version for version in sorted(versions, reverse=True) if _within(version, wanted)]
    if not chosen:
        return f"{name}{wanted}: the index has no wheel of it for {target}", "name another version"
    newest = next((version for version in chosen if not version.is_prerelease), chosen[0])
    wheels = [file.name for file in versions[newest] if file.name.endswith(".whl")]
    sources = [file.name for file in versions[newest] if not file.name.endswith(".whl")]
    release = f"{name} {newest}"
    if not wheels:
        return (
            f"{release}: the index has only its source distribution ({sources[0]}), which a site cannot build",
            f'build it in the image that is shipped: wheels.resolve = "image", wheels.build = ["{name}"]; or name a '
            "version that has wheels",
        )
    levels = [glibc for file in wheels if (glibc := needed_glibc(file, target))]
    rest = "; its source distribution is not taken, since a site cannot build it" if sources else ""
    if levels:
        lowest = min(levels, key=lambda text: int(text.split(".")[1]))
        return (
            f"{release}: its wheels need glibc {lowest}, the target has {target.glibc}{rest}",
            f"choose a profile with glibc {lowest} or newer, or ship an image with it, or name an older version",
        )
    return (
        f"{release}: its wheels ({_offer(wheels, target.arch)}) do not fit {target}{rest}",
        "set target.python to one that it supports, or name another version",
    )


def _offer(wheels: Sequence[str], arch: str) -> str:
    """What wheels there are, in few words: for which Pythons, when some are for the architecture; else for what."""
    platforms = {file: file.removesuffix(".whl").rpartition("-")[2] for file in wheels}
    own = [file for file, tags in platforms.items() if f"_{arch}" in tags or tags == "any"]
    if own:
        return f"{', '.join(sorted({file.split('-')[-3] for file in own})[:6])} for {arch}"
    return ", ".join(sorted({tags.split(".")[-1] for tags in platforms.values()})[:4])


def _by_version(files: Sequence[IndexFile]) -> dict[Version, list[IndexFile]]:
    found: dict[Version, list[IndexFile]] = {}
    for file in files:
        if (version := version_of(file.name)) is not None and not file.yanked:
            found.setdefault(version, []).append(file)
    return found


def version_of(file: str) -> Version | None:
    """Of a wheel or source distribution, by its name; None for anything else."""
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def _within(version: Version, wanted: str) -> bool:
    try:
        return SpecifierSet(wanted).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True
