"""What the site is said to have: from the bundle it was installed from, or from the inventory the site exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from airbundle.cache import Cache
from airbundle.delta.content import Extents, in_bundle, of_file
from airbundle.delta.facts import Readable
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.base import BaseFile
from airbundle_onsite.contract.inventory import Inventory, TensorFact
from airbundle_onsite.contract.record import decode_json, record
from airbundle_onsite.errors import ContractError, UsageError
from airbundle_onsite.verify.bundle import TrustedManifest, trust

_INVENTORY_LIMIT = 256 * 1024 * 1024


@record
class Known:
    """A release of the base.

    Attributes:
        name, version, sequence, manifest_sha256: of it.
        files: those of its files that a bundle may take bytes from, by SHA-256.
        readable: the same, with where this office can read them.
        tensors: of files, by SHA-256, where the inventory lists them.
        stacks: diff ids of each of its images, from the bottom up.
    """

    name: str
    version: str
    sequence: int
    manifest_sha256: str
    files: Mapping[str, BaseFile]
    readable: Mapping[str, Readable] = field(default_factory=dict)
    tensors: Mapping[str, tuple[TensorFact, ...]] = field(default_factory=dict)
    stacks: tuple[tuple[str, ...], ...] = ()

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"


def read_base(path: Path, cache: Cache) -> tuple[Known, ...]:
    """The releases that `path` stands for: a bundle's directory, or an inventory.

    Raises:
        UsageError: it is neither.
        IntegrityError, TrustError: the bundle is not whole.
    """
    if path.is_dir():
        return (of_bundle(trust(path), cache),)
    return of_inventory(_read_inventory(path), cache)


def of_bundle(trusted: TrustedManifest, cache: Cache) -> Known:
    """The release that a bundle makes when it is installed."""
    manifest = trusted.manifest
    kept = [entry for entry in manifest.files if entry.role != "image" and entry.size]
    readable = {}
    for entry in kept:
        cached = _cached(cache, entry.sha256, entry.size)
        content = cached or in_bundle(trusted.directory, manifest, entry)
        readable[entry.sha256] = Readable(entry.path, entry.size, entry.sha256, content, bool(cached))
    return Known(
        manifest.name,
        manifest.version,
        manifest.sequence,
        trusted.sha256,
        {entry.sha256: BaseFile(entry.path, entry.size, entry.sha256) for entry in kept},
        readable,
        stacks=tuple(tuple(layer.diff_id for layer in image.layers) for image in manifest.images),
    )


def of_inventory(inventory: Inventory, cache: Cache) -> tuple[Known, ...]:
    """The releases of an inventory, the active one first, so that people read its name."""
    found = []
    for release in sorted(inventory.releases, key=lambda each: (not each.active, -each.sequence)):
        kept = [file for file in release.files if file.role != "image" and file.size]
        found.append(
            Known(
                release.name,
                release.version,
                release.sequence,
                release.manifest_sha256,
                {file.sha256: BaseFile(file.path, file.size, file.sha256) for file in kept},
                {
                    file.sha256: Readable(
                        file.path, file.size, file.sha256, _cached(cache, file.sha256, file.size), True
                    )
                    for file in kept
                },
                {file.sha256: file.tensors for file in kept if file.tensors},
                tuple(image.layers for image in release.images),
            )
        )
    return tuple(found)


def _cached(cache: Cache, sha256: str, size: int) -> Extents | None:
    return of_file(cache.path(sha256), size) if cache.has(sha256, size) else None


def _read_inventory(path: Path) -> Inventory:
    try:
        if path.stat().st_size > _INVENTORY_LIMIT:
            raise UsageError(f"{path} is too large for an inventory")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"--base {path}: {error.strerror}",
            remedy="name a bundle's directory, or a file that airbundlectl --inventory wrote",
        ) from error
    try:
        found = decode_json(Inventory, data, str(path))
    except ContractError as error:
        raise UsageError(
            f"{path} is no inventory",
            details=error.problems[:10],
            remedy=f"name a file that airbundlectl --inventory wrote, or a directory with a {layout.MANIFEST}",
        ) from error
    if not found.releases:
        raise UsageError(f"{path} lists no release: nothing is installed there", remedy="build without --base")
    return found
