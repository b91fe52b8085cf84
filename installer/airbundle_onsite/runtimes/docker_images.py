"""Images in a container engine: found again, named, and removed when what this tool loaded is needed no more.

``<root>/run/docker-images.json`` lists the images that were not in the engine before they were loaded from here; what
was there before belongs to somebody else, and is never removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional
from urllib.parse import quote

from airbundle_onsite.contract.artifacts import ImageEntry
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.dockerapi import DockerClient, DockerError

_CONFLICT = 409


class DockerImages:
    """The images of one engine, seen from one installation root.

    Args:
        client: gives the engine; called when it is first needed.
        root: installation root.
    """

    def __init__(self, client: Callable[[], DockerClient], root: Path) -> None:
        self._client = client
        self._file = root / "run" / "docker-images.json"

    def find(self, image: ImageEntry) -> Optional[Mapping[str, Any]]:
        """By id; an engine with the containerd store has ids of its own, so then by name and layers."""
        for reference in (image.config_digest, image.name):
            found = self._inspect(reference)
            if found is not None and _is(image, found):
                return found
        return None

    def tag(self, image: ImageEntry, found: Mapping[str, Any]) -> None:
        """Give an image its name back, if it has lost it."""
        if _own_names(found, image.name):
            return
        repository, _, tag = image.name.rpartition(":")
        self._client().post(
            f"/images/{quote(str(found['Id']))}/tag",
            operation=f"name image {image.name}",
            query={"repo": repository, "tag": tag},
        )

    def about_to_load(self, images: Iterable[ImageEntry]) -> None:
        """Note, before they are loaded, which of these are not in the engine and so will be from here."""
        listed = self._listed()
        new = {image.config_digest: {"name": image.name} for image in images if self.find(image) is None}
        if new:
            self._write({**listed, **new})

    def loaded(self, image: ImageEntry, found: Mapping[str, Any]) -> None:
        """Note the engine's own id of an image that was loaded."""
        listed = self._listed()
        if image.config_digest in listed:
            self._write({**listed, image.config_digest: {"name": image.name, "id": str(found["Id"])}})

    def sweep(self, kept: Sequence[BundleManifest]) -> tuple[list[str], list[str]]:
        """Remove images that were loaded from here, that no release of `kept` has and no container uses.

        One that somebody gave another name only loses ours.

        Returns:
            The names of those that went, and a sentence for each that had to stay.
        """
        needed = {image.config_digest for manifest in kept for image in manifest.images}
        gone, stays, listed = [], [], self._listed()
        for digest, noted in list(listed.items()):
            if digest in needed:
                continue
            reason = self._remove(noted.get("id") or digest, noted["name"])
            if reason:
                stays.append(f"image {noted['name']} stays in the container engine: {reason}")
                continue
            gone.append(noted["name"])
            del listed[digest]
            self._write(listed)
        return gone, stays

    def _remove(self, reference: str, name: str) -> str:
        """Why an image could not be removed; empty when it is gone, or is no longer ours."""
        found = self._inspect(reference)
        if found is None:
            return ""
        names = _own_names(found, name) or ([] if found.get("RepoTags") else [str(found["Id"])])
        for each in names:
            try:
                self._client().delete(f"/images/{quote(each, safe='/:')}", operation=f"remove image {each}")
            except DockerError as error:
                if error.status != _CONFLICT:
                    raise
                return error.message
        return ""

    def _inspect(self, reference: str) -> Optional[Mapping[str, Any]]:
        found: Optional[Mapping[str, Any]] = self._client().find_json(
            f"/images/{quote(reference, safe='/:')}/json", operation=f"look for image {reference}"
        )
        return found

    def _listed(self) -> dict[str, dict[str, str]]:
        try:
            value = json.loads(self._file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
            return {}
        listed = value.items() if isinstance(value, dict) else ()
        return {digest: noted for digest, noted in listed if isinstance(noted, dict) and "name" in noted}

    def _write(self, listed: Mapping[str, Mapping[str, str]]) -> None:
        if not listed:
            self._file.unlink(missing_ok=True)
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_name(f"{self._file.name}.partial")
        partial.write_text(json.dumps(listed, indent=1, sort_keys=True), encoding="utf-8")
        partial.replace(self._file)


def _is(image: ImageEntry, found: Mapping[str, Any]) -> bool:
    layers = (found.get("RootFS") or {}).get("Layers") or []
    same_layers = list(layers) == [layer.diff_id for layer in image.layers]
    return found.get("Id") == image.config_digest or (bool(layers) and same_layers)


def _own_names(found: Mapping[str, Any], name: str) -> list[str]:
    """An image's names that are the one given, also with a registry's name before it, as podman writes it."""
    return [tag for tag in found.get("RepoTags") or [] if tag == name or tag.endswith(f"/{name}")]
