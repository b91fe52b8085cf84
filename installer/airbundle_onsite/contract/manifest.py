"""BundleManifest: the content of bundle.json, and so the index of everything in a bundle."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Optional

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.artifacts import ImageEntry, ModelEntry, WheelEntry
from airbundle_onsite.contract.base import BaseRelease, Rollback
from airbundle_onsite.contract.launch import LaunchPlan, RuntimeKind, SmokeTest
from airbundle_onsite.contract.names import check_name, check_unique, check_version
from airbundle_onsite.contract.payload import FileEntry, OuterFile, Payload
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import decode_json, record
from airbundle_onsite.errors import ContractError

SCHEMA_VERSION = 1
BYTE_PLANES = "byte-planes"
"""Feature of a bundle whose weights are compressed; see `airbundle_onsite.planes`."""
FEATURES = (BYTE_PLANES,)
"""What a bundle may need of who reads it, beyond schema version 1."""


@record
class HostNeeds:
    """What the bundle as a whole needs of a host.

    Attributes:
        profile: the profile it was built for, in full.
        runtime: the runtime it uses.
        disk: bytes under the installation root.
        image_disk: bytes in the container engine's store, unpacked, as far as known.
        wheel_tags: for the venv runtime, a set of tags of each wheel that is not pure Python, e.g.
            ``cp310-abi3-manylinux_2_17_x86_64``.
    """

    profile: HardwareProfile
    runtime: RuntimeKind
    disk: int
    image_disk: int = 0
    wheel_tags: tuple[str, ...] = ()


@record
class Serving:
    """What the site offers.

    Attributes:
        host: address to listen on; loopback unless the spec says otherwise.
        port: port of the service.
    """

    host: str = "127.0.0.1"
    port: int = 8000


@record
class BundleManifest:
    """Everything in a bundle; signed, and read before anything else is trusted.

    Attributes:
        schema_version: of this document.
        name, version: the bundle's; its directory is ``<name>-<version>``.
        sequence: grows from build to build; a site refuses an older one than it has seen.
        created: seconds since the epoch; the lock's time or SOURCE_DATE_EPOCH.
        tool: ``airbundle <version>``.
        files: every file of the payload, in payload order.
        outer: every file beside this one except the parts, SHA256SUMS and the signature.
        provenance: free facts about where things came from, for people.
        bases: releases that the site must have; empty for a bundle that needs nothing.
        rollback: for a bundle that leads back to an older release.
        features: what it needs of who reads it, of `FEATURES`; so that an older program says what it lacks.
        Others: see their classes.
    """

    schema_version: int
    name: str
    version: str
    sequence: int
    created: int
    tool: str
    payload: Payload
    outer: tuple[OuterFile, ...]
    files: tuple[FileEntry, ...]
    needs: HostNeeds
    serving: Serving
    images: tuple[ImageEntry, ...] = ()
    wheels: tuple[WheelEntry, ...] = ()
    models: tuple[ModelEntry, ...] = ()
    launch: tuple[LaunchPlan, ...] = ()
    smoke: tuple[SmokeTest, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    bases: tuple[BaseRelease, ...] = ()
    rollback: Optional[Rollback] = None
    features: tuple[str, ...] = ()

    @property
    def absent_layers(self) -> frozenset[str]:
        """Digests of the image layers that were left out."""
        return frozenset(digest for base in self.bases for digest in base.layers)

    @property
    def taken_after(self) -> int:
        """The highest sequence that a site may have seen and still takes this bundle unasked."""
        return self.sequence if self.rollback is None else max(self.sequence, self.rollback.sequence)

    def __post_init__(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(
                f"schema_version {self.schema_version}: this tool reads version {SCHEMA_VERSION}; "
                "use the onsite.pyz of the bundle itself"
            )
        check_name(self.name)
        check_version(self.version)
        paths = [entry.path for entry in self.files]
        check_unique("path", paths)
        check_unique("file", [outer.name for outer in self.outer])
        known = set(paths)
        listed = [wheel.path for wheel in self.wheels] + [path for model in self.models for path in model.files]
        missing = sorted(path for path in listed if path not in known)
        if missing:
            raise ValueError(f"listed as a wheel or model, but not among the files: {', '.join(missing[:5])}")
        _check_bases(self)
        _check_features(self)


def _check_bases(manifest: BundleManifest) -> None:
    """Every byte that is the base's lies in a file that the base is said to have."""
    sizes = {file.sha256: file.size for base in manifest.bases for file in base.files}
    for entry in manifest.files:
        if entry.role == "image" and entry.from_base:
            raise ValueError(f"{entry.path}: a file of an image cannot take bytes from a base")
        for segment in entry.segments:
            if segment.base is not None and segment.offset + segment.size > sizes.get(segment.base, 0):
                raise ValueError(f"{entry.path}: takes bytes from a base that lists no such file, or a shorter one")
    absent = manifest.absent_layers
    blobs = {entry.path for entry in manifest.files if entry.role == "image"}
    for image in manifest.images:
        left_out = [layer.digest in absent for layer in image.layers]
        if left_out != sorted(left_out, reverse=True):
            raise ValueError(f"image {image.name}: layers were left out above layers that were not")
    doubled = sorted(digest for digest in absent if layout.blob_path(digest) in blobs)
    if doubled:
        raise ValueError(f"layer {doubled[0]} is said to be left out, but is among the files")


def missing_features(features: Iterable[object]) -> str:
    """What this program lacks to read a bundle that needs these; empty when it has them all."""
    unknown = [str(each)[:40] for each in features if each not in FEATURES]
    if not unknown:
        return ""
    return (
        f"this bundle needs a program that can read {', '.join(unknown)}, and this one, which is older, cannot; "
        "use the install.sh and onsite.pyz of the bundle itself"
    )


def decode_manifest(data: bytes) -> BundleManifest:
    """The manifest in bundle.json's bytes.

    Raises:
        ContractError: with every problem found; of one that needs a newer program, just that.
    """
    try:
        return decode_json(BundleManifest, data, layout.MANIFEST)
    except ContractError as error:
        lacking = _lacking(data)
        if lacking:
            raise ContractError(layout.MANIFEST, [lacking]) from error
        raise


def _lacking(data: bytes) -> str:
    """`missing_features` of a document that is not, or not only, what this program reads."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return ""
    features = value.get("features") if isinstance(value, dict) else None
    return missing_features(features) if isinstance(features, list) else ""


def features_of(files: Iterable[FileEntry]) -> tuple[str, ...]:
    """What a bundle of these files needs of who reads it."""
    return (BYTE_PLANES,) if any(entry.is_compressed for entry in files) else ()


def _check_features(manifest: BundleManifest) -> None:
    lacking = missing_features(manifest.features)
    if lacking:
        raise ValueError(lacking)
    for entry in manifest.files:
        if entry.is_compressed and entry.role != "model":
            raise ValueError(f"{entry.path}: only a model's files may be compressed")
        if entry.is_compressed and BYTE_PLANES not in manifest.features:
            raise ValueError(f"{entry.path} is compressed, but {BYTE_PLANES} is not among the bundle's features")
