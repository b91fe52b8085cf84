"""``oci:PATH[:NAME]``: an image in an OCI image layout, a directory or a tar of one."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.oci import documents, layout, pin
from airbundle.oci.store import DirectoryStore, Store, TarStore, add_blob, split_path
from airbundle.sources.base import SourceContext
from airbundle_onsite.errors import FetchError, UsageError

SCHEME = "oci"


def create(context: SourceContext) -> OciSource:
    """See `airbundle.sources.base`."""
    return OciSource(context)


class OciSource:
    """Blobs keep their digests; those of a directory are shared with the cache, those of a tar are copied into it."""

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._stores: dict[str, Store] = {}
        self._lock = Lock()

    def lock_model(self, model: ModelTable) -> LockedModel:
        """Refused: this source has images only."""
        raise UsageError(f"{model.source}: oci: holds images only", remedy="write hf:, pypi: or local: for a model")

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """See `Source.lock_image`. Every blob is seen to be there, and proven when it is fetched."""
        path, wanted = split_path(image.source.partition(":")[2], self._context.base)
        where = image.source.partition(":")[2].removesuffix(f":{wanted}" if wanted else "")
        store = self._store(where)
        chosen = layout.find_image(store, wanted, platform)
        found = pin.Found(
            image=image,
            name=layout.default_name(chosen, str(path)),
            label=store.label,
            source_digest=chosen.digest,
            data=chosen.data,
            manifest=chosen.manifest,
            origin=documents.Origin({"source": SCHEME, "path": where}),
        )
        return pin.pin(found, platform, self._get, self._context.cache, self._context.talk)

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`."""
        cache = self._context.cache
        if cache.has(item.sha256, item.size):
            advance(item.size)
            return
        if pin.fetch_made(item, self._get, cache, advance, self._context.talk):
            return
        store, path = self._store(item.origin["path"]), layout.blob_path(f"sha256:{item.sha256}")
        if store.size(path) is None:
            raise FetchError(f"{store.label}: has no {path} any more", remedy="put it back, or lock again")
        add_blob(store, path, item.sha256, item.size, cache, advance)

    def _get(self, item: LockedFile) -> None:
        self.fetch(item, lambda count: None)

    def _store(self, where: str) -> Store:
        path, label = split_path(where, self._context.base)[0], f"{SCHEME}:{where}"
        with self._lock:
            if where not in self._stores:
                directory = path.is_dir()
                self._stores[where] = DirectoryStore(path, label) if directory else TarStore(path, label)
            return self._stores[where]
