"""Whether a set of wheels is whole: walks every requirement of every member, under the target's markers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from airbundle_onsite.contract.record import record

ROOT = "spec"


@record
class Member:
    """A wheel by what its METADATA says."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    requires_python: str = ""


@record
class Walk:
    """What was found.

    Attributes:
        asked: for each member reached, who asked for it; ``spec`` for the requirements themselves.
        problems: what is missing or does not fit, one sentence each.
        unreached: members that nobody asked for.
        unreadable: requirements that are not written as the standard wants, and were passed over.
    """

    asked: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...]
    unreached: tuple[str, ...]
    unreadable: tuple[str, ...]


def walk(roots: Sequence[str], members: Iterable[Member], environment: Mapping[str, str]) -> Walk:
    """Follow the requirements from `roots` through the members.

    Args:
        roots: requirement lines.
        members: the closure.
        environment: every marker variable but ``extra``.
    """
    return _Walker({canonicalize_name(member.name): member for member in members}, environment).from_roots(roots)


class _Walker:
    def __init__(self, members: Mapping[str, Member], environment: Mapping[str, str]) -> None:
        self._members, self._environment = members, environment
        self._asked: dict[str, set[str]] = {}
        self._problems: list[str] = []
        self._unreadable: list[str] = []
        self._queue: deque[tuple[str, str]] = deque()  # member and one of its extras, or none
        self._seen: set[tuple[str, str]] = set()

    def from_roots(self, roots: Sequence[str]) -> Walk:
        for line in roots:
            self._take(line, ROOT, "the spec", "")
        while self._queue:
            name, extra = self._queue.popleft()
            member = self._members[name]
            for line in member.requires:
                self._take(line, name, f"{member.name} {member.version}", extra)
        self._check_pythons()
        return Walk(
            {name: tuple(sorted(askers)) for name, askers in sorted(self._asked.items())},
            tuple(dict.fromkeys(self._problems)),
            tuple(sorted(set(self._members) - set(self._asked))),
            tuple(dict.fromkeys(self._unreadable)),
        )

    def _take(self, line: str, asker: str, shown: str, extra: str) -> None:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            self._unreadable.append(f"{shown}: {line}")
            return
        context = cast(dict[str, str | frozenset[str]], {**self._environment, "extra": extra})
        if requirement.marker and not requirement.marker.evaluate(context):
            return
        name = canonicalize_name(requirement.name)
        member = self._members.get(name)
        wanted = f"{name}{requirement.specifier}"
        if member is None:
            self._problems.append(f"{shown} needs {wanted}, which is not among the wheels")
            return
        if not requirement.specifier.contains(member.version, prereleases=True):
            self._problems.append(f"{shown} needs {wanted}, among the wheels is {member.version}")
        self._asked.setdefault(name, set()).add(asker)
        for each in ("", *(canonicalize_name(extra) for extra in requirement.extras)):
            if (name, each) not in self._seen:
                self._seen.add((name, each))
                self._queue.append((name, each))

    def _check_pythons(self) -> None:
        python = self._environment["python_full_version"]
        for name in self._asked:
            member = self._members[name]
            try:
                fits = SpecifierSet(member.requires_python).contains(python, prereleases=True)
            except InvalidSpecifier:
                self._unreadable.append(f"{name} {member.version}: Requires-Python {member.requires_python}")
                continue
            if not fits:
                self._problems.append(
                    f"{name} {member.version} needs Python {member.requires_python}, the target has {python}"
                )
