"""What is installed, as a file that goes to the office: the next bundle can then leave it out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import airbundle_onsite
from airbundle_onsite import tensors
from airbundle_onsite.contract.inventory import (
    SCHEMA_VERSION,
    Inventory,
    InventoryFile,
    InventoryImage,
    InventoryRelease,
    TensorFact,
)
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import AirbundleError, IntegrityError
from airbundle_onsite.store.rebuild import read_range, whole_releases
from airbundle_onsite.store.releases import StagedRelease
from airbundle_onsite.verify import media


def take_inventory(site: Site, *, with_tensors: bool = False) -> Inventory:
    """Everything installed under the site's root; changes nothing.

    Args:
        site: where.
        with_tensors: read every safetensors and GGUF file, and list the SHA-256 of each tensor.

    Raises:
        IntegrityError: with `with_tensors`, a file is not what its manifest says.
    """
    known: dict[str, tuple[TensorFact, ...]] = {}
    releases = [_release(site, release, known, with_tensors) for release in whole_releases(site.store)]
    return Inventory(SCHEMA_VERSION, site.now(), f"airbundle {airbundle_onsite.__version__}", tuple(releases))


def _release(
    site: Site, release: StagedRelease, known: dict[str, tuple[TensorFact, ...]], with_tensors: bool
) -> InventoryRelease:
    made, lost = release.record, set(site.store.missing_files(release))
    files = []
    for entry in release.manifest.files:
        if entry.role == "image" or entry.path in lost:
            continue
        if with_tensors and tensors.has_tensors(entry.path) and entry.sha256 not in known:
            site.talk.say(f"Reading {entry.path} of {made.name} {made.version}")
            known[entry.sha256] = _tensors(release.directory / entry.path, entry.sha256)
        files.append(InventoryFile(entry.path, entry.role, entry.size, entry.sha256, known.get(entry.sha256, ())))
    return InventoryRelease(
        made.name,
        made.version,
        made.sequence,
        made.manifest_sha256,
        site.store.active(made.name) == made.version,
        tuple(files),
        _images(site, release),
    )


def _images(site: Site, release: StagedRelease) -> tuple[InventoryImage, ...]:
    """Those that the container engine has; none when it cannot be asked."""
    images = release.manifest.images
    if not images:
        return ()
    try:
        lacking = site.runtime(release.record.runtime).has_images(release.manifest)
    except AirbundleError as error:
        site.talk.say(f"The images of {release.record.name} {release.record.version} are left out: {error.summary}")
        return ()
    return tuple(
        InventoryImage(image.name, image.config_digest, tuple(layer.diff_id for layer in image.layers))
        for image in images
        if image.name not in lacking
    )


def _tensors(path: Path, sha256: str) -> tuple[TensorFact, ...]:
    """Of a file that is what it should be; none of one whose header says nothing."""
    size = path.stat().st_size
    try:
        with media.open_regular(path) as descriptor:
            found = tensors.spans(path.name, size, lambda offset, count: os.pread(descriptor, count, offset))
    except ValueError:
        return ()
    except media.Unreadable as error:
        raise IntegrityError(f"{path}: {error}") from error
    whole = hashlib.sha256()
    facts = tuple(tensors.hash_spans(found, _hashed(path, size, whole)))
    if whole.hexdigest() != sha256:
        raise IntegrityError(
            f"{path} has SHA-256 {whole.hexdigest()[:16]}…, needed {sha256[:16]}…",
            remedy="install its release again from its bundle, with --reinstall",
        )
    return facts


def _hashed(path: Path, size: int, whole: hashlib._Hash) -> Iterator[bytes]:
    """The content of a file, which goes through `whole`, too."""
    for chunk in read_range(path, 0, size, whole=True):
        whole.update(chunk)
        yield chunk


def counts(taken: Inventory) -> Mapping[str, int]:
    """Releases, files and images in it, for people."""
    return {
        "releases": len(taken.releases),
        "files": sum(len(each.files) for each in taken.releases),
        "images": sum(len(each.images) for each in taken.releases),
    }
