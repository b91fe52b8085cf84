"""Finds one image in an OCI image layout, which may list several, for several platforms, and not hold them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from airbundle.oci import documents
from airbundle.oci.documents import Descriptor, Manifest
from airbundle.oci.reference import is_same, parse
from airbundle.oci.store import Store
from airbundle_onsite.contract.layout import blob_path as payload_path
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError, UsageError

_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_DEEPEST = 4  # indexes inside indexes


@record
class Listed:
    """An image that an index lists.

    Attributes:
        entry: its manifest.
        names: what the layout calls it.
        platform: as the index, else the configuration, has it; empty when nothing here tells.
    """

    entry: Descriptor
    names: tuple[str, ...]
    platform: str


@record
class LayoutImage:
    """One image of a layout; every blob of it is there, in the size announced.

    Attributes:
        digest: of its manifest, `data`.
        name: what the layout calls it; empty when it has no name.
    """

    digest: str
    data: bytes
    manifest: Manifest
    name: str


def blob_path(digest: str) -> str:
    """Where a layout keeps a blob."""
    return payload_path(digest).partition("/")[2]


def find_image(store: Store, wanted: str, platform: str) -> LayoutImage:
    """The image of that name and platform.

    Args:
        store: the layout.
        wanted: its name in the layout (whole, or just the tag that the layout keeps); empty for the only one.
        platform: ``linux/amd64`` and the like.

    Raises:
        FetchError: there is none, or blobs of it are missing, each named.
        UsageError: there are several.
    """
    if store.size("index.json") is None:
        raise FetchError(
            f"{store.label}: no index.json, so not an OCI image layout",
            remedy="for what docker save writes, use docker-archive:PATH; for a layout, name its own directory",
        )
    listed = list(_walk(store, documents.load(store.read("index.json"), store.label), (), 0))
    named = [image for image in listed if not wanted or any(_is_named(name, wanted) for name in image.names)]
    if not named:
        raise FetchError(
            f"{store.label}: has no image {wanted!r}" if wanted else f"{store.label}: lists no image",
            details=[f"has {text}" for text in dict.fromkeys(map(_told, listed))],
            remedy="name one of these after the path, oci:PATH:NAME",
        )
    fitting: dict[str, Listed] = {}
    for image in named:
        if image.platform and documents.same_platform(image.platform, platform):
            fitting.setdefault(image.entry.digest, image)  # an image with two names is listed twice
    if not fitting:
        raise FetchError(
            f"{store.label}: has no image for {platform}",
            details=[f"has {_told(image)}" for image in named],
            remedy="save the image for that platform, or name another [image] platform",
        )
    if len(fitting) > 1:
        raise UsageError(
            f"{store.label}: {len(fitting)} images for {platform}",
            details=[_told(image) for image in fitting.values()],
            remedy="name one after the path, oci:PATH:NAME",
        )
    (image,) = fitting.values()
    return _whole(store, image, named)


def default_name(image: LayoutImage, path: str) -> str:
    """For the site: the name that the layout has, its tag behind the file's name, or that with the digest's begin."""
    for text in (image.name, f"{_stem(path)}:{image.name}", f"{_stem(path)}:{image.digest[7:19]}"):
        try:
            if ":" in text.rpartition("/")[2] and not text.endswith(":"):
                return parse(text).site_name
        except UsageError:
            continue
    return f"image:{image.digest[7:19]}"


def _stem(path: str) -> str:
    return PurePath(path).name.lower().partition(".")[0]


def _walk(store: Store, index: Mapping[str, Any], names: tuple[str, ...], depth: int) -> Iterator[Listed]:
    for raw in index.get("manifests") or ():
        if documents.is_attestation(raw):
            continue
        entry = documents.read_descriptor(raw, store.label)
        notes = raw.get("annotations") or {}
        own = tuple(str(notes[key]) for key in _NAMES if notes.get(key)) or names
        document = _document(store, entry)
        if documents.is_index(entry.media_type) or (document and "manifests" in document):
            if document and depth < _DEEPEST:
                yield from _walk(store, document, own, depth + 1)
        else:
            yield Listed(entry, own, documents.stated_platform(raw) or _configured(store, document))


def _document(store: Store, entry: Descriptor) -> dict[str, Any] | None:
    """A manifest or index, if it is there."""
    path = blob_path(entry.digest)
    return documents.load(store.read(path), store.label) if store.size(path) is not None else None


def _configured(store: Store, document: Mapping[str, Any] | None) -> str:
    """The platform of an entry that names none: what its configuration says."""
    raw = (document or {}).get("config")
    if not isinstance(raw, Mapping):
        return ""
    config = _document(store, documents.read_descriptor(raw, store.label))
    return documents.stated_platform({"platform": config}) if config else ""


def _is_named(name: str, wanted: str) -> bool:
    return name == wanted or is_same(name, wanted) or (":" not in name and wanted.rpartition(":")[2] == name)


def _told(image: Listed) -> str:
    return f"{' = '.join(image.names) or 'one without a name'} for {image.platform or 'an unknown platform'}"


def _whole(store: Store, image: Listed, named: list[Listed]) -> LayoutImage:
    """Read the chosen one and see that all of it is there."""
    missing = _missing(store, image.entry)
    if missing:
        others = [other for other in named if other is not image and not _missing(store, other.entry)]
        raise FetchError(
            f"{store.label}: lists {_told(image)}, but {len(missing)} of its blobs are not there or cut short",
            details=[*missing, *(f"whole here: {_told(other)}" for other in others)],
            remedy=f"save it again with the platform named (docker pull --platform {image.platform}, then save)",
        )
    data = store.read(blob_path(image.entry.digest))
    document = documents.load(data, store.label)
    media_type = documents.media_type_of(document, image.entry.media_type)
    manifest = documents.read_manifest(document, media_type, store.label)
    return LayoutImage(image.entry.digest, data, manifest, image.names[0] if image.names else "")


def _missing(store: Store, entry: Descriptor) -> list[str]:
    """Blobs of an image that are not there in the size announced."""
    document = _document(store, entry)
    if document is None:
        return [f"{entry.digest} (manifest)"]
    raw = [document.get("config"), *(document.get("layers") or ())]
    blobs = [documents.read_descriptor(each, store.label) for each in raw if isinstance(each, Mapping)]
    return [f"{blob.digest} ({blob.size} bytes)" for blob in blobs if store.size(blob_path(blob.digest)) != blob.size]
