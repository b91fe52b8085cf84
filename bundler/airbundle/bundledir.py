"""The directory of a bundle on its way: nobody else writes into it, and it gets its name when it is whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.payload import OuterFile
from airbundle_onsite.contract.record import encode
from airbundle_onsite.errors import BusyError, UsageError
from airbundle_onsite.system import Talk

_NO_MODES = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL})


def require_space(output: Path, needed: int) -> None:
    """Raise UsageError unless `needed` bytes are free there."""
    free = shutil.disk_usage(output).free
    if free < needed:
        raise UsageError(
            f"{output} has {free} bytes free; the bundle needs {needed}",
            remedy="free some space or choose another directory with -o; what was fetched stays in the cache",
        )


def write_manifest(directory: Path, manifest: BundleManifest) -> None:
    """Write bundle.json and the SHA256SUMS that belongs to it."""
    data = encode(manifest)
    write_synced(directory / layout.MANIFEST, data, 0o644)
    write_synced(directory / layout.CHECKSUMS, checksums(manifest, data), 0o644)


def checksums(manifest: BundleManifest, manifest_bytes: bytes) -> bytes:
    """SHA256SUMS as ``sha256sum -c`` reads it: every file of the bundle but itself and the signature."""
    sums = {part.name: part.sha256 for part in manifest.payload.parts}
    sums.update((item.name, item.sha256) for item in manifest.outer)
    sums[layout.MANIFEST] = hashlib.sha256(manifest_bytes).hexdigest()
    return "".join(f"{value}  {name}\n" for name, value in sorted(sums.items())).encode()


def outer_entries(outer: Mapping[str, bytes]) -> tuple[OuterFile, ...]:
    """The manifest's entries of files beside it."""
    return tuple(OuterFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in sorted(outer.items()))


def write_synced(path: Path, data: bytes, mode: int) -> None:
    """Write a file through to the disk."""
    with path.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    set_mode(path, mode)


def set_mode(path: Path, mode: int) -> None:
    """Give a file its mode where there are modes: FAT, exFAT and NTFS have none, and some say so."""
    try:
        path.chmod(mode)
    except OSError as error:
        if error.errno not in _NO_MODES:
            raise


@contextlib.contextmanager
def claimed(partial: Path) -> Iterator[None]:
    """An empty directory that no other build writes into; it is gone when the body fails.

    Raises:
        BusyError: another build is at work in it.
    """
    with _locked_directory(partial) if partial.exists() else contextlib.nullcontext():
        shutil.rmtree(partial, ignore_errors=True)  # what a build that was killed has left
    partial.mkdir()
    with _locked_directory(partial):
        try:
            yield
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextlib.contextmanager
def _locked_directory(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(str(path), None) from None
        except OSError:  # a network filesystem that cannot lock: nothing keeps a second build away there
            pass
        yield
    finally:
        os.close(descriptor)


def publish(partial: Path, final: Path) -> None:
    """Give the whole directory its final name; an older bundle of that name goes only after that."""
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    set_mode(partial, 0o755)
    if final.exists():
        final.rename(old)
    partial.rename(final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    shutil.rmtree(old, ignore_errors=True)


def require_absent(final: Path) -> None:
    """Raise UsageError when there is something of that name."""
    if os.path.lexists(final):
        raise UsageError(f"{final} exists already", remedy="remove it, or choose another place with -o")


@contextlib.contextmanager
def appearing(final: Path) -> Iterator[Path]:
    """An empty directory that gets the name `final` when the body ends, and is gone when the body fails.

    Raises:
        UsageError: there is something of that name.
        BusyError: another process is at work on the same.
    """
    require_absent(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f".{final.name}.partial")
    with claimed(partial):
        yield partial
        publish(partial, final)


def counter(talk: Talk, what: str, total: int) -> Callable[[int], None]:
    """Adds up bytes, and tells `talk` how many of `total` there are."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        talk.progress(what, done, total)

    return advance
