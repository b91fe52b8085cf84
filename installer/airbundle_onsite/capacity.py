"""What a bundle takes of a host: bytes on each filesystem, and an interpreter. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from airbundle_onsite.contract.fingerprint import DiskFacts, Fingerprint, PythonFacts
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import record
from airbundle_onsite.versions import numbers, satisfies, wheel_fits

MARGIN = 64 * 1024 * 1024
"""Bytes beyond the payload that an installation may take for its own records."""

_UNPACKED = 3  # unpacked to compressed size of an image, where the bundle does not say


@record
class DiskShare:
    """Part of what one filesystem must hold: for people, in bytes."""

    what: str
    size: int


@record
class DiskNeed:
    """What one filesystem must hold at the peak of an installation.

    Attributes:
        mount: its mount point.
        device: as in `DiskFacts`.
        free: bytes free now.
        shares: what the bytes are for.
        disks: facts of the purposes that share it.
    """

    mount: str
    device: str
    free: int
    shares: tuple[DiskShare, ...]
    disks: tuple[DiskFacts, ...]

    @property
    def needed(self) -> int:
        return sum(share.size for share in self.shares)


def disk_needs(manifest: BundleManifest, fingerprint: Fingerprint, *, present: int = 0) -> tuple[DiskNeed, ...]:
    """Peak bytes for each filesystem that the installation writes to; purposes on one filesystem are added.

    A purpose that the fingerprint has no disk for is left out.

    Args:
        present: bytes of the payload that the installation root holds already and that will be linked, not copied.
    """
    wanted = {"root": [DiskShare("the release's files", max(0, manifest.needs.disk - present) + MARGIN)]}
    if manifest.needs.runtime == "docker" and manifest.images:
        wanted["docker"] = _image_shares(manifest, fingerprint)
    needs: dict[str, DiskNeed] = {}
    for disk in fingerprint.disks:
        shares = tuple(wanted.pop(disk.purpose, ()))
        if shares:
            old = needs.get(disk.device)
            needs[disk.device] = DiskNeed(
                mount=old.mount if old else disk.mount,
                device=disk.device,
                free=disk.free,
                shares=(old.shares if old else ()) + shares,
                disks=(*(old.disks if old else ()), disk),
            )
    return tuple(needs.values())


def _image_shares(manifest: BundleManifest, fingerprint: Fingerprint) -> list[DiskShare]:
    """The engine holds the archive and the unpacked layers at once.

    A classic storage driver writes the archive to its own temporary directory and deletes it afterwards; the
    containerd store keeps the compressed layers for good. Both are on the same filesystem as the layers.
    """
    blobs = {layer.digest: layer.size for image in manifest.images for layer in image.layers}
    packed = sum(size for digest, size in blobs.items() if digest not in manifest.absent_layers)
    unpacked = manifest.needs.image_disk or packed * _UNPACKED
    kept = fingerprint.docker.storage_driver.startswith("containerd:")
    return [
        DiskShare("compressed image layers" if kept else "the engine's temporary copy of the images", packed),
        DiskShare("unpacked image layers", unpacked),
    ]


def choose_python(python: str, wheel_tags: Sequence[str], fingerprint: Fingerprint) -> Optional[PythonFacts]:
    """The interpreter to make the virtual environment with, or None.

    It must meet the specifier, be able to install every wheel, and import venv. Among several, one that belongs to
    the system comes before one in a person's home, which may go away; then the newest.

    Args:
        python: version specifier; empty for any.
        wheel_tags: tag sets of the wheels that are not pure Python.

    Raises:
        ValueError: `python` is not a specifier.
    """
    able = [
        found
        for found in fingerprint.pythons
        if found.venv
        and satisfies(found.version, python)
        and all(_wheel_fits(tags, found, fingerprint) for tags in wheel_tags)
    ]
    return max(able, key=lambda found: (_of_the_system(found.path), numbers(found.version)), default=None)


def _wheel_fits(tags: str, python: PythonFacts, fingerprint: Fingerprint) -> bool:
    system = fingerprint.os
    return wheel_fits(tags, python=python.version, machine=system.machine, glibc=system.glibc)


def why_no_python(python: str, wheel_tags: Sequence[str], fingerprint: Fingerprint) -> list[str]:
    """A line for each interpreter found, saying what it lacks; empty when none was found."""
    lines = []
    for found in fingerprint.pythons:
        unfit = [tags for tags in wheel_tags if not _wheel_fits(tags, found, fingerprint)]
        if not satisfies(found.version, python):
            reason = f"is not {python}"
        elif unfit:
            reason = f"cannot install {len(unfit)} of the wheels, such as one tagged {unfit[0]}"
        else:
            reason = "cannot import venv" if not found.venv else "fits"
        lines.append(f"{found.path} ({found.version}) {reason}")
    return lines


def _of_the_system(path: str) -> bool:
    return path.startswith(("/usr/", "/bin/", "/opt/"))
