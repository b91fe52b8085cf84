"""Resolves for a Python and a system that are not here: uv finds the closure, each METADATA is held to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from airbundle import web
from airbundle.contract.lock import LockedFile, LockedWheel, WheelSettings
from airbundle.contract.spec import WheelsTable
from airbundle.download import Downloader
from airbundle.prove.wheel import parse_metadata
from airbundle.wheels.closure import Member, Walk, walk
from airbundle.wheels.pages import IndexFile, project_files
from airbundle.wheels.pipeline import moment
from airbundle.wheels.reading import MetadataReader
from airbundle.wheels.reasons import (
    explain,
    only_prereleases,
    refuse_yanked,
    version_of,
    wanted_prerelease,
    without_wheels,
)
from airbundle.wheels.target import Target
from airbundle.wheels.uv import NoAnswer, Question, Uv
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError
from airbundle_onsite.system import Talk

_ROUNDS = 60  # of leaving out what does not fit; each settles at least one project
_THREADS = 8

Fetch = Callable[[LockedFile], Path]


@record
class Chosen:
    """A package of the closure and its wheel."""

    name: str
    version: str
    file: LockedFile


class CrossResolver:
    """Resolves one `[wheels]` table for one target."""

    def __init__(self, table: WheelsTable, target: Target, uv: Uv, downloader: Downloader, fetch: Fetch, talk: Talk):
        self._table, self._target, self._uv = table, target, uv
        self._downloader, self._talk = downloader, talk
        self._metadata = MetadataReader(downloader, fetch)
        self._bound: dict[str, str] = {
            canonicalize_name(name): each.url for each in table.indexes for name in each.packages
        }
        self._default = table.index

    def lock(self, pins: Mapping[str, str]) -> tuple[tuple[LockedWheel, ...], WheelSettings]:
        """The wheels, sorted by name, pip's own among them; and what they were resolved for.

        Args:
            pins: versions to keep where they still do, by name.

        Raises:
            FetchError: there is no closure (`summary` names the package at fault), a release in it was withdrawn, or
                the index cannot be reached.
        """
        self._talk.say(f"resolving {', '.join(self._table.requirements)} for {self._target}")
        question = Question(
            requirements=self._table.requirements,
            target=self._target,
            index=self._table.index,
            indexes=self._table.indexes,
            constraints=self._table.constraints,
            prereleases=self._table.prereleases,
            before=moment(self._table.before) if self._table.before else "",
            pins=pins,
        )
        chosen = self._solve(question)
        with ThreadPoolExecutor(_THREADS) as pool:
            members = list(pool.map(self._member, chosen))
        walks = [walk(self._table.requirements, members, each) for each in self._target.environments()]
        self._seal(walks)
        asked = {
            name: walks[0].asked.get(name, ()) or walks[1].asked.get(name, ()) for each in walks for name in each.asked
        }
        wheels = {
            each.name: self._locked(each, member, asked[each.name])
            for each, member in zip(chosen, members, strict=True)
            if each.name in asked  # a package that is bound to an index, and nobody wants, was asked for to bind it
        }
        if "pip" not in wheels:
            wheels["pip"] = self._pip(question)
        settings = WheelSettings(
            python=self._target.python,
            platform=f"linux_{self._target.arch}",
            glibc=self._target.glibc,
            resolver=f"{self._uv.version}, for {self._target}",
            indexes={each.name: each.url for each in self._table.indexes},
        )
        return tuple(wheels[name] for name in sorted(wheels)), settings

    def _solve(self, question: Question) -> list[Chosen]:
        """Ask uv; again without what does not fit, where uv's platform has more tags than the target; and again
        with pre-releases of a project that has nothing else."""
        misfits: dict[str, str] = {}
        for _ in range(_ROUNDS):
            limits = tuple(f"{name}{spec}" for name, spec in misfits.items())
            try:
                answer = self._uv.solve(dataclasses.replace(question, constraints=(*question.constraints, *limits)))
            except NoAnswer as problem:
                question = self._with_prerelease(problem, question, misfits)
                continue
            refuse_yanked(answer.remarks)
            chosen = [(package, self._target.best(list(_wheels(package)))) for package in answer.packages]
            unfit = [str(package["name"]) for package, name in chosen if name is None]
            if not unfit:
                return [self._choose(package, str(name)) for package, name in chosen]
            misfits.update((name, self._misfits(name)) for name in unfit)
        raise FetchError(
            f"no closure for {self._target} after leaving out {', '.join(misfits)}",
            remedy="choose a profile with a newer glibc, or older versions in wheels.requirements",
        )

    def _with_prerelease(self, problem: NoAnswer, question: Question, misfits: Mapping[str, str]) -> Question:
        """The question to ask next. Raises FetchError when the answer is final."""
        name = wanted_prerelease(problem)
        if name and name not in question.prereleases and only_prereleases(self._files(name) or []):
            return dataclasses.replace(question, prereleases=(*question.prereleases, name))
        if misfits and "No solution found" in problem.said:
            raise without_wheels(list(misfits), {}, self._target, self._files) from problem
        raise explain(problem, self._target, ", ".join(question.requirements), self._files) from problem

    def _misfits(self, name: str) -> str:
        """A specifier that leaves out every version of a project without a wheel for the target."""
        names: dict[str, list[str]] = {}
        for file in self._files(name) or []:
            if file.name.endswith(".whl") and (version := version_of(file.name)) is not None:
                names.setdefault(str(version), []).append(file.name)
        return ",".join(f"!={version}" for version, each in sorted(names.items()) if self._target.best(each) is None)

    def _files(self, name: str) -> list[IndexFile] | None:
        index = self._bound.get(canonicalize_name(name)) or self._default
        if not index:
            index = self._default = self._uv.default_index()
        return project_files(self._downloader, index, name)

    def _choose(self, package: Mapping[str, Any], name: str) -> Chosen:
        facts = _wheels(package)[name]
        sha256 = facts.get("hashes", {}).get("sha256")
        if not sha256:
            raise FetchError(f"{name}: the index gives no SHA-256 of it", remedy="use an index that gives hashes")
        url = web.without_user(facts["url"])
        size = facts.get("size") or self._downloader.size(name, url)
        file = LockedFile(name, sha256, size, {"source": "pypi", "url": url})
        return Chosen(canonicalize_name(package["name"]), str(package["version"]), file)

    def _member(self, chosen: Chosen) -> Member:
        """What the wheel's METADATA says."""
        headers = parse_metadata(self._metadata.read(chosen.file))
        requires = tuple(str(line) for line in headers.get_all("Requires-Dist", ()))
        return Member(chosen.name, chosen.version, requires, str(headers.get("Requires-Python") or ""))

    def _seal(self, walks: Sequence[Walk]) -> None:
        problems = list(dict.fromkeys(problem for each in walks for problem in each.problems))
        for line in walks[0].unreadable:
            self._talk.say(f"passed over, as it is not written as the standard wants: {line}")
        if problems:
            raise FetchError(
                f"the closure for {self._target} is not whole: {problems[0]}",
                details=problems[1:8],
                remedy="add what is missing to wheels.requirements",
            )

    def _locked(self, chosen: Chosen, member: Member, asked: tuple[str, ...]) -> LockedWheel:
        return LockedWheel(
            name=chosen.name,
            version=chosen.version,
            file=chosen.file,
            index=self._bound.get(chosen.name) or self._table.index or "pypi",
            requested_by=asked,
            requires_python=member.requires_python,
        )

    def _pip(self, question: Question) -> LockedWheel:
        """pip's own wheel; the site installs by running it."""
        alone = dataclasses.replace(question, requirements=("pip",), constraints=(), indexes=())
        (chosen,) = self._solve(alone)
        return self._locked(chosen, self._member(chosen), ("airbundle",))


def _wheels(package: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The wheels of a package in a lock file, by file name."""
    wheels = package.get("wheels", ())
    return {each.get("name") or unquote(PurePosixPath(urlsplit(each["url"]).path).name): each for each in wheels}
