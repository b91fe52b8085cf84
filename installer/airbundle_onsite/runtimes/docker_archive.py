"""A docker-archive made on the fly from the blobs of an OCI layout, in whatever order they stream by.

The engine wants the images of a bundle as a tar with a ``manifest.json``; the payload holds them as an OCI
layout. Writing the one from the other as the bytes pass needs neither a spool nor memory.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Collection, Iterable, Iterator

from airbundle_onsite.contract.artifacts import ImageEntry
from airbundle_onsite.contract.layout import IMAGES, blob_path
from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.runtimes.base import Blob

_BLOCK = 512


def docker_archive(
    images: Iterable[ImageEntry], blobs: Iterator[Blob], absent: Collection[str] = ()
) -> Iterator[bytes]:
    """The archive of `images`, piece by piece; all of `blobs` is consumed.

    Args:
        images: what it holds.
        blobs: files of the OCI layout.
        absent: digests of layers that do not come: the engine looks a layer up by what it is and what is beneath it
            before it asks the archive for it.

    Raises:
        IntegrityError: blobs that the images need never came, or one was not as long as announced.
    """
    images = tuple(images)
    wanted = {blob_path(digest) for image in images for digest in _digests(image) if digest not in absent}
    missing = set(wanted)
    yield from _entry("manifest.json", json.dumps([_manifest_entry(image) for image in images]).encode())
    for blob in blobs:
        if blob.path not in wanted:
            for _ in blob.chunks:
                pass
            continue
        missing.discard(blob.path)
        yield _header(_archived(blob.path), blob.size)
        yield from _counted(blob)
        yield bytes(-blob.size % _BLOCK)
    if missing:
        raise IntegrityError(
            f"{len(missing)} blobs that the images need are not in the payload",
            details=sorted(missing),
            remedy="copy the bundle again; its own --verify says which part is incomplete",
        )
    yield bytes(2 * _BLOCK)


def _digests(image: ImageEntry) -> list[str]:
    return [image.config_digest, *(layer.digest for layer in image.layers)]


def _archived(path: str) -> str:
    return path[len(IMAGES) + 1 :]


def _manifest_entry(image: ImageEntry) -> dict[str, object]:
    config, *layers = (_archived(blob_path(digest)) for digest in _digests(image))
    return {"Config": config, "RepoTags": [qualified(image.name)], "Layers": layers}


def qualified(name: str) -> str:
    """An image's name with its host, as docker reads it by itself; podman would take ``localhost`` for one without."""
    first, slash, _ = name.partition("/")
    if slash and (set(first) & {".", ":"} or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def _entry(name: str, data: bytes) -> Iterator[bytes]:
    yield _header(name, len(data))
    yield data
    yield bytes(-len(data) % _BLOCK)


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry.tobuf(tarfile.GNU_FORMAT)


def _counted(blob: Blob) -> Iterator[bytes]:
    seen = 0
    for chunk in blob.chunks:
        seen += len(chunk)
        if seen > blob.size:
            break
        yield chunk
    if seen != blob.size:
        raise IntegrityError(f"{blob.path}: {seen} bytes came, {blob.size} were announced")
