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

_UNPACKED = 3  # unpacked to compressed size of an image, where nothing says it


@record
class PeakDisk:
    """The most bytes that a bundle takes at once, by place; places on one filesystem add up.

    Attributes:
        medium: on the transfer medium.
        root: at the site under the installation root.
        packed, unpacked: at the site in the container engine's store, which holds the layers as they travel and as
            they are run at the same time; 0 without images.
    """

    medium: int
    root: int
    packed: int = 0
    unpacked: int = 0

    def places(self) -> tuple[tuple[str, int], ...]:
        """Each place that takes anything, in words, with its bytes."""
        found = (
            ("on the transfer medium", self.medium),
            (AT_ROOT, self.root),
            (AT_ENGINE, self.packed + self.unpacked),
        )
        return tuple((place, size) for place, size in found if size)


AT_ROOT = "at the site under the installation root"
AT_ENGINE = "at the site in the container engine's store"


def peak_disk(*, bundle: int, release: int, packed: int = 0, unpacked: int = 0) -> PeakDisk:
    """What every statement about a bundle's use of disk is made from.

    Args:
        bundle: bytes of its files on the medium.
        release: bytes of what is kept under the installation root: files, and wheels unpacked beside them.
        packed: bytes of the image layers that travel.
        unpacked: bytes of the same when run; 0 when that is not known, and is taken from the usual ratio.
    """
    return PeakDisk(bundle, release + MARGIN, packed, unpacked or packed * _UNPACKED)


def peak_of(manifest: BundleManifest, *, present: int = 0) -> PeakDisk:
    """The figures of a finished bundle.

    Args:
        present: bytes of the payload that the installation root holds already and that will be linked, not copied.
    """
    needs = manifest.needs
    blobs = {layer.digest: layer.size for image in manifest.images for layer in image.layers}
    loads = needs.runtime == "docker" and manifest.images
    return peak_disk(
        bundle=manifest.payload.size + sum(file.size for file in manifest.outer),
        release=max(0, needs.disk - present),
        packed=sum(size for digest, size in blobs.items() if digest not in manifest.absent_layers) if loads else 0,
        unpacked=needs.image_disk if loads else 0,
    )


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
    """The figures of `peak_of` by filesystem: purposes on one are added.

    A purpose that the fingerprint has no disk for is left out; `present` is as for `peak_of`.
    """
    peak = peak_of(manifest, present=present)
    wanted = {"root": [DiskShare(AT_ROOT, peak.root)]}
    if manifest.needs.runtime == "docker" and manifest.images:
        wanted["docker"] = _image_shares(peak, fingerprint)
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


def _image_shares(peak: PeakDisk, fingerprint: Fingerprint) -> list[DiskShare]:
    """The engine holds the archive and the unpacked layers at once.

    A classic storage driver writes the archive to its own temporary directory and deletes it afterwards; the
    containerd store keeps the compressed layers for good. Both are on the same filesystem as the layers.
    """
    kept = fingerprint.docker.storage_driver.startswith("containerd:")
    return [
        DiskShare(f"{AT_ENGINE}: layers as they travel{'' if kept else ', for a time'}", peak.packed),
        DiskShare(f"{AT_ENGINE}: layers unpacked", peak.unpacked),
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
