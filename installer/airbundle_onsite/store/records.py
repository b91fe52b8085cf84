"""What is written down about releases: release.json in each of them, and seen.json beside them."""

from __future__ import annotations

import json
from pathlib import Path

from airbundle_onsite.contract.record import decode_json, encode
from airbundle_onsite.contract.release import ReleaseRecord
from airbundle_onsite.errors import ContractError, IntegrityError
from airbundle_onsite.store.disk import write_atomic

RECORD = "release.json"
_SEEN = "seen.json"


def recorded(bundle: Path) -> list[Path]:
    """The directories of one bundle's releases that hold a record, readable or not."""
    return sorted(
        path.parent
        for path in bundle.glob(f"*/{RECORD}")
        if not path.parent.is_symlink() and not path.parent.name.startswith(".")
    )


def read_record(release: Path) -> ReleaseRecord:
    """The record of a release; it must be about the directory it lies in, or whatever acts by it acts elsewhere.

    Raises:
        IntegrityError: it cannot be read, or is about another release.
    """
    path, name, version = release / RECORD, release.parent.name, release.name
    try:
        found = decode_json(ReleaseRecord, path.read_bytes(), str(path))
    except ContractError as error:
        raise IntegrityError(f"{path} is damaged", details=error.problems, remedy=removal(name, version)) from error
    if (found.name, found.version) != (name, version):
        raise IntegrityError(
            f"{path} is damaged: it is about {found.name!r} {found.version!r}, needed {name} {version}",
            remedy=removal(name, version),
        )
    return found


def read_seen(bundle: Path) -> int:
    """The highest sequence written down for a bundle; -1 when none was, or when what was is damaged."""
    path = bundle / _SEEN
    if not path.is_file():
        return -1
    try:
        value = json.loads(path.read_text("utf-8")).get("sequence")
    except (ValueError, AttributeError, RecursionError):
        return -1  # what is installed still tells
    return value if type(value) is int else -1


def write_seen(bundle: Path, sequence: int) -> None:
    """Write down that `sequence` is the highest that was ever installed."""
    write_atomic(bundle / _SEEN, encode({"sequence": sequence}))


def removal(name: str, version: str) -> str:
    """The remedy for a release that is damaged."""
    return (
        f"remove it, which stops it if it runs, and install its bundle again: "
        f"airbundlectl uninstall {version} --name {name}"
    )
