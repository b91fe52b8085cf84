"""Indexes, manifests and configurations of images: bytes in, records out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airbundle.contract.lock import LockedFile, LockedImage
from airbundle_onsite.contract.artifacts import Layer
from airbundle_onsite.contract.names import check_digest
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
ACCEPT = ", ".join((OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST))
_LAYERS = {OCI_LAYER, f"{OCI_LAYER}+gzip", f"{OCI_LAYER}+zstd", DOCKER_LAYER, f"{DOCKER_LAYER}.gzip"}
_DEFAULT_VARIANTS = {"arm64": "v8", "arm": "v7"}


@record
class Descriptor:
    """A blob as a manifest names it; `size` in bytes."""

    media_type: str
    digest: str
    size: int

    @property
    def sha256(self) -> str:
        return self.digest.removeprefix("sha256:")


@record
class Manifest:
    """One platform's image."""

    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]


@record
class Config:
    """What a configuration says; see `LockedImage`."""

    platform: str
    diff_ids: tuple[str, ...]
    user: str
    entrypoint: tuple[str, ...]
    require_cuda: str


@record
class Origin:
    """How an image's blobs are fetched again: the `LockedFile.origin` of every one."""

    fields: Mapping[str, str]

    def file(self, descriptor: Descriptor) -> LockedFile:
        return LockedFile(descriptor.digest, descriptor.sha256, descriptor.size, dict(self.fields))

    def manifest(self, data: bytes, sha256: str, media_type: str) -> LockedFile:
        return LockedFile(f"sha256:{sha256}", sha256, len(data), {**self.fields, "manifest": media_type})

    def unpacked(self, packed: Descriptor, plain: Descriptor) -> LockedFile:
        """A layer that is fetched in one form and kept in another."""
        fields = {"zstd": packed.digest, "zstd_size": str(packed.size)}
        return LockedFile(plain.digest, plain.sha256, plain.size, {**self.fields, **fields})

    def made(self, data: bytes, sha256: str) -> LockedFile:
        """A manifest that no source has: its text is its own origin."""
        fields = {"source": self.fields["source"], "document": data.decode()}
        return LockedFile(f"sha256:{sha256}", sha256, len(data), fields)


def load(data: bytes, name: str) -> dict[str, Any]:
    """Parse a document. Raises FetchError when it is not a JSON object."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FetchError(f"{name}: its manifest is not JSON", remedy="is this really a registry?") from error
    if not isinstance(value, dict):
        raise FetchError(f"{name}: its manifest is not a JSON object", remedy="is this really a registry?")
    return value


def media_type_of(document: Mapping[str, Any], announced: str) -> str:
    """The document's own media type, else the one it was served with, else by its form."""
    own = str(document.get("mediaType") or announced.partition(";")[0].strip())
    if own in (OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST) or document.get("schemaVersion") == 1:
        return own
    return OCI_INDEX if "manifests" in document else OCI_MANIFEST if "layers" in document else own


def is_index(media_type: str) -> bool:
    return media_type in (OCI_INDEX, DOCKER_INDEX)


def is_attestation(entry: Mapping[str, Any]) -> bool:
    """Whether an index entry is a statement about an image, not an image."""
    annotated = "vnd.docker.reference.type" in _object(entry.get("annotations"))
    return annotated or stated_platform(entry).startswith("unknown/")


def stated_platform(entry: Mapping[str, Any]) -> str:
    """The platform that an index entry names; empty when it names none."""
    return _platform(_object(entry.get("platform")))


def choose_platform(index: Mapping[str, Any], platform: str, name: str) -> Descriptor:
    """The one manifest for a platform; attestations and entries without a platform do not count.

    Raises:
        FetchError: naming the platforms that there are.
    """
    found: list[str] = []
    for entry in map(_object, _array(index.get("manifests"))):
        if is_attestation(entry):
            continue
        text = stated_platform(entry)
        if text and same_platform(text, platform):
            return read_descriptor(entry, name)
        found.append(text or "one without a platform")
    raise FetchError(
        f"{name}: has no image for {platform}",
        details=[f"has {text}" for text in found],
        remedy="name another image, or another [image] platform",
    )


def read_manifest(document: Mapping[str, Any], media_type: str, name: str) -> Manifest:
    """Read one platform's manifest.

    Raises:
        FetchError: schema 1, something that is not a container image, foreign layers.
    """
    if document.get("schemaVersion") == 1 or "manifest.v1" in media_type.replace("oci.image.manifest.v1", ""):
        raise FetchError(
            f"{name}: a manifest of schema 1, which docker gave up",
            remedy="pull it and push it again with a docker from this decade, then name that image",
        )
    if media_type not in (OCI_MANIFEST, DOCKER_MANIFEST):
        raise FetchError(f"{name}: a document of type {media_type!r:.100}, not an image", remedy="name an image")
    try:
        config = read_descriptor(document["config"], name)
        layers = tuple(read_descriptor(layer, name) for layer in document["layers"])
    except (KeyError, TypeError) as error:
        raise FetchError(f"{name}: its manifest lacks {error}", remedy="push the image again") from error
    if config.media_type not in (OCI_CONFIG, DOCKER_CONFIG):
        raise FetchError(f"{name}: holds {config.media_type!r:.100}, not a container image", remedy="name an image")
    foreign = [layer for layer in layers if "foreign" in layer.media_type or "nondistributable" in layer.media_type]
    if foreign:
        raise FetchError(
            f"{name}: {len(foreign)} of its layers may not be distributed and are not in the registry",
            details=[layer.digest for layer in foreign],
            remedy="use an image without foreign layers",
        )
    odd = [f"{layer.digest}: {layer.media_type}" for layer in layers if layer.media_type not in _LAYERS]
    if odd:
        raise FetchError(f"{name}: layers of an unknown type", details=odd, remedy="push it as gzip layers")
    return Manifest(media_type, config, layers)


