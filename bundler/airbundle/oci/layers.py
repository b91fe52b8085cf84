"""Layers in the form that every engine loads: zstd is unpacked, since docker before 23 knows only gzip and plain tar.

Unpacked, not packed anew: the plain tar has one form, named by its diff id, and comes out the same everywhere and
always; what gzip makes of it depends on the gzip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO

import zstandard

from airbundle.cache import CHUNK, Cache
from airbundle.contract.lock import LockedFile
from airbundle.oci.documents import OCI_LAYER, Descriptor
from airbundle_onsite.errors import FetchError
from airbundle_onsite.system import Talk

_LARGEST_WINDOW = 1 << 31  # bytes; what `zstd --ultra --long=31` may ask for

Fetch = Callable[[LockedFile], None]


def is_zstd(media_type: str) -> bool:
    """Whether a layer of this type is packed with zstd."""
    return media_type.endswith("+zstd")


def packed_form(item: LockedFile) -> LockedFile | None:
    """What `item` is unpacked from; None for what is kept as it comes."""
    digest = item.origin.get("zstd")
    if digest is None:
        return None
    fields = {key: value for key, value in item.origin.items() if key not in ("zstd", "zstd_size")}
    return LockedFile(digest, digest.removeprefix("sha256:"), int(item.origin["zstd_size"]), fields)


def unpack(packed: LockedFile, diff_id: str, fetch: Fetch, cache: Cache, name: str, talk: Talk) -> Descriptor:
    """A zstd layer as plain tar, in the cache; what was unpacked before is not fetched again.

    Args:
        packed: the layer as its source has it.
        diff_id: digest of the tar, as the image's configuration has it.
        fetch: brings `packed` into the cache; it is dropped there once it is unpacked.
        cache: where both go.
        name: of the image, for messages.
        talk: told how far it is.

    Raises:
        FetchError: not zstd from begin to end, or not the tar that the configuration names.
    """
    plain = diff_id.removeprefix("sha256:")
    try:
        size = cache.path(plain).stat().st_size
    except FileNotFoundError:
        size = -1
    if not cache.has(plain, size):
        fetch(packed)
        found, size = cache.add_stream(_plain_chunks(packed, cache, name, talk))
        if found != plain:
            cache.drop(found)
            raise FetchError(
                f"{name}: layer {packed.path} unpacks to other bytes than its configuration names",
                details=(f"found sha256:{found}", f"needed {diff_id}"),
                remedy="the image is damaged where it was made: push it again",
            )
        cache.drop(packed.sha256)
    return Descriptor(OCI_LAYER, diff_id, size)


def _plain_chunks(packed: LockedFile, cache: Cache, name: str, talk: Talk) -> Iterator[bytes]:
    unpacker = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    with cache.path(packed.sha256).open("rb") as handle:
        try:
            with unpacker.stream_reader(handle, read_across_frames=True, closefd=False) as reader:
                while chunk := reader.read(CHUNK):
                    _tell(handle, packed, name, talk)
                    yield chunk
        except zstandard.ZstdError as error:
            raise FetchError(
                f"{name}: layer {packed.path} cannot be unpacked ({error})", remedy="push the image again"
            ) from error


def _tell(handle: IO[bytes], packed: LockedFile, name: str, talk: Talk) -> None:
    talk.progress(f"unpacking {name}", min(handle.tell(), packed.size), packed.size)
