"""Locks on disk: read, written whole, and held against the spec they were made from; nothing is resolved here, so that
whoever has a fresh lock need not load what resolves."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from airbundle.contract.lock import LOCK_VERSION, BundleLock
from airbundle.contract.spec import BundleSpec
from airbundle_onsite.contract.record import decode_json, encode
from airbundle_onsite.errors import ContractError, UsageError

_AGAIN = "remove it and run `airbundle lock SPEC` again"


def moved_wheels(previous: BundleLock | None, made: BundleLock) -> list[str]:
    """What changed among the wheels, a line each: ``torch 2.10.0 → 2.11.0``."""
    before = {wheel.name: wheel.version for wheel in previous.wheels} if previous else {}
    after = {wheel.name: wheel.version for wheel in made.wheels}
    moved = [name for name in sorted({*before, *after}) if before and before.get(name) != after.get(name)]
    return [f"{name} {before.get(name, '(new)')} → {after.get(name, '(gone)')}" for name in moved]


def is_stale(made: BundleLock, spec: BundleSpec) -> bool:
    """Whether the spec is another than the lock was made from."""
    return made.spec_sha256 != spec_digest(spec)


def spec_digest(spec: BundleSpec) -> str:
    """SHA-256 of a spec's canonical form, as it was written: an open version stays open."""
    return hashlib.sha256(encode(spec)).hexdigest()


def read_lock(path: Path) -> BundleLock:
    """Read a lock file. Raises UsageError when it cannot be read, or another version of this tool wrote it."""
    try:
        data = path.read_bytes()
        document = json.loads(data)
        number = document.get("lock_version") if isinstance(document, dict) else None
        if number is not None and number != LOCK_VERSION:
            raise UsageError(
                f"{path}: lock_version is {number}, this version of airbundle reads {LOCK_VERSION}", remedy=_AGAIN
            )
        return decode_json(BundleLock, data, str(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", remedy="run `airbundle lock SPEC` first") from error
    except ContractError as error:
        raise UsageError(f"{path}: not a lock file", details=error.problems, remedy=_AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a lock file: {error}", remedy=_AGAIN) from error


def write_lock(made: BundleLock, path: Path) -> None:
    """Write a lock file whole or not at all. Raises UsageError when the place cannot be written."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as handle:
            temporary = Path(handle.name)
            try:
                handle.write(encode(made))
                handle.flush()
                os.fsync(handle.fileno())
                temporary.chmod(0o644)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", remedy="name a place that can be written with --lock") from error
