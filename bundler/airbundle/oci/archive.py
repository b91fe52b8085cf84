"""Reads what `docker save` writes, in one pass and straight into the cache."""

from __future__ import annotations

import io
import json
import posixpath
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

from airbundle.cache import CHUNK, Cache
from airbundle.oci import documents
from airbundle.oci.documents import Descriptor, Manifest
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError

_MAGICS = {b"\x1f\x8b": "+gzip", b"\x28\xb5": "+zstd"}
_LARGEST_DOCUMENT = 8 * 1024 * 1024  # bytes


@record
class SavedImage:
    """An image from an archive, its blobs in the cache.

    Attributes:
        manifest: bytes of the OCI manifest made for it.
        config: its configuration.
        layers: from the bottom up.
        tags: names the archive gives it.
    """

    manifest: bytes
    config: Descriptor
    layers: tuple[Descriptor, ...]
    tags: tuple[str, ...]

    @property
    def parts(self) -> Manifest:
        """`manifest`, read."""
        return Manifest(documents.OCI_MANIFEST, self.config, self.layers)


class _Stream(io.RawIOBase):
    """Chunks as a file to read from."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._rest = iter(chunks), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            try:
                self._rest = next(self._chunks)
            except StopIteration:
                return 0
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


@record
class Entry:
    """A file of an archive: what it is in the cache, its bytes counted, and how it begins."""

    sha256: str
    size: int
    begin: bytes


def read_saved(chunks: Iterable[bytes], cache: Cache, name: str) -> SavedImage:
    """Put an archive of one image into the cache.

    Args:
        chunks: of the archive, as the engine's API gives it.
        cache: where layers, configuration and manifest go.
        name: of the image, for messages.

    Raises:
        FetchError: the archive breaks off, or is not of one whole image.
    """
    entries: dict[str, Entry] = {}
    links: dict[str, str] = {}
    listing = b""
    try:
        with tarfile.open(fileobj=io.BufferedReader(_Stream(chunks), CHUNK), mode="r|") as tar:
            for member in tar:
                path = posixpath.normpath(member.name)
                if member.issym():
                    links[path] = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
                elif member.islnk():
                    links[path] = posixpath.normpath(member.linkname)
                elif member.isreg():
                    handle = tar.extractfile(member)
                    assert handle is not None  # it is a regular file
                    if path == "manifest.json":
                        listing = handle.read(_LARGEST_DOCUMENT)
                    elif _is_content(path):
                        entries[path] = _keep(handle, cache)
    except tarfile.TarError as error:
        raise FetchError(
            f"{name}: the engine's archive breaks off ({error})", remedy="look at the engine's log"
        ) from error
    return _assemble(listing, entries, links, cache, name)


def _is_content(path: str) -> bool:
    """Layers and configurations; the rest repeats them in older forms."""
    leaf = posixpath.basename(path)
    if path.startswith("blobs/"):
        return True
    return leaf == "layer.tar" or (leaf.endswith(".json") and "/" not in path)


def _keep(handle: IO[bytes], cache: Cache) -> Entry:
    begin = handle.read(2)

    def chunks() -> Iterator[bytes]:
        yield begin
        while chunk := handle.read(CHUNK):
            yield chunk

    sha256, size = cache.add_stream(chunks())
    return Entry(sha256, size, begin)


def _assemble(listing: bytes, entries: dict[str, Entry], links: dict[str, str], cache: Cache, name: str) -> SavedImage:
    def find(path: str) -> Entry:
        path = posixpath.normpath(path)
        for _ in range(len(links) + 1):
            if path not in links:
                break
            path = links[path]
        return entries[path]

    try:
        (image,) = json.loads(listing)
        return saved_image(image, find, cache, name)
    except (ValueError, TypeError) as error:
        raise _not_whole(name, error) from error


def saved_image(image: Mapping[str, Any], find: Callable[[str], Entry], cache: Cache, name: str) -> SavedImage:
    """An image of an archive's ``manifest.json``, its manifest written into the cache.

    Args:
        image: its entry there.
        find: gives the file of a path; raises KeyError when there is none.
        cache: where the files are.
        name: for messages.

    Raises:
        FetchError: something is missing.
    """
    try:
        config, layers = find(image["Config"]), [find(path) for path in image["Layers"]]
        tags = tuple(image.get("RepoTags") or ())
    except (KeyError, TypeError) as error:
        raise _not_whole(name, error) from error
    config_blob = Descriptor(documents.OCI_CONFIG, f"sha256:{config.sha256}", config.size)
    layer_blobs = tuple(
        Descriptor(documents.OCI_LAYER + _MAGICS.get(layer.begin, ""), f"sha256:{layer.sha256}", layer.size)
        for layer in layers
    )
    manifest = documents.write_manifest(config_blob, layer_blobs)
    cache.add_bytes(manifest)
    return SavedImage(manifest, config_blob, layer_blobs, tags)


def _not_whole(name: str, error: Exception) -> FetchError:
    return FetchError(
        f"{name}: the archive does not hold one whole image ({type(error).__name__}: {error})",
        remedy="check that every layer is there: docker save to a file, and look into its manifest.json",
    )
