"""Gathers the facts of a locked bundle from the cache; what was read once is kept and not read again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from airbundle.cache import Cache
from airbundle.contract.lock import BundleLock, LockedImage, LockedWheel
from airbundle.prove.closure import Proof, prove_closure
from airbundle.prove.facts import FACTS_VERSION, ImageFacts, LayerFacts, WheelFacts
from airbundle.prove.image import merge_layers, read_layer
from airbundle.prove.lazily import lazy_image_checks
from airbundle.prove.wheel import read_wheel
from airbundle_onsite.contract.artifacts import Layer
from airbundle_onsite.contract.record import decode_json, encode
from airbundle_onsite.errors import ContractError

T = TypeVar("T")
Advance = Callable[[int], None]
"""Told the bytes of each file when it is done."""


def prove_lock(
    lock: BundleLock, cache: Cache, *, driver_cuda: str | None = None, advance: Advance = lambda _size: None
) -> Proof:
    """Prove a bundle whose files are all in the cache.

    The wheels are held against the first image, which is the engine's; other images are judged alone.

    Args:
        lock: what is in the bundle, and the profile.
        cache: has every file of the lock.
        driver_cuda: as for `prove_closure`.
        advance: progress.

    Raises:
        IntegrityError: a wheel or layer is damaged.
        FetchError: a layer is compressed with zstd.
    """
    facts = Facts(cache, advance)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        wheels = list(pool.map(facts.wheel, lock.wheels))
        layers = {layer.digest: layer for image in lock.images for layer in image.layers}
        read = dict(zip(layers, pool.map(facts.layer, layers.values()), strict=True))
    images = [_image(image, [read[layer.digest] for layer in image.layers]) for image in lock.images]
    proofs = [prove_closure(wheels, lock.profile, images[0] if images else None, driver_cuda=driver_cuda)]
    proofs += [prove_closure((), lock.profile, image, driver_cuda=driver_cuda) for image in images[1:]]
    late = lazy_image_checks(lock, images[0]) if images else []
    return Proof(
        rows=tuple(row for proof in proofs for row in proof.rows),
        checks=(*(check for proof in proofs for check in proof.checks), *late),
    )


def _image(image: LockedImage, layers: Sequence[LayerFacts]) -> ImageFacts:
    return merge_layers(image.name, layers, require_cuda=image.require_cuda)


class Facts:
    """Facts of cached files, kept as JSON in ``facts/`` of the cache under the file's hash."""

    def __init__(self, cache: Cache, advance: Advance = lambda _size: None) -> None:
        self._cache, self._advance = cache, advance

    def wheel(self, wheel: LockedWheel) -> WheelFacts:
        """Facts of a wheel; raises as `read_wheel`."""
        path, name = self._cache.path(wheel.file.sha256), wheel.file.path
        found = self._kept(
            WheelFacts, wheel.file.sha256, lambda scratch: read_wheel(path, scratch, file_name=Path(name).name)
        )
        self._advance(wheel.file.size)
        return found

    def layer(self, layer: Layer) -> LayerFacts:
        """Facts of a layer; raises as `read_layer`."""
        sha256 = layer.digest.removeprefix("sha256:")
        path = self._cache.path(sha256)
        found = self._kept(LayerFacts, sha256, lambda scratch: read_layer(path, scratch, name=layer.digest))
        self._advance(layer.size)
        return found

    def _kept(self, kind: type[T], sha256: str, read: Callable[[Path], T]) -> T:
        directory = self._cache.root / "facts" / str(FACTS_VERSION)
        path = directory / f"{kind.__name__}-{sha256}.json"
        try:
            return decode_json(kind, path.read_bytes(), str(path))
        except (FileNotFoundError, ContractError):
            pass  # not read yet, or by a version whose facts looked different
        found = read(self._cache.scratch("prove"))
        directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(encode(found))
        temporary.replace(path)
        return found
