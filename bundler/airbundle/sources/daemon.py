"""``daemon:NAME[:TAG]``: an image that a docker engine on this machine has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from threading import Lock

import docker

from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.oci import documents, engine, pin, reference
from airbundle.oci.archive import SavedImage, read_saved
from airbundle.sources.base import SourceContext
from airbundle_onsite.errors import FetchError, UsageError

SCHEME = "daemon"


def create(context: SourceContext) -> DaemonSource:
    """See `airbundle.sources.base`."""
    return DaemonSource(context)


class DaemonSource:
    """The engine has no digest of its own for an image: it is pinned by its id, the digest of its configuration."""

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._lock = Lock()

    def lock_model(self, model: ModelTable) -> LockedModel:
        """Refused: this source has images only."""
        raise UsageError(f"{model.source}: daemon: holds images only", remedy="write hf:, pypi: or local: for a model")

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """See `Source.lock_image`. The image is saved into the cache now, since that alone tells its blobs."""
        name = _tagged(image.source.partition(":")[2])
        with self._engine(name) as client:
            saved = self._save(client, name)
        origin = documents.Origin({"source": SCHEME, "image": name, "image_id": saved.config.digest})
        found = pin.Found(
            image=image,
            name=reference.parse(name).site_name,
            label=f"{SCHEME}:{name}",
            source_digest=saved.config.digest,
            data=saved.manifest,
            manifest=saved.parts,
            origin=origin,
            made=True,
        )
        return pin.pin(found, platform, lambda item: None, self._context.cache, self._context.talk)

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`. One save brings every blob of the image, so the others then find theirs in the cache."""
        cache = self._context.cache
        if pin.fetch_made(
            item, lambda packed: self.fetch(packed, lambda count: None), cache, advance, self._context.talk
        ):
            return
        name = item.origin["image"]
        with self._lock:
            if not cache.has(item.sha256, item.size):
                with self._engine(name) as client:
                    saved = self._save(client, name)
                if saved.config.digest != item.origin["image_id"]:
                    raise FetchError(
                        f"{SCHEME}:{name}: another image now",
                        details=(f"found {saved.config.digest}", f"needed {item.origin['image_id']}"),
                        remedy="tag the old image with this name again, or lock again",
                    )
                if not cache.has(item.sha256, item.size):
                    raise FetchError(
                        f"{item.path}: not in what the engine saves for {name} any more",
                        remedy="another kind of image store packs layers differently: lock again",
                    )
        advance(item.size)

    def _save(self, client: docker.DockerClient, name: str) -> SavedImage:
        """Save by name, never by id: an archive made by id has no name in it."""
        total, talk = int(client.images.get(name).attrs.get("Size") or 0), self._context.talk

        def chunks() -> Iterator[bytes]:
            done = 0
            for chunk in client.api.get_image(name):
                done += len(chunk)
                talk.progress(f"saving {name}", min(done, total - 1), total)
                yield chunk
            talk.progress(f"saving {name}", done, done)

        return read_saved(chunks(), self._context.cache, f"{SCHEME}:{name}")

    def _engine(self, name: str) -> AbstractContextManager[docker.DockerClient]:
        return engine.connect(self._context.environ, f"{SCHEME}:{name}")


def _tagged(name: str) -> str:
    """With a tag: an engine asked for a bare name would save every tag of it."""
    if "@" in name or name.startswith("sha256:"):
        raise UsageError(f"daemon:{name}: named by digest", remedy="give it a plain tag (docker tag), and name that")
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"