def read_config(data: bytes, manifest: Manifest, platform: str, name: str) -> Config:
    """Read a configuration and hold it against the manifest and the platform wanted.

    Raises:
        FetchError: another platform, or not as many layers.
    """
    document = load(data, name)
    inner, own = _object(document.get("config")), _platform(document)
    if not same_platform(own, platform):
        raise FetchError(
            f"{name}: an image for {own or 'no platform'}, needed is {platform}", remedy="name another image"
        )
    diff_ids = tuple(map(str, _array(_object(document.get("rootfs")).get("diff_ids"))))
    if len(diff_ids) != len(manifest.layers):
        raise FetchError(
            f"{name}: {len(manifest.layers)} layers, its configuration tells of {len(diff_ids)}",
            remedy="the image is damaged: push it again",
        )
    variables = dict(str(item).partition("=")[::2] for item in _array(inner.get("Env")))
    entrypoint = inner.get("Entrypoint")
    return Config(
        platform=own,
        diff_ids=diff_ids,
        user=str(inner.get("User") or ""),
        entrypoint=(entrypoint,) if isinstance(entrypoint, str) else tuple(map(str, _array(entrypoint))),
        require_cuda=variables.get("NVIDIA_REQUIRE_CUDA", ""),
    )


def locked_image(
    name: str,
    source: str,
    source_digest: str,
    manifest_file: LockedFile,
    manifest: Manifest,
    config: Config,
    config_file: LockedFile,
    blobs: Mapping[str, LockedFile],
) -> LockedImage:
    """Put an image's lock together; `blobs` has the file of each layer, by digest."""
    return LockedImage(
        name=name,
        source=source,
        source_digest=source_digest,
        manifest=manifest_file,
        config=config_file,
        layers=tuple(
            Layer(layer.digest, layer.size, diff_id, layer.media_type)
            for layer, diff_id in zip(manifest.layers, config.diff_ids, strict=True)
        ),
        blobs=tuple(blobs.values()),
        platform=config.platform,
        user=config.user,
        entrypoint=config.entrypoint,
        require_cuda=config.require_cuda,
    )


def write_manifest(config: Descriptor, layers: Sequence[Descriptor]) -> bytes:
    """An OCI manifest for blobs that came without one; the same blobs always give the same bytes."""
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": _plain(config),
        "layers": [_plain(layer) for layer in layers],
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def as_oci(descriptor: Descriptor) -> Descriptor:
    """The same blob under OCI's media type, so that a manifest does not mix two families of them."""
    names = {DOCKER_CONFIG: OCI_CONFIG, DOCKER_LAYER: OCI_LAYER, f"{DOCKER_LAYER}.gzip": f"{OCI_LAYER}+gzip"}
    media_type = names.get(descriptor.media_type, descriptor.media_type)
    return Descriptor(media_type, descriptor.digest, descriptor.size)


def _plain(descriptor: Descriptor) -> dict[str, Any]:
    return {"mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size}


def read_descriptor(entry: Mapping[str, Any], name: str) -> Descriptor:
    """Read a descriptor. Raises FetchError for a digest that is not SHA-256, or a size that is none."""
    entry = _object(entry)
    digest, size = str(entry.get("digest")), entry.get("size")
    try:
        check_digest(digest)
    except ValueError as error:
        raise FetchError(f"{name}: {error}", remedy="only SHA-256 is supported: push the image again") from error
    if type(size) is not int or size < 0:
        raise FetchError(f"{name}: {digest} claims {size!r:.40} bytes", remedy="push the image again")
    return Descriptor(str(entry.get("mediaType", "")), digest, size)


def _platform(stated: Mapping[str, Any]) -> str:
    system, architecture, variant = (str(stated.get(key) or "") for key in ("os", "architecture", "variant"))
    if not system and not architecture:
        return ""
    return "/".join(part for part in (system, architecture, variant) if part)


def _object(value: Any) -> Mapping[str, Any]:
    """What stands where an object should; an empty one for anything else, which then lacks what is needed."""
    return value if isinstance(value, dict) else {}


def _array(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def same_platform(found: str, wanted: str) -> bool:
    """Whether two platforms are one; ``linux/arm64`` means its variant v8."""
    return _with_variant(found) == _with_variant(wanted)


def _with_variant(platform: str) -> tuple[str, ...]:
    parts = platform.split("/")
    default = _DEFAULT_VARIANTS.get(parts[1]) if len(parts) == 2 else None
    return (*parts, default) if default else tuple(parts)
