"""The docker engine of this machine (or DOCKER_HOST), and its errors in words."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import docker
import docker.errors
import requests
import urllib3.exceptions

from airbundle.cache import CHUNK, Cache
from airbundle.contract.lock import LockedImage
from airbundle_onsite.errors import FetchError

_VARIABLES = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
_TIMEOUT = 600  # seconds without a byte; an engine reads whole layers before it sends the first


@contextmanager
def connect(environ: Callable[[str], str | None], label: str) -> Iterator[docker.DockerClient]:
    """The engine, as long as the block lasts.

    Args:
        environ: DOCKER_HOST and its companions come from here.
        label: what is wanted of it, as ``daemon:NAME``, for messages.

    Raises:
        FetchError: it has no such image, or does not answer as it should.
    """
    settings = {key: value for key in _VARIABLES if (value := environ(key))}
    where = settings.get("DOCKER_HOST", "the local docker engine")
    try:
        client = docker.from_env(environment=settings, timeout=_TIMEOUT)
        try:
            yield client
        finally:
            client.close()
    except docker.errors.ImageNotFound as error:
        raise FetchError(
            f"{label}: {where} has no such image", remedy="see `docker images`; pull or build it first"
        ) from error
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise FetchError(
            f"{label}: {where} does not answer as it should ({type(error).__name__})",
            remedy="start it, or set DOCKER_HOST; this user must be allowed to use its socket",
        ) from error


def archive_chunks(image: LockedImage, name: str, cache: Cache) -> Iterator[bytes]:
    """A docker archive of an image whose blobs are in the cache, for the engine to load under this name."""
    blobs = {blob.sha256: blob for blob in (image.config, *image.blobs)}
    listing = [
        {
            "Config": f"blobs/sha256/{image.config.sha256}",
            "RepoTags": [name],
            "Layers": [f"blobs/{layer.digest.replace(':', '/')}" for layer in image.layers],
        }
    ]
    document = json.dumps(listing).encode()
    yield _header("manifest.json", len(document)) + document + bytes(-len(document) % tarfile.BLOCKSIZE)
    for blob in blobs.values():
        yield _header(f"blobs/sha256/{blob.sha256}", blob.size)
        with cache.path(blob.sha256).open("rb") as handle:
            yield from iter(lambda: handle.read(CHUNK), b"")
        yield bytes(-blob.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry.tobuf(tarfile.USTAR_FORMAT if size < 1 << 33 else tarfile.GNU_FORMAT)
