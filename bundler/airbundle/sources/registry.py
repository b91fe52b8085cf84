"""``registry:HOST[:PORT]/REPOSITORY[:TAG|@DIGEST]``: an image in a registry, blob by blob, without docker."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.oci import documents
from airbundle.oci.client import RegistryClient
from airbundle.oci.reference import Reference, parse
from airbundle.sources.base import SourceContext
from airbundle_onsite.errors import UsageError

SCHEME = "registry"


def create(context: SourceContext) -> RegistrySource:
    """See `airbundle.sources.base`."""
    return RegistrySource(context)


class RegistrySource:
    """One platform of an image is locked by digest; its layers keep the form they have in the registry."""

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._client = RegistryClient(context.cache, context.environ)

    def lock_model(self, model: ModelTable) -> LockedModel:
        """Refused: this source has images only."""
        raise UsageError(
            f"{model.source}: registry: holds images only", remedy="write hf:, pypi: or local: for a model"
        )

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """See `Source.lock_image`. Manifest and configuration are fetched now."""
        reference = parse(image.source.partition(":")[2])
        name = str(reference)
        data, announced = self._manifest(reference, reference.wanted)
        source_digest = _digest(data)
        document = documents.load(data, name)
        media_type = documents.media_type_of(document, announced)
        if documents.is_index(media_type):
            chosen = documents.choose_platform(document, platform, name)
            data, announced = self._manifest(reference, chosen.digest)
            document = documents.load(data, name)
            media_type = documents.media_type_of(document, announced)
        manifest = documents.read_manifest(document, media_type, name)
        origin = documents.Origin(
            {"source": SCHEME, "host": reference.host, "api": reference.api_host, "repository": reference.repository}
        )
        manifest_file = origin.manifest(data, self._context.cache.add_bytes(data), media_type)
        config_file = origin.file(manifest.config)
        self.fetch(config_file, lambda count: None)
        config = documents.read_config(
            self._context.cache.path(config_file.sha256).read_bytes(), manifest, platform, name
        )
        if any(layer.media_type.endswith("zstd") for layer in manifest.layers):
            self._context.talk.say(f"{name}: has zstd layers, which docker before 23 cannot load")
        return documents.locked_image(
            image.name or reference.site_name, image.source, source_digest, manifest_file, manifest, config, origin
        )

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`."""
        origin, cache = item.origin, self._context.cache
        if cache.has(item.sha256, item.size):
            advance(item.size)
        elif "manifest" in origin:
            data, _ = self._client.manifest(
                origin["host"], origin["api"], origin["repository"], f"sha256:{item.sha256}"
            )
            cache.add_bytes(data)
            advance(item.size)
        else:
            self._client.blob(origin["host"], origin["api"], origin["repository"], item, advance)

    def _manifest(self, reference: Reference, wanted: str) -> tuple[bytes, str]:
        return self._client.manifest(reference.host, reference.api_host, reference.repository, wanted)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
