"""From a lock and a warm cache to the payload's members and the manifest's entries for them."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from airbundle.assemble import Member, bytes_member
from airbundle.cache import Cache
from airbundle.contract.lock import BundleLock, LockedFile, LockedImage, LockedModel, LockedWheel
from airbundle.data import license_file
from airbundle.oci.reference import qualified
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.artifacts import ImageEntry, ModelEntry, WheelEntry
from airbundle_onsite.contract.base import BaseRelease, Rollback
from airbundle_onsite.contract.record import encode, record
from airbundle_onsite.errors import FetchError

_LICENSE_NAME = re.compile(r"(.*/)?[^/]*\.dist-info/((licenses/.+)|((LICEN[CS]E|COPYING|NOTICE|AUTHORS)[^/]*))", re.I)
_MODEL_LICENSE = re.compile(r"(LICEN[CS]E|NOTICE|USE_POLICY)[^/]*", re.I)
_GZIP_TYPES = ("+gzip", ".tar.gzip")


@record
class Contents:
    """Everything the payload holds, in its order: images, wheels, models, config, licences.

    Attributes:
        members: with unique paths.
        images, wheels, models: the manifest's entries.
        wheel_bytes: bytes of all wheels when unpacked.
        image_bytes: bytes of all layers when unpacked, as far as their headers tell.
        wheel_tags: file tags of the wheels that are not pure Python.
        bases, rollback: of a bundle that leaves out what the site has; see `airbundle_onsite.contract.base`.
    """

    members: tuple[Member, ...]
    images: tuple[ImageEntry, ...]
    wheels: tuple[WheelEntry, ...]
    models: tuple[ModelEntry, ...]
    wheel_bytes: int
    image_bytes: int
    wheel_tags: tuple[str, ...]
    bases: tuple[BaseRelease, ...] = ()
    rollback: Rollback | None = None


def collect(lock: BundleLock, cache: Cache, config: dict[str, bytes]) -> Contents:
    """Gather the payload of a lock whose files are all in the cache.

    Args:
        lock: what to pack.
        cache: where it is.
        config: files for config/, by name.

    Raises:
        FetchError: a wheel is not a readable archive.
    """
    members = [
        *image_members(lock.images, cache),
        *_wheel_members(lock.wheels, cache),
        *_model_members(lock.models, cache),
        *(bytes_member(f"{layout.CONFIG}/{name}", "config", data) for name, data in sorted(config.items())),
        *_license_members(lock, cache),
    ]
    return Contents(
        tuple(members),
        tuple(_image_entry(image) for image in lock.images),
        tuple(_wheel_entry(wheel) for wheel in lock.wheels),
        tuple(_model_entry(model) for model in lock.models),
        sum(_unpacked_wheel(wheel, cache) for wheel in lock.wheels),
        unpacked_images(lock.images, cache),
        tuple(sorted({tag for wheel in lock.wheels if (tag := wheel_tag(wheel.file.path)).split("-")[-1] != "any"})),
    )


def packed_files(lock: BundleLock, cache: Cache) -> Iterator[Member]:
    """What a lock alone tells of the payload, whether the cache has it or not: blobs, wheels and model files."""
    yield from _blob_members(lock.images, cache)
    yield from _wheel_members(lock.wheels, cache)
    yield from _model_members(lock.models, cache)


def wheel_tag(filename: str) -> str:
    """``cp310-abi3-manylinux_2_17_x86_64`` of a wheel's file name; compressed tag sets stay as they are."""
    return "-".join(filename.removesuffix(".whl").split("-")[-3:])


def _cached(item: LockedFile, cache: Cache) -> Path:
    return cache.path(item.sha256)


def image_members(images: tuple[LockedImage, ...], cache: Cache) -> Iterator[Member]:
    """images/: an OCI layout with each blob once, however many images have it; and a docker archive at once."""
    if not images:
        return
    yield from _blob_members(images, cache)
    yield bytes_member(f"{layout.IMAGES}/index.json", "image", _oci_index(images, cache))
    yield bytes_member(f"{layout.IMAGES}/manifest.json", "image", _docker_index(images))
    yield bytes_member(f"{layout.IMAGES}/oci-layout", "image", b'{"imageLayoutVersion":"1.0.0"}')


def _blob_members(images: tuple[LockedImage, ...], cache: Cache) -> Iterator[Member]:
    blobs: dict[str, LockedFile] = {}
    for image in images:
        blobs.update((blob.sha256, blob) for blob in (*image.blobs, image.config, image.manifest))
    # Largest first: a store that is too small then fails at once, not after everything else went in.
    for blob in sorted(blobs.values(), key=lambda item: (-item.size, item.sha256)):
        path = layout.blob_path(f"sha256:{blob.sha256}")
        yield Member(path, "image", blob.size, blob.sha256, _cached(blob, cache))


def _oci_index(images: tuple[LockedImage, ...], cache: Cache) -> bytes:
    manifests = []
    for image in images:
        document = json.loads(_cached(image.manifest, cache).read_bytes())
        platform = dict(zip(("os", "architecture", "variant"), image.platform.split("/"), strict=False))
        manifests.append(
            {
                "mediaType": document.get("mediaType", "application/vnd.oci.image.manifest.v1+json"),
                "digest": f"sha256:{image.manifest.sha256}",
                "size": image.manifest.size,
                "platform": platform,
                "annotations": {
                    "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
                    "io.containerd.image.name": qualified(image.name),
                },
            }
        )
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}
    return json.dumps(index, sort_keys=True, separators=(",", ":")).encode()


