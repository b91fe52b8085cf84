"""BundleManifest: the content of bundle.json, and so the index of everything in a bundle."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Literal, Optional

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.launch import LaunchPlan, RuntimeKind, SmokeTest
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import record

SCHEMA_VERSION = 1
_HEX = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")

Role = Literal["image", "wheel", "model", "config", "license"]
ModelRole = Literal["model", "draft", "adapter", "projector", "vocabulary"]


def check_name(name: str) -> None:
    """Raise ValueError unless `name` can be a bundle's name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"name {name!r}: 1 to 64 of a-z 0-9 . _ -, beginning and ending with a letter or digit")


def check_version(version: str) -> None:
    """Raise ValueError unless `version` can be a bundle's version."""
    if not _VERSION.fullmatch(version) or version in ("current", "seen.json"):
        raise ValueError(
            f"version {version!r}: 1 to 64 of A-Z a-z 0-9 . _ -, beginning and ending with a letter or digit"
        )


def _check_sha256(value: str) -> None:
    if not _HEX.fullmatch(value):
        raise ValueError(f"{value!r:.80} is not a SHA-256 in 64 lower-case hexadecimal digits")


def check_digest(value: str) -> None:
    """Raise ValueError unless `value` is ``sha256:`` and 64 hexadecimal digits."""
    if not _DIGEST.fullmatch(value):
        raise ValueError(f"{value!r:.80} is not a digest like sha256:<64 hexadecimal digits>")


