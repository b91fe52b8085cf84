"""Releases on disk: staged beside the others, published by one rename, made current by one more.

    <root>/staging/<name>-<version>/       being written; never used by anything but this module
    <root>/releases/<name>/<version>/      whole: it holds release.json, written last before the rename
    <root>/releases/<name>/current         link to the active version
    <root>/releases/<name>/.replaced-<v>/  what a reinstallation of the active version put aside until it is done
    <root>/weights/sha256/ab/<digest>      model files, hard-linked into releases

Every change is made by the holder of the lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from airbundle_onsite.contract import layout as names
from airbundle_onsite.contract.layout import StoreLayout
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.names import check_version
from airbundle_onsite.contract.payload import FileEntry
from airbundle_onsite.contract.record import decode_json, encode, record
from airbundle_onsite.contract.release import ReleaseRecord
from airbundle_onsite.errors import AirbundleError, IntegrityError, UsageError
from airbundle_onsite.store.disk import (
    FILE_MODE,
    WEIGHT_MODE,
    link_atomic,
    make_directory,
    remove_tree,
    sync_directory,
    sync_tree,
    tree_bytes,
    write_atomic,
    write_new,
)
from airbundle_onsite.store.records import RECORD, read_record, read_seen, recorded, removal, write_seen
from airbundle_onsite.store.weights import Weights

if TYPE_CHECKING:
    from airbundle_onsite.verify.bundle import TrustedManifest

Rebuild = Callable[[FileEntry, Iterable[bytes]], Iterable[bytes]]
"""Makes the content of a file that takes bytes from a base, or is compressed, of what the payload has of it."""

_ROOTS = frozenset({names.WHEELS, names.MODELS, names.CONFIG, names.LICENSES})


@record
class StagedRelease:
    """A whole release in the store, active or not. Only `Store` and `Staging` make one.

    Attributes:
        directory: where it is.
        manifest: its manifest, with the same SHA-256 as when it was verified.
        record: what the site knows of it.
    """

    directory: Path
    manifest: BundleManifest
    record: ReleaseRecord


class Staging:
    """A release being written; `commit` publishes it, `discard` removes every trace of it."""

    def __init__(self, store: Store, trusted: TrustedManifest, *, rewrite: bool, rebuild: Optional[Rebuild]) -> None:
        self._store, self._rebuild = store, rebuild
        self._trusted = trusted
        self._rewrite = rewrite
        self._weights = Weights(store.layout)
        self.manifest = trusted.manifest
        self.directory = store.staging_directory(self.manifest.name, self.manifest.version)

    def add(self, entry: FileEntry, chunks: Iterable[bytes]) -> None:
        """Write one file of the payload under its own name; `chunks` are verified by whoever yields them.

        They are consumed to the end even when the file is in the store already, so that the stream goes on and
        its bytes are still checked.

        Raises:
            IntegrityError: the path is not one of a release's, or the bytes are not as many as listed.
            OSError: as the system says, e.g. ENOSPC; the half-written file is gone then.
        """
        if entry.path.split("/", 1)[0] not in _ROOTS or "/" not in entry.path:
            raise IntegrityError(f"{entry.path} is no place for a file of a release ({', '.join(sorted(_ROOTS))})")
        target = self.directory / entry.path
        make_directory(target.parent, self.directory)
        if self._reusable(entry) and self._weights.link_out(entry.sha256, target):
            for _ in chunks:
                pass
            return
        if not entry.is_plain:
            if self._rebuild is None:
                raise IntegrityError(f"{entry.path} must be put together, and nobody was asked to")
            chunks = self._rebuild(entry, chunks)
        partial = target.with_name(f"{target.name[:200]}.partial")
        written = write_new(partial, chunks, WEIGHT_MODE if entry.role == "model" else FILE_MODE)
        if written != entry.size:
            partial.unlink()
            raise IntegrityError(f"{entry.path}: {written} bytes arrived, {entry.size} are listed")
        partial.rename(target)

    def commit(self, made: ReleaseRecord, *, aside: bool = False) -> StagedRelease:
        """Make everything durable and publish it as ``releases/<name>/<version>``.

        Args:
            made: the record to write into it.
            aside: the version is there already and is replaced; it is kept until `Store.drop_aside`, and
                `Store.restore_aside` brings it back.

        Raises:
            IntegrityError: a listed file was never added, or bundle.json is no longer what was verified.
        """
        self._check_whole()
        source = self._trusted.directory / names.MANIFEST
        data = source.read_bytes()
        if hashlib.sha256(data).hexdigest() != self._trusted.sha256:
            raise IntegrityError(f"{source} changed while it was being installed")
        write_new(self.directory / names.MANIFEST, (data,), FILE_MODE)
        if self._trusted.signature:
            write_new(self.directory / names.SIGNATURE, (self._trusted.signature,), FILE_MODE)
        sync_tree(self.directory)
        for entry in self._files():
            if entry.role == "model":
                self._share(entry)
        write_atomic(self.directory / RECORD, encode(made))
        return self._store.publish(self.directory, self.manifest, made, aside=aside)

    def discard(self) -> None:
        """Remove what was written; model files of other releases stay."""
        remove_tree(self.directory)

    def _files(self) -> Iterator[FileEntry]:
        return (entry for entry in self.manifest.files if entry.role != "image")

    def _reusable(self, entry: FileEntry) -> bool:
        return entry.role == "model" and not self._rewrite and self._weights.proven(entry.sha256, entry.size)

    def _check_whole(self) -> None:
        missing = [entry.path for entry in self._files() if not (self.directory / entry.path).is_file()]
        if missing:
            raise IntegrityError(
                f"{len(missing)} listed files were not in the payload", details=missing[:20], remedy="copy it again"
            )

    def _share(self, entry: FileEntry) -> None:
        target = self.directory / entry.path
        if self._reusable(entry):
            spare = target.with_name(f"{target.name[:200]}.shared")
            if self._weights.link_out(entry.sha256, spare):
                spare.replace(target)  # nothing happens when both are the same file already
                spare.unlink(missing_ok=True)
        else:
            self._weights.link_in(entry.sha256, target)


class Store:
    """The releases under one installation root.

    Args:
        layout: where things are; its root should be an absolute, resolved path.
    """

    def __init__(self, layout: StoreLayout) -> None:
        self.layout = layout

    # --- reading ------------------------------------------------------------------------------------------
    def bundles(self) -> list[str]:
        """Names that have at least one release, in order."""
        folder = self.layout.base / "releases"
        found = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        return [name for name in found if self.versions(name) or self.damaged(name)]

    def versions(self, name: str) -> list[ReleaseRecord]:
        """Records of the whole releases of that name, oldest sequence first; `damaged` ones are left out."""
        found = []
        for directory in recorded(self.layout.bundle(name)):
            with contextlib.suppress(AirbundleError):
                found.append(read_record(directory))
        return sorted(found, key=lambda each: (each.sequence, each.installed, each.version))

    def damaged(self, name: str) -> dict[str, str]:
        """Versions of that name whose record cannot be read, each with the reason.

        They stand in nobody's way: everything else goes on, and they can be removed.
        """
        reasons = {}
        for directory in recorded(self.layout.bundle(name)):
            try:
                read_record(directory)
            except AirbundleError as error:
                reasons[directory.name] = "; ".join([error.summary, *error.details])
        return reasons

    def active(self, name: str) -> Optional[str]:
        """The version that `current` points at, if that release is whole."""
        link = self.layout.current(name)
        if not link.is_symlink():
            return None
        version = link.readlink().name
        return version if self.has(name, version) else None

    def has(self, name: str, version: str) -> bool:
        """Whether a whole release of that version is here."""
        return self.layout.record(name, version).is_file() and not self.layout.release(name, version).is_symlink()

    def require(self, name: str, version: str) -> None:
        """Raise UsageError unless a whole release of that version is here."""
        try:
            check_version(version)
        except ValueError as error:
            raise UsageError(str(error)) from error
        if not self.has(name, version):
            have = ", ".join(each.version for each in self.versions(name)) or "none"
            raise UsageError(
                f"{name} {version} is not installed; installed: {have}", remedy="--list shows what is installed"
            )

    def load(self, name: str, version: str) -> StagedRelease:
        """A release and its manifest.

        Raises:
            UsageError: it is not here.
            IntegrityError: its record is damaged, or its bundle.json is not the one that was verified when it was
                installed.
        """
        self.require(name, version)
        found = read_record(self.layout.release(name, version))
        path = self.layout.manifest(name, version)
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != found.manifest_sha256:
            raise IntegrityError(
                f"{path} is not the one that was installed",
                remedy=removal(name, version),
            )
        manifest = decode_json(BundleManifest, data, str(path))
        return StagedRelease(self.layout.release(name, version), manifest, found)

    def missing_files(self, release: StagedRelease) -> list[str]:
        """Listed files that are not there or not of the listed size; a look at sizes, no reading of contents."""
        missing = []
        for entry in release.manifest.files:
            path = release.directory / entry.path
            if entry.role != "image" and (not path.is_file() or path.stat().st_size != entry.size):
                missing.append(entry.path)
        return missing

    def bytes_present(self, manifest: BundleManifest) -> int:
        """Bytes of the manifest's model files that are here already and will be linked instead of written."""
        weights = Weights(self.layout)
        models = (entry for entry in manifest.files if entry.role == "model")
        return sum(entry.size for entry in models if weights.proven(entry.sha256, entry.size))

    def highest_sequence(self, name: str) -> int:
        """The highest sequence ever installed under that name; -1 when none was."""
        seen = read_seen(self.layout.bundle(name))
        return max([seen, *(each.sequence for each in self.versions(name))])

    def staging_directory(self, name: str, version: str) -> Path:
        return self.layout.staging / f"{name}-{version}"

    # --- changing -----------------------------------------------------------------------------------------
    def stage(self, trusted: TrustedManifest, *, rewrite: bool = False, rebuild: Optional[Rebuild] = None) -> Staging:
        """Begin to write a release, afresh.

        Args:
            trusted: its bundle.
            rewrite: do not reuse model files that are here already.
            rebuild: for a bundle that builds on a base.
        """
        staging = Staging(self, trusted, rewrite=rewrite, rebuild=rebuild)
        staging.discard()
        make_directory(staging.directory, self.layout.base)
        return staging

    def publish(self, directory: Path, manifest: BundleManifest, made: ReleaseRecord, *, aside: bool) -> StagedRelease:
        """Move a whole release to its place; called by `Staging.commit`."""
        target = self.layout.release(made.name, made.version)
        make_directory(target.parent, self.layout.base)
        if aside:
            target.rename(self._aside(made.name, made.version))
        else:
            remove_tree(target)  # what an older crash may have left; a whole one was removed by the caller
        directory.rename(target)
        sync_directory(target.parent)
        seen = max(self.highest_sequence(made.name), made.sequence)
        write_seen(target.parent, seen)
        return StagedRelease(target, manifest, made)

    def save(self, release: StagedRelease, **changes: object) -> StagedRelease:
        """Write a release's record with some fields changed."""
        changed = dataclasses.replace(release.record, **changes)  # type: ignore[arg-type]
        write_atomic(self.layout.record(changed.name, changed.version), encode(changed))
        return dataclasses.replace(release, record=changed)

    def activate(self, name: str, version: str) -> None:
        """Make `current` point at a version, in one step."""
        link_atomic(self.layout.current(name), version)

    def deactivate(self, name: str) -> None:
        """Remove `current`."""
        link = self.layout.current(name)
        if link.is_symlink():
            link.unlink()
            sync_directory(link.parent)

    def discard_staging(self, name: str, version: str) -> None:
        """Remove what an interrupted installation of that release had written before it was whole."""
        remove_tree(self.staging_directory(name, version))

    def restore_aside(self, name: str, version: str) -> bool:
        """Bring back what a reinstallation put aside; False when nothing was."""
        aside, target = self._aside(name, version), self.layout.release(name, version)
        if not aside.is_dir():
            return False
        remove_tree(target)
        aside.rename(target)
        sync_directory(target.parent)
        return True

    def drop_aside(self, name: str, version: str) -> None:
        """Remove what a reinstallation put aside."""
        remove_tree(self._aside(name, version))

    def remove(self, name: str, version: str) -> int:
        """Remove a release that is not active; returns the bytes freed.

        It is renamed out of sight first, so that a crash leaves no half release that looks whole.
        """
        target = self.layout.release(name, version)
        freed = tree_bytes(target)
        doomed = self.layout.staging / f".removed-{name}-{version}"
        make_directory(doomed.parent, self.layout.base)
        remove_tree(doomed)
        if target.is_dir():
            target.rename(doomed)
            sync_directory(target.parent)
        remove_tree(doomed)
        return freed + Weights(self.layout).sweep()

    def sweep(self) -> int:
        """Remove leftovers of crashed runs and model files that no release uses; returns the bytes freed.

        Only to be called when no transaction is open.
        """
        freed = 0
        if self.layout.staging.is_dir():
            for path in sorted(self.layout.staging.iterdir()):
                freed += tree_bytes(path)
                remove_tree(path)
        return freed + Weights(self.layout).sweep()

    def forget(self, name: str) -> None:
        """Remove the folder of a bundle without releases."""
        if not self.versions(name) and not self.damaged(name):
            remove_tree(self.layout.bundle(name))

    def _aside(self, name: str, version: str) -> Path:
        return self.layout.bundle(name) / f".replaced-{version}"
