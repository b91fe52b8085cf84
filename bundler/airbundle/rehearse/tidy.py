"""What a docker engine had before a rehearsal, and taking away what it has since."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import docker
import docker.errors

from airbundle_onsite.contract.artifacts import ImageEntry
from airbundle_onsite.contract.manifest import BundleManifest


class Inventory:
    """Taken when it is made; `restore` removes only what came afterwards."""

    def __init__(self, client: docker.APIClient, manifest: BundleManifest) -> None:
        self._client, self._images = client, manifest.images
        self._had = {str(image["Id"]) for image in client.images(all=True)}
        self._names = {image.name: self._id_of(image.name) for image in manifest.images}
        self._had_networks = {str(network["Name"]) for network in client.networks()}
        self._networks: set[str] = set()

    def brought_network(self, name: str) -> None:
        """The rehearsal is about to create a network."""
        self._networks.add(name)

    def restore(self, label: str) -> list[str]:
        """Remove containers with `label`, new networks, and new images; returns what could not be removed and why."""
        left: list[str] = []
        containers = self._client.containers(all=True, filters={"label": label})
        for container in containers:
            self._try(partial(self._client.remove_container, container["Id"], v=True, force=True), left)
        for name in sorted(self._networks - self._had_networks):
            self._try(partial(self._client.remove_network, name), left)
        for image in self._images:
            self._try(partial(self._restore_image, image), left)
        return left

    def _restore_image(self, image: ImageEntry) -> None:
        now, before = self._id_of(image.name), self._names[image.name]
        for new in {found for found in (now, self._id_of(image.config_digest)) if found} - self._had:
            self._remove(new)
        if before is None and self._id_of(image.name) is not None:
            self._remove(image.name)
        elif before is not None and self._id_of(image.name) != before:
            repository, _, tag = image.name.rpartition(":")
            self._client.tag(before, repository, tag, force=True)

    def _remove(self, reference: str) -> None:
        # Without pruning: untagged parents may have been there before.
        self._client.remove_image(reference, force=True, noprune=True)

    def _id_of(self, reference: str) -> str | None:
        try:
            return str(self._client.inspect_image(reference)["Id"])  # type: ignore[no-untyped-call]
        except docker.errors.ImageNotFound:
            return None

    @staticmethod
    def _try(action: Callable[[], object], left: list[str]) -> None:
        try:
            action()
        except docker.errors.NotFound:
            pass
        except docker.errors.APIError as error:
            left.append(str(error.explanation or error))