def _docker_index(images: tuple[LockedImage, ...]) -> bytes:
    """What makes the layout a docker archive too, so that by hand ``tar -C images -cf - . | docker load`` works.

    Names have their host, for podman would put ``localhost/`` before one without; docker shows them as usual.
    """
    entries = [
        {
            "Config": f"blobs/sha256/{image.config.sha256}",
            "RepoTags": [qualified(image.name)],
            "Layers": [f"blobs/{layer.digest.replace(':', '/')}" for layer in image.layers],
        }
        for image in images
    ]
    return json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()


def _wheel_members(wheels: tuple[LockedWheel, ...], cache: Cache) -> Iterator[Member]:
    for wheel in wheels:
        path = f"{layout.WHEELS}/{wheel.file.path}"
        yield Member(path, "wheel", wheel.file.size, wheel.file.sha256, _cached(wheel.file, cache))
    if wheels:
        yield bytes_member(layout.REQUIREMENTS, "wheel", render_requirements(wheels))


def render_requirements(wheels: Iterable[LockedWheel]) -> bytes:
    """requirements.txt for ``pip install --no-index --require-hashes``; pip itself is left out."""
    lines = [
        f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.file.sha256}"
        for wheel in sorted(wheels, key=lambda item: item.name)
        if wheel.name != "pip"
    ]
    return ("\n".join(lines) + "\n").encode()


def _model_members(models: tuple[LockedModel, ...], cache: Cache) -> Iterator[Member]:
    for model in models:
        for file in model.files:
            path = layout.model_path(model.served_name, file.path)
            yield Member(path, "model", file.size, file.sha256, _cached(file, cache))


def _license_members(lock: BundleLock, cache: Cache) -> Iterator[Member]:
    yield bytes_member(f"{layout.LICENSES}/airbundle/LICENSE", "license", license_file().read_bytes())
    for wheel in lock.wheels:
        for name, data in _wheel_licenses(wheel, cache):
            yield bytes_member(f"{layout.LICENSES}/{wheel.name}-{wheel.version}/{name}", "license", data)
    for model in lock.models:
        for file in model.files:
            if _MODEL_LICENSE.fullmatch(Path(file.path).name):
                path = f"{layout.LICENSES}/model-{model.served_name}/{file.path}"
                yield Member(path, "license", file.size, file.sha256, _cached(file, cache))


def _wheel_licenses(wheel: LockedWheel, cache: Cache) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    with _open_wheel(wheel, cache) as archive:
        for info in sorted(archive.infolist(), key=lambda item: item.filename):
            if info.is_dir() or not _LICENSE_NAME.fullmatch(info.filename):
                continue
            name = info.filename.partition(".dist-info/")[2].removeprefix("licenses/")
            if layout.is_payload_path(name) and name.casefold() not in seen:
                seen.add(name.casefold())
                yield name, archive.read(info)


def _open_wheel(wheel: LockedWheel, cache: Cache) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(_cached(wheel.file, cache))
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheel.file.path} is not a wheel: {error}", remedy="lock again without it") from error


def _unpacked_wheel(wheel: LockedWheel, cache: Cache) -> int:
    with _open_wheel(wheel, cache) as archive:
        return sum(info.file_size for info in archive.infolist())


def unpacked_images(images: Iterable[LockedImage], cache: Cache, absent: Collection[str] = ()) -> int:
    """Bytes of all layers when unpacked, but for those whose digests are `absent`."""
    return sum(
        _unpacked_layer(image, index, cache)
        for image in images
        for index, layer in enumerate(image.layers)
        if layer.digest not in absent
    )


def _unpacked_layer(image: LockedImage, index: int, cache: Cache) -> int:
    """Bytes of a layer's tar. gzip's trailer holds them modulo 4 GiB (RFC 1952); never less than the blob."""
    layer, blob = (
        image.layers[index],
        next(b for b in image.blobs if f"sha256:{b.sha256}" == image.layers[index].digest),
    )
    if not layer.media_type.endswith(_GZIP_TYPES):
        return blob.size
    with _cached(blob, cache).open("rb") as handle:
        handle.seek(-4, 2)
        size: int = struct.unpack("<I", handle.read(4))[0]
    while size < blob.size:
        size += 1 << 32
    return size


def _image_entry(image: LockedImage) -> ImageEntry:
    blobs = {blob.sha256: blob.size for blob in (*image.blobs, image.config, image.manifest)}
    return ImageEntry(
        name=image.name,
        digest=f"sha256:{image.manifest.sha256}",
        source_digest=image.source_digest,
        config_digest=f"sha256:{image.config.sha256}",
        platform=image.platform,
        layers=image.layers,
        size=sum(blobs.values()),
        user=image.user,
        entrypoint=image.entrypoint,
        require_cuda=image.require_cuda,
    )


def _wheel_entry(wheel: LockedWheel) -> WheelEntry:
    path = f"{layout.WHEELS}/{wheel.file.path}"
    return WheelEntry(wheel.name, wheel.version, path, wheel.file.sha256, wheel.index, wheel.requested_by)


def _model_entry(model: LockedModel) -> ModelEntry:
    return ModelEntry(
        served_name=model.served_name,
        format=model.format,
        source=model.source,
        revision=model.revision,
        files=tuple(layout.model_path(model.served_name, file.path) for file in model.files),
        size=sum(file.size for file in model.files),
        entry=model.entry,
        license=model.license,
        role=model.role,
        quantization=model.quantization,
        chat_template=model.chat_template,
        custom_code=model.custom_code,
    )


def lock_document(lock: BundleLock) -> bytes:
    """The lock as it travels in config/."""
    return encode(lock)
