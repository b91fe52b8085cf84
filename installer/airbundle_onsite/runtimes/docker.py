"""The docker runtime; podman through its docker-compatible API is driven by the same code."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal, Optional
from urllib.parse import quote

from airbundle_onsite.contract.artifacts import ImageEntry
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.launch import LaunchPlan, RuntimeKind
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.dockerapi import DockerClient, DockerError, socket_path
from airbundle_onsite.runtimes import docker_config as config
from airbundle_onsite.runtimes import docker_layers
from airbundle_onsite.runtimes.base import Blob, Environment, Instance, InstanceState, ReleaseFiles
from airbundle_onsite.runtimes.docker_archive import docker_archive
from airbundle_onsite.runtimes.docker_images import DockerImages
from airbundle_onsite.runtimes.docker_network import check_sealed, ensure_network, remove_networks
from airbundle_onsite.runtimes.failures import EngineError
from airbundle_onsite.runtimes.pip import install_argv, pip_wheel
from airbundle_onsite.runtimes.values import is_loopback, physical_cores

Slot = Literal["service", "candidate"]

_STOP_SECONDS = 30
_INSTALL_SECONDS = 3600
_ROOT_USERS = ("", "0", "root")


def create(environment: Environment) -> DockerRuntime:
    """Called by `airbundle_onsite.runtimes.create`."""
    return DockerRuntime(environment)


class DockerRuntime:
    """Runs releases in containers. Everything it makes is found again by name and labels."""

    kind: RuntimeKind = "docker"

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._opened: Optional[DockerClient] = None
        self._images = DockerImages(lambda: self._client, environment.root)

    # --- before a start -----------------------------------------------------------------------------------

    def preflight(self, manifest: BundleManifest, plan: LaunchPlan, fingerprint: Fingerprint) -> list[CheckResult]:
        """What the match of the fingerprint cannot know: whose port and whose containers these would be."""
        checks = []
        if not is_loopback(manifest.serving.host):
            address = f"{manifest.serving.host}:{manifest.serving.port}"
            checks.append(
                CheckResult(
                    "docker.exposure",
                    "warn",
                    f"the engine's own port will be open to other machines at {address}",
                    expected="127.0.0.1",
                    actual=manifest.serving.host,
                    remedy="anybody who reaches this machine may use the model, and the container's network has a "
                    "route out (though no address that an answer finds); put a gateway before 127.0.0.1 instead",
                )
            )
        for slot in ("service", "candidate"):
            name = config.container_names(manifest.name, manifest.version, slot)[0]
            container = self._inspect(name) if fingerprint.docker.state == "ok" else None
            if container is not None and config.owner(container) != self._root:
                error = _not_ours(name, config.owner(container))
                checks.append(CheckResult("docker.container", "fail", error.summary, remedy=error.remedy))
        if manifest.absent_layers and fingerprint.docker.state == "ok":
            checks += self._check_layers(manifest, fingerprint)
        return checks

    def _check_layers(self, manifest: BundleManifest, fingerprint: Fingerprint) -> list[CheckResult]:
        """Whether the layers that the bundle leaves out are here; asked only while an image is not."""
        if not self.has_images(manifest):
            return []
        driver = fingerprint.docker.storage_driver
        if self._traits().podman or driver.startswith("containerd:"):
            engine = "podman" if self._traits().podman else f"an engine with the containerd image store ({driver})"
            return [docker_layers.cannot_complete(manifest, engine)]
        listed = self._client.get_json("/images/json", operation="list the images") or []
        images = [self._client.find_json(f"/images/{each['Id']}/json", operation="look at an image") for each in listed]
        return docker_layers.check_layers(
            manifest, [(each.get("RootFS") or {}).get("Layers") or [] for each in images if each]
        )

    def load_images(self, manifest: BundleManifest, blobs: Iterator[Blob]) -> None:
        """Stream the images into the engine; afterwards each is there by id and by name.

        Raises:
            DockerError: the engine refused them, or does not have one afterwards.
            IntegrityError: blobs are missing.
        """
        if not manifest.images or (manifest.absent_layers and not self.has_images(manifest)):
            for blob in blobs:
                for _ in blob.chunks:
                    pass
        else:
            self._images.about_to_load(manifest.images)
            self._client.load(docker_archive(manifest.images, blobs, manifest.absent_layers), self._say_load)
        for image in manifest.images:
            found = self._images.find(image)
            if found is None:
                raise DockerError(
                    f"find image {image.name} after loading it",
                    0,
                    f"the engine has none with id {image.config_digest}",
                    remedy="see the engine's log (journalctl -u docker); run the same command again to load it again",
                )
            self._images.tag(image, found)
            self._images.loaded(image, found)

    def has_images(self, manifest: BundleManifest) -> list[str]:
        """Names of the manifest's images that the engine lacks."""
        return [image.name for image in manifest.images if self._images.find(image) is None]

    def prepare(self, release: ReleaseFiles) -> None:
        """Make the state directory and, for a plan with wheels, install them in a container without network.

        Raises:
            EngineError: pip failed; the whole output is in prepare.log of the release.
        """
        state = release.directory / "state"
        state.mkdir(exist_ok=True)
        image = self._plan_image(release)
        # An image that does not run as root cannot write into a directory of this user's.
        state.chmod(0o755 if image.user.split(":")[0] in _ROOT_USERS else 0o777)
        site = release.directory / "site"
        if not release.plan.wheels or site.is_dir():
            return
        partial = release.directory / "site.partial"
        shutil.rmtree(partial, ignore_errors=True)
        (partial / config.UNPACKING).mkdir(parents=True)
        self._install_wheels(release, image, str(partial))
        shutil.rmtree(partial / config.UNPACKING)
        partial.rename(site)

    def _install_wheels(self, release: ReleaseFiles, image: ImageEntry, target: str) -> None:
        wheels = PurePosixPath(config.WHEELS_DIR)
        pip = wheels / PurePosixPath(pip_wheel(release.manifest)).name
        argv = install_argv("python3", pip, wheels, PurePosixPath(config.SITE_DIR))
        engine = self._traits()
        user = "0:0" if engine.rootless else f"{os.geteuid()}:{os.getegid()}"
        name = self._free_name(release.manifest.name, release.manifest.version, "prepare")
        body = config.prepare_body(
            release, image=self._image_id(image), argv=argv, user=user, target=target, root=self._root, engine=engine
        )
        self._environment.talk.say(f"installing {len(release.manifest.wheels)} wheels in a container without network")
        self._create(name, body)
        try:
            self._client.post(f"/containers/{name}/start", operation=f"start container {name}")
            ended = self._client.post(
                f"/containers/{name}/wait", operation=f"wait for container {name}", timeout=_INSTALL_SECONDS
            )
            output = self._client.logs(name, 100_000)
        finally:
            self._delete(name)
        log = release.directory / "prepare.log"
        log.write_text(output, encoding="utf-8")
        if ended.get("StatusCode") != 0:
            raise EngineError(
                f"installing the wheels in image {image.name} failed (exit code {ended.get('StatusCode')})",
                remedy=f"the whole output is in {log}",
                details=output.splitlines()[-20:],
            )

    # --- running ------------------------------------------------------------------------------------------

    def start(self, release: ReleaseFiles, *, slot: Slot, host: str, port: int) -> Instance:
        """Start the container; nothing is ever pulled.

        Raises:
            EngineError: the image is not there, or the port is taken.
            DockerError: the engine refused, or the container would not be sealed off.
        """
        manifest = release.manifest
        name = self._free_name(manifest.name, manifest.version, slot)
        sealed = is_loopback(host)
        body = config.service_body(
            release,
            image=self._image_id(self._plan_image(release)),
            slot=slot,
            host="127.0.0.1" if host == "localhost" else host,
            port=port,
            network=ensure_network(self._client, sealed=sealed),
            threads=physical_cores(),
            root=self._root,
            engine=self._traits(),
        )
        self._create(name, body)
        try:
            self._client.post(f"/containers/{name}/start", operation=f"start container {name}")
            container = self._inspect(name) or {}
            if sealed and (container.get("State") or {}).get("Running"):
                check_sealed(self._client, f"start container {name}", container)
        except DockerError as error:
            self._delete(name)
            raise _named_start_error(error, name, port) from error
        return self._instance(manifest.name, manifest.version, slot, container)

    def find(self, name: str, version: str, slot: Slot) -> Optional[Instance]:
        """The container of that slot, running or not."""
        found = self._held(name, version, slot)
        return None if found is None else self._instance(name, version, slot, found)

    def state(self, instance: Instance) -> InstanceState:
        """What its container does. One that the engine is about to restart counts as exited."""
        container = self._inspect(self._container(instance))
        if container is None:
            return InstanceState("absent")
        return config.state_of(container, self._environment.clock.now())

    def logs(self, instance: Instance, lines: int = 200) -> str:
        """The end of the container's log; empty when it is gone."""
        try:
            return self._client.logs(self._container(instance), lines)
        except DockerError as error:
            if error.status == 404:
                return ""
            raise

    def stop(self, instance: Instance) -> None:
        """Stop the container and keep it: it holds its image against `docker image prune`."""
        name = self._container(instance)
        if self.state(instance).status == "paused":  # not every engine can stop one that is
            self._client.post(f"/containers/{quote(name)}/unpause", operation=f"go on with container {name}")
        try:
            self._client.post(
                f"/containers/{quote(name)}/stop",
                operation=f"stop container {name}",
                query={"t": str(_STOP_SECONDS)},
                timeout=_STOP_SECONDS + 60,
            )
        except DockerError as error:
            if error.status != 404:
                raise

    def remove(self, instance: Instance) -> None:
        """Stop and remove the container; its image stays."""
        self.stop(instance)
        self._delete(self._container(instance))

    def sweep(self, kept: Sequence[BundleManifest]) -> list[str]:
        """Remove images loaded from here that nothing needs, and our networks once no container of ours is left."""
        gone, stays = self._images.sweep(kept)
        for line in stays:
            self._environment.talk.say(line)
        return [*(f"image {name}" for name in gone), *(f"network {name}" for name in remove_networks(self._client))]

    # --- the engine ---------------------------------------------------------------------------------------

    @property
    def _client(self) -> DockerClient:
        if self._opened is None:
            self._opened = DockerClient(socket_path(self._environment.docker_host))
        return self._opened

    @property
    def _root(self) -> str:
        return str(self._environment.root)

    def _traits(self) -> config.EngineTraits:
        limits = (resource.getrlimit(resource.RLIMIT_NOFILE)[1], resource.getrlimit(resource.RLIMIT_NPROC)[1])
        return config.traits(self._client.info(), self._client.components(), limits)

    def _inspect(self, name: str) -> Optional[Mapping[str, Any]]:
        found: Optional[Mapping[str, Any]] = self._client.find_json(
            f"/containers/{quote(name)}/json", operation=f"look at container {name}"
        )
        return found

    def _held(self, name: str, version: str, slot: str) -> Optional[Mapping[str, Any]]:
        """The container of that slot, by its labels: joined by dashes, demo v2-x and demo-v2 x have one name."""
        for possible in config.container_names(name, version, slot):
            found = self._inspect(possible)
            if found is not None and config.is_of(found, self._root, name, version, slot):
                return found
        return None

    def _free_name(self, name: str, version: str, slot: str) -> str:
        """A name for the container of a slot, after removing the one that was in it.

        Raises:
            EngineError: another installation, or somebody else, has it.
        """
        older = self._held(name, version, slot)
        if older is not None:
            self._delete(str(older["Id"]))
        plain, distinct = config.container_names(name, version, slot)
        taken = self._inspect(plain)
        if taken is None:
            return plain
        if config.owner(taken) != self._root:
            raise _not_ours(plain, config.owner(taken))
        return distinct

    def _container(self, instance: Instance) -> str:
        known = instance.details.get("container")
        if known:
            return str(known)
        found = self._held(instance.name, instance.version, instance.slot)
        plain = config.container_names(instance.name, instance.version, instance.slot)[0]
        return plain if found is None else _name_of(found)

    def _create(self, name: str, body: Mapping[str, Any]) -> None:
        self._client.post("/containers/create", body, operation=f"create container {name}", query={"name": name})

    def _delete(self, name: str) -> None:
        self._client.delete(
            f"/containers/{quote(name)}", operation=f"remove container {name}", query={"force": "1", "v": "1"}
        )

    def _instance(self, name: str, version: str, slot: Slot, container: Mapping[str, Any]) -> Instance:
        host, port = config.published(container)
        details = {"container": _name_of(container), "id": container.get("Id", "")}
        return Instance(name, version, slot, host, port, details)

    # --- images -------------------------------------------------------------------------------------------

    def _plan_image(self, release: ReleaseFiles) -> ImageEntry:
        for image in release.manifest.images:
            if image.name == release.plan.image:
                return image
        raise EngineError(f"launch plan {release.plan.id} wants image {release.plan.image}, which the bundle lacks")

    def _image_id(self, image: ImageEntry) -> str:
        found = self._images.find(image)
        if found is None:
            raise EngineError(
                f"image {image.name} (id {image.config_digest}) is not in the container engine any more",
                remedy="install the bundle again from its medium; docker image prune -a removes unused images",
            )
        return str(found["Id"])

    def _say_load(self, event: Mapping[str, Any]) -> None:
        progress = event.get("progressDetail") or {}
        if progress.get("total"):
            what = f"{event.get('status') or 'Loading layer'} {event.get('id', '')}".strip()
            self._environment.talk.progress(what, int(progress.get("current", 0)), int(progress["total"]))


def _name_of(container: Mapping[str, Any]) -> str:
    return str(container.get("Name", "")).lstrip("/")


def _not_ours(name: str, owner: Optional[str]) -> EngineError:
    return EngineError(
        f"container {name} belongs to {f'the installation in {owner}' if owner else 'somebody else'}",
        remedy=f"uninstall it there, or use --root {owner}" if owner else f"docker rename {name} {name}-before",
    )


def _named_start_error(error: DockerError, name: str, port: int) -> EngineError:
    message = error.message.lower()
    remedy = error.remedy or "see the engine's log: journalctl -u docker"
    if "address already in use" in message or "port is already allocated" in message:
        remedy = f"free port {port} (ss -ltnp 'sport = :{port}' shows who has it), or install with another --port"
    elif "could not select device driver" in message or "nvidia" in message:
        remedy = "install nvidia-container-toolkit, run nvidia-ctk runtime configure --runtime=docker, restart docker"
    return EngineError(error.summary, remedy=remedy)
