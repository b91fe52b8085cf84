"""``registry:HOST[:PORT]/REPOSITORY[:TAG|@DIGEST]``: an image in a registry, blob by blob, without docker."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.oci import documents, pin
from airbundle.oci.client import Place, RegistryClient, mirror_place
from airbundle.oci.reference import parse
from airbundle.sources.base import SourceContext
from airbundle_onsite.errors import UsageError

SCHEME = "registry"


def create(context: SourceContext) -> RegistrySource:
    """See `airbundle.sources.base`."""
    return RegistrySource(context)


class RegistrySource:
    """One platform of an image is locked by digest; its layers keep the form they have in the registry, but zstd."""

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._client = RegistryClient(context.cache, context.environ, context.talk)

    def lock_model(self, model: ModelTable) -> LockedModel:
        """Refused: this source has images only."""
        raise UsageError(
            f"{model.source}: registry: holds images only", remedy="write hf:, pypi: or local: for a model"
        )

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """See `Source.lock_image`. Manifest and configuration are fetched now."""
        reference = parse(image.source.partition(":")[2])
        fields = {
            "source": SCHEME,
            "host": reference.host,
            "api": reference.api_host,
            "repository": reference.repository,
        }
        if image.mirrors:
            fields["mirrors"] = " ".join(image.mirrors)
        if image.insecure:
            fields["insecure"] = "yes"
        places, name = _places(fields), str(reference)
        data, announced = self._client.manifest(places, reference.wanted)
        source_digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        document = documents.load(data, name)
        media_type = documents.media_type_of(document, announced)
        if documents.is_index(media_type):
            chosen = documents.choose_platform(document, platform, name)
            data, announced = self._client.manifest(places, chosen.digest)
            document = documents.load(data, name)
            media_type = documents.media_type_of(document, announced)
        manifest = documents.read_manifest(document, media_type, name)
        origin = documents.Origin(fields)
        found = pin.Found(image, reference.site_name, name, source_digest, data, manifest, origin)
        return pin.pin(found, platform, self._get, self._context.cache, self._context.talk)

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`."""
        cache = self._context.cache
        if cache.has(item.sha256, item.size):
            advance(item.size)
        elif pin.fetch_made(item, self._get, cache, advance, self._context.talk):
            pass
        elif "manifest" in item.origin:
            data, _ = self._client.manifest(_places(item.origin), f"sha256:{item.sha256}")
            cache.add_bytes(data)
            advance(item.size)
        else:
            self._client.blob(_places(item.origin), item, advance)

    def _get(self, item: LockedFile) -> None:
        """Fetch while locking, or what a layer is unpacked from."""
        done, talk = 0, self._context.talk

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if item.size > _WORTH_TELLING:
                talk.progress(f"fetching {item.path[:19]}", done, item.size)

        self.fetch(item, advance)


_WORTH_TELLING = 4 * 1024 * 1024  # bytes


def _places(fields: Mapping[str, str]) -> list[Place]:
    """Mirrors first, the registry itself last."""
    mirrors = [mirror_place(mirror, fields["repository"]) for mirror in fields.get("mirrors", "").split()]
    return [*mirrors, Place(fields["host"], fields["api"], fields["repository"], "insecure" in fields)]