@record
class Part:
    """One part of the payload.

    Attributes:
        name: ``payload.tar.000`` and so on, in order.
        size: bytes.
        sha256: of the whole part; the same as in SHA256SUMS.
        pieces: SHA-256 of each 64 MiB of it, in order; the last piece may be shorter.
    """

    name: str
    size: int
    sha256: str
    pieces: tuple[str, ...]

    def __post_init__(self) -> None:
        if not layout.PART_PATTERN.fullmatch(self.name):
            raise ValueError(f"part name {self.name!r:.80} is not like payload.tar.000")
        if self.size <= 0:
            raise ValueError(f"{self.name}: size {self.size} is not positive")
        for value in (self.sha256, *self.pieces):
            _check_sha256(value)
        wanted = -(-self.size // layout.PIECE_SIZE)
        if len(self.pieces) != wanted:
            raise ValueError(f"{self.name}: {len(self.pieces)} pieces listed, {wanted} needed for {self.size} bytes")


@record
class OuterFile:
    """A file beside bundle.json that is neither a part, the checksums nor the signature."""

    name: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        if not layout.is_outer_name(self.name):
            raise ValueError(f"file name {self.name!r:.80} may hold only A-Z a-z 0-9 . _ -")
        _check_sha256(self.sha256)


@record
class Segment:
    """A run of a file's bytes.

    Attributes:
        size: bytes.
        offset: where they begin, in the joined payload or in the base's file.
        base: SHA-256 of a file of the base release they come from; None when they are in the payload.
    """

    size: int
    offset: int
    base: Optional[str] = None

    @property
    def packed(self) -> int:
        """Bytes that it takes in the payload."""
        return 0 if self.base is not None else self.size


@record
class FileEntry:
    """A regular file of the payload.

    Attributes:
        path: inside the payload; relative and normalised.
        role: what it belongs to.
        size: bytes.
        sha256: of its content.
        segments: where its bytes are; together they make the file. Empty only for an empty file. Those in the payload
            follow each other there, in one entry of the tar.
    """

    path: str
    role: Role
    size: int
    sha256: str
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if not layout.is_payload_path(self.path):
            raise ValueError(f"path {self.path!r:.120} is not a plain relative path")
        _check_sha256(self.sha256)
        if self.size < 0 or any(segment.size <= 0 or segment.offset < 0 for segment in self.segments):
            raise ValueError(f"{self.path}: negative size or offset")
        if sum(segment.size for segment in self.segments) != self.size:
            raise ValueError(f"{self.path}: its segments do not add up to {self.size} bytes")
        position: Optional[int] = None
        for segment in self.segments:
            if segment.base is not None:
                _check_sha256(segment.base)
                continue
            if position not in (None, segment.offset):
                raise ValueError(f"{self.path}: its segments in the payload do not follow each other")
            position = segment.offset + segment.packed

    @property
    def from_base(self) -> bool:
        """Whether some of its bytes are the base's."""
        return any(segment.base is not None for segment in self.segments)

    @property
    def packed(self) -> int:
        """Bytes of its entry in the payload's tar."""
        return sum(segment.packed for segment in self.segments)

    @property
    def member(self) -> str:
        """Path of its entry in the payload's tar: its own, or another when that is not the whole file; empty when it
        has none, since the base has all of its bytes."""
        if not self.from_base:
            return self.path
        return layout.delta_path(self.sha256) if self.packed else ""

    @property
    def begins(self) -> Optional[int]:
        """Where the content of its entry begins in the joined payload; None when it has none."""
        return next((segment.offset for segment in self.segments if segment.base is None), None)


@record
class Layer:
    """A layer of an image: `digest` and `size` of the blob, `diff_id` of the uncompressed tar, and its media type."""

    digest: str
    size: int
    diff_id: str
    media_type: str

    def __post_init__(self) -> None:
        check_digest(self.digest)
        check_digest(self.diff_id)


@record
class ImageEntry:
    """A container image in images/.

    Attributes:
        name: plain ``repository:tag``, under which it is loaded and started.
        digest: of its manifest in the payload's OCI layout.
        source_digest: what the registry (or daemon) called it when it was locked.
        config_digest: of its configuration; what docker calls the image id.
        platform: ``linux/amd64`` and the like.
        layers: from the bottom up.
        size: bytes of all its blobs.
        user, entrypoint, env: from its configuration, for people and for checks.
        require_cuda: its NVIDIA_REQUIRE_CUDA, or empty.
    """

    name: str
    digest: str
    source_digest: str
    config_digest: str
    platform: str
    layers: tuple[Layer, ...]
    size: int
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    require_cuda: str = ""

    def __post_init__(self) -> None:
        for value in (self.digest, self.config_digest):
            check_digest(value)


@record
class WheelEntry:
    """A wheel in wheels/.

    Attributes:
        name: normalised project name.
        version: full version with any local part.
        path: inside the payload.
        sha256: of the file.
        index: where it came from: ``pypi`` for the client's default index, else a URL without credentials.
        requested_by: names of the projects that asked for it; ``spec`` for the bundle's spec.
    """

    name: str
    version: str
    path: str
    sha256: str
    index: str = "pypi"
    requested_by: tuple[str, ...] = ()


@record
class ModelEntry:
    """A model in models/.

    Attributes:
        served_name: its name in the API and its directory.
        format: of its weights.
        source: as the spec names it.
        revision: what the source was pinned to (commit, version, digest).
        files: paths inside the payload.
        entry: the file an engine is given when it wants one file (GGUF), inside the model's directory; else empty.
        size: bytes of all files.
        license: SPDX expression or the source's own words; empty when unknown.
        role: ``model`` is what is served; the others stand beside it.
        quantization: how the weights are stored: the method as engines call it, then details (``awq int4 g128``);
            empty for plain floating point.
        chat_template: whether it brings its own form of conversation.
        custom_code: Python files that the engine runs, each with where it comes from.
    """

    served_name: str
    format: Literal["gguf", "safetensors", "pytorch", "other"]
    source: str
    revision: str
    files: tuple[str, ...]
    size: int
    entry: str = ""
    license: str = ""
    role: ModelRole = "model"
    quantization: str = ""
    chat_template: bool = False
    custom_code: tuple[str, ...] = ()


@record
class Payload:
    """The parts, which joined in order are one plain tar.

    Attributes:
        size: bytes of the joined tar.
        parts: in order.
        piece_size: bytes of a piece.
    """

    size: int
    parts: tuple[Part, ...]
    piece_size: int = layout.PIECE_SIZE

    def __post_init__(self) -> None:
        if self.piece_size != layout.PIECE_SIZE:
            raise ValueError(f"piece_size {self.piece_size}: this version reads only {layout.PIECE_SIZE}")
        if sum(part.size for part in self.parts) != self.size:
            raise ValueError(f"the parts do not add up to the payload's {self.size} bytes")
        for index, part in enumerate(self.parts):
            if part.name != layout.part_name(index):
                raise ValueError(f"part {index} is called {part.name}, not {layout.part_name(index)}")


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
class BaseFile:
    """A file of the base that bytes are taken from. The site finds it by its content, whatever it is called there.

    Attributes:
        path: what it is called in the base, for people.
        size: bytes.
        sha256: of its content.
    """

    path: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        if not layout.is_payload_path(self.path):
            raise ValueError(f"path {self.path!r:.120} is not a plain relative path")
        _check_sha256(self.sha256)


@record
class BaseRelease:
    """A release that the site must have installed, since what it has was left out of this bundle.

    Attributes:
        name, version: how people know it.
        manifest_sha256: of its bundle.json.
        files: those of its files that this bundle's files take bytes from.
        layers: digests of this bundle's image layers that were left out: that release's images have them, above the
            same layers.
    """

    name: str
    version: str
    manifest_sha256: str
    files: tuple[BaseFile, ...] = ()
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name)
        check_version(self.version)
        _check_sha256(self.manifest_sha256)
        for digest in self.layers:
            check_digest(digest)

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"


@record
class Rollback:
    """What makes a bundle lead back from a newer release to an older one.

    Attributes:
        version: the newer one's.
        sequence: the newer one's. A site takes this bundle although its own sequence is lower, unless the site has
            seen a higher one than this.
    """

    version: str
    sequence: int

    def __post_init__(self) -> None:
        check_version(self.version)


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
        _check_unique("path", paths)
        _check_unique("file", [outer.name for outer in self.outer])
        known = set(paths)
        listed = [wheel.path for wheel in self.wheels] + [path for model in self.models for path in model.files]
        missing = sorted(path for path in listed if path not in known)
        if missing:
            raise ValueError(f"listed as a wheel or model, but not among the files: {', '.join(missing[:5])}")
        _check_bases(self)


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


def _check_unique(what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        folded = name.casefold()
        if folded in seen:
            raise ValueError(f"{what} {name!r:.120} is listed twice (case does not distinguish)")
        seen.add(folded)
