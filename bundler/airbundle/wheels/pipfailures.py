"""Why pip or pip-tools found no closure, as an error that names the package at fault and the cure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airbundle.wheels.toolbox import Toolbox, failed
from airbundle_onsite.errors import FetchError
from airbundle_onsite.system import Completed

_MISSING = re.compile(r"satisfies the requirement (.+?) \(from|No matching distribution found for (\S+)")
_CONFLICT = re.compile(r"The conflict is caused by:\s*\n((?:[ \t]*\S.*\n)+)")
_BUILD = re.compile(r"Failed to build '([^']+)' when (.+?)(?: for \S+)?$", re.MULTILINE)
_PROJECT = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_REACH = "see that the index can be reached: proxies, REQUESTS_CA_BUNDLE, wheels.index"


def explain(done: Completed, toolbox: Toolbox, target: str, options: Sequence[str]) -> FetchError:
    """The error to raise: no wheel, no such project, a conflict, a build that failed, or no network."""
    if built := _BUILD.search(done.stderr):
        return build_failure(built[1], built[2], done)
    if "conflicting dependencies" in done.stderr:
        return _conflict(toolbox, target, options)
    missing = _MISSING.search(done.stderr)
    if missing is None:
        return failed(f"the requirements cannot be resolved for {target}", done, remedy=_REACH)
    requirement = missing[1] or missing[2]
    name = _PROJECT.findall(requirement)[0]
    network = [word for word in options if word not in ("--only-binary", ":all:")]
    listed = toolbox.run(["pip", "index", "versions", "--only-binary", ":none:", *network, name], timeout=120)
    if listed.code == 0:
        return FetchError(
            f"{requirement}: the index has it, but no wheel for {target}; a source distribution is not taken, "
            "since the site cannot build it (--only-binary)",
            remedy=f'build it in the image that is shipped (wheels.resolve = "image", wheels.build = ["{name}"]), or '
            "name a version that has a wheel",
        )
    return FetchError(
        f"{requirement}: the index has nothing for {target}",
        details=[line.strip() for line in listed.stderr.splitlines() if "ERROR" in line][-2:],
        remedy=f"check the name; if it is right, {_REACH}",
    )


def build_failure(name: str, step: str, done: Completed) -> FetchError:
    """Why a source distribution could not be built.

    Args:
        name: of the package.
        step: what was being done, as ``installing build dependencies``.
        done: what pip said.
    """
    missing = _MISSING.search(done.stderr)
    if "build dependencies" in step and missing:
        return FetchError(
            f"{name}: cannot be built, for its build requirement {missing[1] or missing[2]} has no wheel here",
            remedy="name a version that can be built, or serve that build requirement from wheels.index",
        )
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "rror" in line]
    return FetchError(
        f"{name}: cannot be built from its source distribution: {step}",
        details=lines[:6],
        remedy="put what its build wants (a compiler, headers) into the image, or name a version with wheels",
    )


def _conflict(toolbox: Toolbox, target: str, options: Sequence[str]) -> FetchError:
    """Which requirements exclude each other: pip-compile keeps that to itself, pip says it."""
    words = ["pip", "install", "--dry-run", "--ignore-installed", *options]
    words += ["-c", f"{toolbox.directory}/constraints.txt", "-r", f"{toolbox.directory}/requirements.in"]
    done = toolbox.run(words)
    said = _CONFLICT.search(done.stdout + done.stderr)
    return FetchError(
        f"the requirements exclude each other for {target}",
        details=[line.strip() for line in said[1].splitlines()][:12] if said else (),
        remedy="loosen one of these in wheels.requirements or wheels.constraints",
    )
