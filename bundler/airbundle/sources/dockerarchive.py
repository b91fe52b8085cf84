"""``docker-archive:PATH[:NAME:TAG]``: an image in a file that `docker save` (or podman, or skopeo) wrote."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from threading import Lock
from typing import Any

from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.oci import documents, pin
from airbundle.oci.archive import Entry, SavedImage, saved_image
from airbundle.oci.reference import is_same, parse
from airbundle.oci.store import WHOLE, TarStore, split_path
from airbundle.sources.base import SourceContext
from airbundle_onsite.errors import FetchError, UsageError

SCHEME = "docker-archive"


def create(context: SourceContext) -> DockerArchiveSource:
    """See `airbundle.sources.base`."""
    return DockerArchiveSource(context)


class DockerArchiveSource:
    """An archive has no manifest of a registry's kind, so one is written; its layers keep the form they have."""

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._lock = Lock()

    def lock_model(self, model: ModelTable) -> LockedModel:
        """Refused: this source has images only."""
        raise UsageError(
            f"{model.source}: {SCHEME}: holds images only", remedy="write hf:, pypi: or local: for a model"
        )

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """See `Source.lock_image`. The image is read into the cache now, since that alone tells its digests."""
        given = image.source.partition(":")[2]
        path, wanted = split_path(given, self._context.base)
        where = given.removesuffix(f":{wanted}" if wanted else "")
        saved = self._read(path, where, wanted)
        found = pin.Found(
            image=image,
            name=self._name(saved, wanted, where, image),
            label=f"{SCHEME}:{given}",
            source_digest=saved.config.digest,
            data=saved.manifest,
            manifest=saved.parts,
            origin=documents.Origin(
                {"source": SCHEME, "path": where, "image": wanted, "image_id": saved.config.digest}
            ),
            made=True,
        )
        return pin.pin(found, platform, lambda item: None, self._context.cache, self._context.talk)

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`. One reading brings every blob, so the others then find theirs in the cache."""
        cache, origin = self._context.cache, item.origin
        if pin.fetch_made(item, lambda packed: self.fetch(packed, _ignore), cache, advance, self._context.talk):
            return
        with self._lock:
            if not cache.has(item.sha256, item.size):
                path = split_path(origin["path"], self._context.base)[0]
                saved = self._read(path, origin["path"], origin["image"])
                if saved.config.digest != origin["image_id"] or not cache.has(item.sha256, item.size):
                    raise FetchError(
                        f"{SCHEME}:{origin['path']}: holds another image now",
                        details=(f"found {saved.config.digest}", f"needed {origin['image_id']}"),
                        remedy="put the old file back, or lock again",
                    )
        advance(item.size)

    def _name(self, saved: SavedImage, wanted: str, where: str, image: ImageTable) -> str:
        """The archive's own name; one saved by id has none, and would be ``<none>`` on the site."""
        tag = next((tag for tag in saved.tags if not wanted or is_same(tag, wanted)), "")
        if tag:
            return parse(tag).site_name
        name = f"{_repository(where)}:{saved.config.digest[7:19]}"
        if not image.name:
            self._context.talk.say(
                f"{SCHEME}:{where}: the archive gives its image no name (it was saved by id), so docker would show "
                f"<none>; on the site it is called {name}, or what [image] name says"
            )
        return name

    def _read(self, path: Path, where: str, wanted: str) -> SavedImage:
        label, cache = f"{SCHEME}:{where}", self._context.cache
        store = TarStore(path, label, packed=True)
        try:
            listed = choose(_listing(store), wanted, label)
            paths = [str(listed["Config"]), *map(str, listed.get("Layers") or ())]
            absent = [each for each in paths if store.size(each) is None]
            if absent:
                raise FetchError(f"{label}: files of its image are not in it", details=absent, remedy=WHOLE)
            advance = self._counter(where, sum(store.size(each) or 0 for each in set(paths)))
            entries: dict[str, Entry] = {}
            for each in sorted(set(paths), key=store.place):
                sha256, size = store.add(each, cache, advance)
                with cache.path(sha256).open("rb") as handle:
                    entries[each] = Entry(sha256, size, handle.read(2))
            return saved_image(listed, entries.__getitem__, cache, label)
        finally:
            store.close()

    def _counter(self, where: str, total: int) -> Callable[[int], None]:
        done, told, talk = 0, time.monotonic(), self._context.talk

        def advance(count: int) -> None:
            nonlocal done, told
            done += count
            if time.monotonic() - told > 0.2:
                told = time.monotonic()
                talk.progress(f"reading {where}", min(done, total), total)

        return advance


def choose(listing: list[Mapping[str, Any]], wanted: str, label: str) -> Mapping[str, Any]:
    """The one image of a ``manifest.json``, or the one of that name.

    Raises:
        FetchError: there is none of that name.
        UsageError: there are several, and none is named.
    """
    fitting = [
        image for image in listing if not wanted or any(is_same(tag, wanted) for tag in image.get("RepoTags") or ())
    ]
    names = [", ".join(image.get("RepoTags") or ()) or f"<none> ({image['Config']})" for image in listing]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        what = f"no image {wanted!r}" if wanted else "no image"
        raise FetchError(
            f"{label}: has {what}", details=[f"has {name}" for name in names], remedy="name one that it has"
        )
    raise UsageError(
        f"{label}: {len(fitting)} images", details=names, remedy="name one after the path, docker-archive:PATH:NAME:TAG"
    )


def _listing(store: TarStore) -> list[Mapping[str, Any]]:
    if store.size("manifest.json") is None:
        layout = store.size("index.json") is not None
        raise FetchError(
            f"{store.label}: no manifest.json, so not what docker save writes",
            remedy="it is an OCI layout: write oci:PATH" if layout else WHOLE,
        )
    try:
        listing = json.loads(store.read("manifest.json"))
    except ValueError as error:
        raise FetchError(f"{store.label}: its manifest.json is not JSON ({error})", remedy=WHOLE) from error
    if not isinstance(listing, list) or not all(isinstance(each, dict) and "Config" in each for each in listing):
        raise FetchError(f"{store.label}: its manifest.json lists no images", remedy=WHOLE)
    return listing


def _repository(where: str) -> str:
    """A repository's name made of the file's."""
    stem = "".join(each if each.isalnum() and each.isascii() else "-" for each in PurePath(where).name.lower())
    for ending in ("-gz", "-tar", "-tgz"):
        stem = stem.removesuffix(ending)
    return "-".join(filter(None, stem.split("-"))) or "image"


def _ignore(count: int) -> None:
    pass
