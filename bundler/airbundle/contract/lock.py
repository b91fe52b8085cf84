"""BundleLock: a spec with every choice made; fetching goes by it alone.

Tags have become digests, branches commits, and requirements hash-pinned wheels. The same lock, offline and
from the cache, gives the same bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from airbundle.contract.spec import BundleSpec
from airbundle_onsite.contract.artifacts import Layer, ModelRole
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import record

LOCK_VERSION = 1


@record
class LockedFile:
    """Bytes to fetch, known by their hash.

    Attributes:
        path: for a model, inside its directory; for a wheel, its file name; for an image blob, its digest.
        sha256: of the content.
        size: bytes.
        origin: what the source that locked it needs to fetch it; ``origin["source"]`` is that source's scheme.
            Holds no secrets.
    """

    path: str
    sha256: str
    size: int
    origin: Mapping[str, str] = field(default_factory=dict)


@record
class LockedModel:
    """See `airbundle_onsite.contract.artifacts.ModelEntry`.

    Attributes:
        skipped: bytes of the source left out, by reason.
        quantization, chat_template, custom_code: as far as the files at hand while locking told; a build reads all.
        facts: what the weights' own header says, for memory plans; empty when it was not at hand while locking.
            See `airbundle.resolve`.
    """

    served_name: str
    source: str
    revision: str
    format: Literal["gguf", "safetensors", "pytorch", "other"]
    files: tuple[LockedFile, ...]
    entry: str = ""
    license: str = ""
    role: ModelRole = "model"
    quantization: str = ""
    chat_template: bool = False
    custom_code: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


@record
class LockedWheel:
    """A wheel: `file.path` is its file name.

    Attributes:
        name: normalised project name; version: with any local part.
        index: ``pypi`` for the client's default, else the index URL without credentials.
        requested_by: projects that asked for it, ``spec`` for the spec itself.
        requires_python: the wheel's own specifier, or empty.
        yanked: never true in a lock that this version writes: yanked releases are refused.
        built_from: for a wheel built here: ``sdist``, ``sha256`` and ``url`` of the source distribution, ``place``
            where it was built, and ``requirements``, the pinned build requirements, separated by spaces.
    """

    name: str
    version: str
    file: LockedFile
    index: str = "pypi"
    requested_by: tuple[str, ...] = ()
    requires_python: str = ""
    yanked: bool = False
    built_from: Mapping[str, str] = field(default_factory=dict)


@record
class LockedImage:
    """One platform of an image.

    Attributes:
        name: plain ``repository:tag`` for the site.
        source: as in the spec.
        source_digest: digest of what the source named (an index or a manifest).
        manifest: the single-platform OCI or docker manifest, a blob.
        config: its configuration, a blob.
        layers: from the bottom up, with the blob of each.
        blobs: the blobs of `layers`, in the same order, each once.
        platform: ``linux/amd64`` and the like.
        dockerfile: what it was built from at the office; empty for an image that came as it is. One that was built
            comes again from the cache only; building it elsewhere may give another one.
    """

    name: str
    source: str
    source_digest: str
    manifest: LockedFile
    config: LockedFile
    layers: tuple[Layer, ...]
    blobs: tuple[LockedFile, ...]
    platform: str
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    require_cuda: str = ""
    dockerfile: str = ""


@record
class WheelSettings:
    """What the wheels were resolved for.

    Attributes:
        python: as ``3.11``; platform: as ``linux_x86_64``; glibc: the highest that wheels may ask for.
        resolver: for people, such as ``pip-tools 7.6.2, pip 26.3, in image sha256:…``.
        indexes: URL by name, of those that packages are bound to.
    """

    python: str
    platform: str
    glibc: str = ""
    resolver: str = ""
    indexes: Mapping[str, str] = field(default_factory=dict)


@record
class BundleLock:
    """Everything pinned.

    Attributes:
        lock_version: of this document.
        created: seconds since the epoch; the bundle's time unless SOURCE_DATE_EPOCH is set.
        spec: the spec it was made from, with the version filled in.
        spec_sha256: of the spec's canonical form; a changed spec makes the lock stale.
        profile: the target, in full.
        wheels: closure of the spec's requirements, plus pip's own wheel (`pip`) that installs them on the site.
    """

    lock_version: int
    created: int
    tool: str
    spec: BundleSpec
    spec_sha256: str
    profile: HardwareProfile
    models: tuple[LockedModel, ...]
    wheels: tuple[LockedWheel, ...] = ()
    wheel_settings: WheelSettings | None = None
    images: tuple[LockedImage, ...] = ()

    def items(self) -> tuple[LockedFile, ...]:
        """Every file to fetch, each hash once, largest last so that small failures show early."""
        found: dict[str, LockedFile] = {}
        for model in self.models:
            found.update((file.sha256, file) for file in model.files)
        found.update((wheel.file.sha256, wheel.file) for wheel in self.wheels)
        for image in self.images:
            found.update((blob.sha256, blob) for blob in (image.manifest, image.config, *image.blobs))
        return tuple(sorted(found.values(), key=lambda item: (item.size, item.sha256)))
