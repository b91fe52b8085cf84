"""The releases a bundle builds on: one it takes bytes from, and one it leads back from."""

from __future__ import annotations

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.names import check_digest, check_name, check_sha256, check_version
from airbundle_onsite.contract.record import record


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
        check_sha256(self.sha256)


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
        check_sha256(self.manifest_sha256)
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
