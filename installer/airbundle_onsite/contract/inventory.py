"""Inventory: what a site has installed, exported so that a bundle can be built that leaves it out."""

from __future__ import annotations

from airbundle_onsite.contract.names import check_digest, check_name, check_version
from airbundle_onsite.contract.payload import Role
from airbundle_onsite.contract.record import record

SCHEMA_VERSION = 1


@record
class TensorFact:
    """A tensor of a file: its name, where its bytes begin, how many there are, and their SHA-256."""

    name: str
    offset: int
    size: int
    sha256: str


@record
class InventoryFile:
    """A file of an installed release.

    Attributes:
        path, role, size, sha256: as in the release's manifest; the size in bytes.
        tensors: of a safetensors or GGUF file, where they were asked for.
    """

    path: str
    role: Role
    size: int
    sha256: str
    tensors: tuple[TensorFact, ...] = ()


@record
class InventoryImage:
    """An image of an installed release: its name, the digest of its configuration, diff ids from the bottom up."""

    name: str
    config_digest: str
    layers: tuple[str, ...]

    def __post_init__(self) -> None:
        for digest in (self.config_digest, *self.layers):
            check_digest(digest)


@record
class InventoryRelease:
    """An installed release.

    Attributes:
        name, version, sequence, manifest_sha256: as in its record.
        active: whether it is the version that is in use.
        files: those that are there; image files are in the container engine, and not listed.
        images: those that the container engine has.
    """

    name: str
    version: str
    sequence: int
    manifest_sha256: str
    active: bool
    files: tuple[InventoryFile, ...] = ()
    images: tuple[InventoryImage, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name)
        check_version(self.version)


@record
class Inventory:
    """Everything installed under one root.

    Attributes:
        schema_version: of this document.
        taken: seconds since the epoch.
        tool: ``airbundle <version>``.
        releases: by name, the oldest sequence first.
    """

    schema_version: int
    taken: int
    tool: str
    releases: tuple[InventoryRelease, ...] = ()

    def __post_init__(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(f"schema_version {self.schema_version}: this tool reads version {SCHEMA_VERSION}")
