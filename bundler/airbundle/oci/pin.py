"""The last step of every image source: from a manifest that was found to a lock that every engine can load."""

from __future__ import annotations

from collections.abc import Callable

from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile, LockedImage
from airbundle.contract.spec import ImageTable
from airbundle.oci import documents
from airbundle.oci.documents import Config, Descriptor, Manifest, Origin
from airbundle.oci.layers import Fetch, is_zstd, packed_form, unpack
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError
from airbundle_onsite.system import Talk
from airbundle_onsite.units import human_bytes

Advance = Callable[[int], None]


@record
class Found:
    """One platform's image as its source has it.

    Attributes:
        image: the spec's table.
        name: for the site, when the table gives none.
        label: for messages.
        source_digest: of what the source named.
        data: the manifest's bytes.
        manifest: the same, read.
        origin: of every blob.
        made: whether the manifest was written here, because the source has none.
    """

    image: ImageTable
    name: str
    label: str
    source_digest: str
    data: bytes
    manifest: Manifest
    origin: Origin
    made: bool = False


def pin(found: Found, platform: str, fetch: Fetch, cache: Cache, talk: Talk) -> LockedImage:
    """Lock an image; its configuration is fetched now, and so are zstd layers.

    Raises:
        FetchError: another platform, layers that do not agree with the configuration, something not to be had.
    """
    label, manifest, origin = found.label, found.manifest, found.origin
    config_file = origin.file(manifest.config)
    fetch(config_file)
    config = documents.read_config(cache.path(config_file.sha256).read_bytes(), manifest, platform, label)
    _check_plain_layers(manifest, config, label)
    blobs = {layer.digest: origin.file(layer) for layer in manifest.layers}
    data, made = found.data, found.made
    if any(is_zstd(layer.media_type) for layer in manifest.layers):
        manifest, blobs = _unpacked(found, config, fetch, cache, talk)
        data, made = documents.write_manifest(documents.as_oci(manifest.config), manifest.layers), True
    sha256 = cache.add_bytes(data)
    manifest_file = origin.made(data, sha256) if made else origin.manifest(data, sha256, manifest.media_type)
    return documents.locked_image(
        found.image.name or found.name,
        found.image.source,
        found.source_digest,
        manifest_file,
        manifest,
        config,
        config_file,
        blobs,
    )


def fetch_made(item: LockedFile, fetch: Fetch, cache: Cache, advance: Advance, talk: Talk) -> bool:
    """Fetch what no source has as it is locked: manifests written here, and unpacked layers.

    Args:
        item: wanted.
        fetch: the source's own way, for what a layer is unpacked from.

    Returns:
        Whether that was the case; if not, the source fetches the item itself.
    """
    packed = packed_form(item)
    if "document" in item.origin:
        cache.add_bytes(item.origin["document"].encode())
    elif packed is not None:
        unpack(packed, item.path, fetch, cache, item.path, talk)
    else:
        return False
    advance(item.size)
    return True


def _check_plain_layers(manifest: Manifest, config: Config, label: str) -> None:
    """A plain layer's digest is its diff id; docker would find out at the site."""
    for layer, diff_id in zip(manifest.layers, config.diff_ids, strict=True):
        if layer.media_type in (documents.OCI_LAYER, documents.DOCKER_LAYER) and layer.digest != diff_id:
            raise FetchError(
                f"{label}: a layer has other bytes than its configuration names",
                details=(f"found {layer.digest}", f"needed {diff_id}"),
                remedy="the image is damaged where it comes from: pull, push or save it again",
            )


def _unpacked(
    found: Found, config: Config, fetch: Fetch, cache: Cache, talk: Talk
) -> tuple[Manifest, dict[str, LockedFile]]:
    """The manifest and the blobs with every zstd layer as plain tar."""
    layers: list[Descriptor] = []
    blobs: dict[str, LockedFile] = {}
    before = after = count = 0
    for layer, diff_id in zip(found.manifest.layers, config.diff_ids, strict=True):
        if is_zstd(layer.media_type):
            plain = unpack(found.origin.file(layer), diff_id, fetch, cache, found.label, talk)
            blobs[plain.digest] = found.origin.unpacked(layer, plain)
            before, after, count = before + layer.size, after + plain.size, count + 1
        else:
            plain = documents.as_oci(layer)
            blobs[plain.digest] = found.origin.file(layer)
        layers.append(plain)
    talk.say(
        f"{found.label}: {count} zstd layers, which docker before 23 cannot load, are packed as plain tar "
        f"({human_bytes(after)} instead of {human_bytes(before)}); the image's id stays"
    )
    return Manifest(documents.OCI_MANIFEST, found.manifest.config, tuple(layers)), blobs
