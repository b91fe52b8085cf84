"""What lies in a bundle's directory, held against what should: names, kinds, sizes, and two lists that must agree."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Optional

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.payload import Part
from airbundle_onsite.verify import media
from airbundle_onsite.verify.problems import Problem, check_of, differs
from airbundle_onsite.verify.source import PartSource, lacking_pieces, pieces_of

SPREAD_CHECK = "verify.spread"  # the one result that is about parts not being here (yet)
_ALWAYS = frozenset({layout.CHECKSUMS, layout.MANIFEST, layout.SIGNATURE})
_BRING = "bring the medium that has it, and name its folder with --from DIR as well"


def names_in(directory: Path) -> dict[str, str]:
    """Each name in `directory` with what it is, as `media.kind_of` says; nothing is followed.

    Raises:
        OSError: it cannot be read as a directory.
    """
    with os.scandir(directory) as entries:
        return {entry.name: media.kind_of(entry.stat(follow_symlinks=False).st_mode) for entry in entries}


def looks_like_bundle(names: Collection[str]) -> bool:
    """Whether any of the files that only a bundle has is there."""
    return any(name in names for name in (*_ALWAYS, layout.INSTALLER))


def pieces_among(names: Iterable[str]) -> set[str]:
    """Those that could be pieces of parts, before the manifest can tell."""
    return {name for name in names if layout.PIECE_PATTERN.fullmatch(name)} | {layout.PIECE_CHECKSUMS}


def may_lie_here(manifest: BundleManifest) -> set[str]:
    """Names that may be in a bundle's directory, or elsewhere: its parts, and their pieces as files."""
    parts = manifest.payload.parts
    pieces = (layout.piece_name(part.name, piece.number) for part in parts for piece in pieces_of(part))
    return {*(part.name for part in parts), *pieces, layout.PIECE_CHECKSUMS}


def check_listing(
    directory: Path, names: Mapping[str, str], needed: Mapping[str, Optional[int]], allowed: Collection[str] = ()
) -> CheckResult:
    """Nothing missing, nothing unlisted, parts of the right size.

    Args:
        directory: the bundle's.
        names: what lies there, of `names_in`.
        needed: names with sizes in bytes, where known.
        allowed: names that may be there, or not.
    """
    problems: list[Problem] = []
    for name, size in needed.items():
        if name in _ALWAYS:
            continue  # reported by the step that reads it
        if name in names:
            problems.extend(_wrong_entry(directory / name, names[name], size))
        else:
            problems.append(Problem(name, "it is missing" + (f", needed {size} bytes" if size else "")))
    debris = []
    for name, kind in sorted(names.items()):
        if name in needed or name in _ALWAYS or name in allowed:
            continue
        if layout.is_debris(name):
            debris.append(name)
        else:
            found = f"found {kind or 'a file'} that the bundle does not list"
            problems.append(Problem(_shown(name), found, "move what is not listed out of the bundle's directory"))
    ignored = f"; left by an operating system and ignored: {', '.join(debris)}" if debris else ""
    return check_of("verify.listing", f"all {len(needed)} listed files are there, and no others{ignored}", problems)


def check_outer(directory: Path, names: Collection[str], manifest: BundleManifest) -> CheckResult:
    """The outer files that are there have the bytes bundle.json lists; missing ones are the listing's to report."""
    problems = []
    for outer in manifest.outer:
        if outer.name not in names:
            continue
        try:
            size, found = media.hash_file(directory / outer.name)
        except media.Unreadable as error:
            problems.append(Problem(outer.name, str(error)))
            continue
        if size != outer.size:
            problems.append(Problem(outer.name, f"found {size} bytes, needed {outer.size}"))
        elif found != outer.sha256:
            problems.append(Problem(outer.name, differs(found, outer.sha256)))
    return check_of("verify.outer", f"the {len(manifest.outer)} files beside {layout.MANIFEST} are whole", problems)


def check_parts_elsewhere(manifest: BundleManifest, source: PartSource) -> CheckResult:
    """Of every piece of every part there is a copy somewhere, as far as names and sizes tell."""
    problems: list[Problem] = []
    absent: list[Part] = []
    looked = f"looked in {', '.join(source.places)}"
    for part in manifest.payload.parts:
        lacking = lacking_pieces(source, part)
        if lacking and source.copies(part.name):
            more = f", and {len(lacking) - 1} more pieces of it" if len(lacking) > 1 else ""
            found = f"{lacking[0]} is missing{more}, needed {part.size} bytes; {looked}"
            problems.append(Problem(part.name, found, _BRING))
        elif lacking:
            absent.append(part)
    sizes = {part.name: part.size for part in absent}
    for run in layout.runs_of_parts([*sizes]):
        what = "it is missing" if len(run) == 1 else "they are missing"
        found = f"{what}, needed {sum(sizes[name] for name in run)} bytes; {looked}"
        problems.append(Problem(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}", found, _BRING))
    count = len(manifest.payload.parts)
    return check_of(SPREAD_CHECK, f"all {count} parts are there, in {', '.join(source.places)}", problems)


def check_agreement(sums: Mapping[str, str], manifest: BundleManifest, sha256: str) -> CheckResult:
    """SHA256SUMS and bundle.json, whose SHA-256 is `sha256`, list the same files with the same content."""
    needed = {layout.MANIFEST: sha256}
    needed.update((outer.name, outer.sha256) for outer in manifest.outer)
    needed.update((part.name, part.sha256) for part in manifest.payload.parts)
    problems = []
    for name in sorted(needed.keys() | sums.keys()):
        if name not in sums:
            problems.append(Problem(layout.CHECKSUMS, f"{name} is not listed, but {layout.MANIFEST} lists it"))
        elif name not in needed:
            problems.append(Problem(layout.CHECKSUMS, f"{name} is listed, but {layout.MANIFEST} does not list it"))
        elif sums[name] != needed[name]:
            found = differs(sums[name], needed[name], f" by {layout.MANIFEST}")
            problems.append(Problem(layout.CHECKSUMS, f"{name}: {found}"))
    return check_of("verify.agreement", f"{layout.CHECKSUMS} and {layout.MANIFEST} say the same", problems)


def _wrong_entry(path: Path, kind: str, size: Optional[int]) -> list[Problem]:
    if size is None:
        return []  # whoever reads it says what is wrong with it
    if kind:
        return [Problem(path.name, f"found {kind}, needed a file")]
    try:
        found = path.lstat().st_size
    except OSError as error:
        return [Problem(path.name, f"it cannot be examined: {error.strerror}")]
    return [] if found == size else [Problem(path.name, f"found {found} bytes, needed {size}")]


def _shown(name: str) -> str:
    return name if layout.is_outer_name(name) else repr(name)
