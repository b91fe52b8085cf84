"""Judges what the dynamic loader will see: architecture, symbol versions, and libraries that nothing provides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from airbundle.prove import cuda
from airbundle.prove.facts import NativeFile, version_key
from airbundle.prove.target import Package, Target, base_name, is_optional, some
from airbundle_onsite.contract.checks import CheckResult

_EXTENSION = re.compile(r"\.(cpython-\d+[\w-]*|abi3)\.so$")
_RELR = ("GLIBC_ABI_DT_RELR", "2.36")  # a version without a number: packed relocations, from glibc 2.36 on


def check_machine(package: Package, target: Target) -> list[CheckResult]:
    """Whether the package has files for the target's architecture, if it has any for a CPU."""
    machines = {native.elf.machine for native in package.natives if native.elf} - {"cuda"}
    if not machines or target.arch in machines:
        return []
    found = ", ".join(sorted(machines))
    return [
        CheckResult(
            id="prove.machine",
            status="fail",
            summary=f"{package.title()} is for {found}; the target is {target.arch}",
            expected=target.arch,
            actual=found,
            remedy="lock again for the profile's architecture",
        )
    ]


def check_readable(package: Package) -> list[CheckResult]:
    """Whether every native file could be read."""
    broken = [f"{native.path}: {native.problem}" for native in package.natives if native.problem]
    if not broken:
        return []
    return [
        CheckResult(
            id="prove.readable",
            status="warn",
            summary=f"{package.title()} has {len(broken)} native file{'s' * (len(broken) > 1)} that cannot be read",
            remedy="test data is broken on purpose; if the file is a library, its publisher ships it damaged",
            evidence=some(broken),
        )
    ]


def running(package: Package, target: Target) -> list[NativeFile]:
    """Files that the target's dynamic loader is to load: of its architecture, and not known to be optional."""
    return [
        native
        for native in package.natives
        if native.elf
        and native.elf.machine == target.arch
        and native.elf.bits == 64
        and not is_optional(package, native)
    ]


def needed_version(package: Package, target: Target, prefix: str, library: str = "") -> tuple[str, str]:
    """Highest version with a prefix such as ``GLIBC_`` that files need, and the file; two empty strings for none.

    Args:
        library: only versions wanted of this library; any when empty.
    """
    best, where = "", ""
    for native in running(package, target):
        for name, versions in (native.elf.versions if native.elf else {}).items():
            for version in versions if not library or name == library else ():
                number = _RELR[1] if version == _RELR[0] == f"{prefix}ABI_DT_RELR" else version.removeprefix(prefix)
                if number != version and number[:1].isdigit() and version_key(number) > version_key(best):
                    best, where = number, native.path
    return best, where


def check_glibc(package: Package, target: Target) -> list[CheckResult]:
    """Whether glibc and libstdc++ are new enough."""
    results = []
    needed, where = needed_version(package, target, "GLIBC_")
    if needed and target.image is not None and target.image.libc == "musl":
        results.append(_too_old(package, where, f"glibc {needed}", f"{target.place()} has musl instead", "fail"))
    elif needed and target.glibc and version_key(needed) > version_key(target.glibc):
        have = f"{target.place()} has {target.glibc}" if target.image else f"the profile promises {target.glibc}"
        results.append(_too_old(package, where, f"glibc {needed}", have, "fail"))
    needed, where = needed_version(package, target, "GLIBCXX_", "libstdc++.so.6")
    if needed and target.glibcxx and version_key(needed) > version_key(target.glibcxx):
        if target.image:
            have = f"{target.place()} has GLIBCXX_{target.glibcxx}"
        else:
            have = f"a host with glibc {target.glibc} may have GLIBCXX_{target.glibcxx} only"
        results.append(
            _too_old(package, where, f"libstdc++ with GLIBCXX_{needed}", have, "fail" if target.image else "warn")
        )
    return results


def _too_old(package: Package, where: str, needs: str, have: str, status: str) -> CheckResult:
    return CheckResult(
        id="prove.glibc",
        status="fail" if status == "fail" else "warn",
        summary=f"{package.title()} needs {needs}; {have}",
        expected=needs,
        actual=have,
        remedy=f"take a version of {package.name} with an older manylinux tag, or a newer base image or host system",
        evidence=(where,),
    )


def missing_libraries(package: Package, target: Target) -> dict[str, tuple[str, ...]]:
    """Libraries that nothing provides, by file."""
    found = {}
    for native in running(package, target):
        missing = tuple(name for name in (native.elf.needed if native.elf else ()) if name not in target.provided)
        if missing:
            found[native.path] = missing
    return found


def needed_names(packages: Iterable[Package]) -> frozenset[str]:
    """Names of libraries that some file in the closure is linked with."""
    natives = (native for package in packages for native in package.natives)
    return frozenset(name for native in natives if native.elf for name in native.elf.needed)


def check_needed(package: Package, target: Target, wanted: frozenset[str]) -> list[CheckResult]:
    """Whether every library is there.

    A library that only the host's or image's package manager could bring is named with its package. A missing one is a
    failure when an extension module, or a library that something else needs, is linked with it; a file that is only
    opened on demand gets a warning, and so does everything that came in an image.

    Args:
        wanted: what `needed_names` gave for the whole closure.
    """
    missing = missing_libraries(package, target)
    if not missing:
        return []
    names = sorted({name for libraries in missing.values() for name in libraries})
    host = _host_packages(names)
    certain = {
        name
        for path, libraries in missing.items()
        if _EXTENSION.search(path) or _provides(package, path) & wanted
        for name in libraries
        if target.image is not None or name not in host
    }
    fails = package.kind == "wheel" and bool(certain)
    place = target.place()
    absent = f"not in {place}" if target.image else "not part of every Linux"
    return [
        CheckResult(
            id="prove.needed",
            status="fail" if fails else "warn",
            summary=f"{package.title()} is linked with {', '.join(names)}: not in the bundle, {absent}",
            expected=", ".join(names),
            actual="not found",
            remedy=_cure(names, host, place),
            evidence=some([f"{path}: {', '.join(libraries)}" for path, libraries in sorted(missing.items())]),
        )
    ]


def _host_packages(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """For libraries that a host may bring: the package on Debian and Ubuntu, and the one on RHEL, by library."""
    libraries = cuda.table("libraries")
    found = {}
    for name in names:
        if name in libraries["host"]:
            debian, rhel = libraries["host"][name]
            found[name] = (debian, rhel)
        for pattern in libraries["host_pattern"]:
            if match := re.fullmatch(pattern["file"], name):
                found[name] = (pattern["debian"].format(*match.groups()), pattern["rhel"].format(*match.groups()))
    return found


def _provides(package: Package, path: str) -> set[str]:
    soname = next((native.elf.soname for native in package.natives if native.path == path and native.elf), "")
    return {base_name(path), soname} - {""}


def _cure(names: list[str], host: Mapping[str, tuple[str, str]], place: str) -> str:
    known = [f"{name}: {' (Debian, Ubuntu) or '.join(host[name])} (RHEL)" for name in names if name in host]
    rest = [name for name in names if name not in host]
    parts = [f"see that {place} has {'; '.join(known)}"] if known else []
    parts += [f"add the package that provides {', '.join(rest)} to the requirements"] if rest else []
    return "; ".join(parts)
