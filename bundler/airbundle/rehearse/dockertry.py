"""The docker runtime where this machine cannot start the engine: load the images, try the engine in containers."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import docker.errors
import docker.types
import requests

from airbundle.rehearse import payload
from airbundle.rehearse.notebook import Recorder
from airbundle.rehearse.report import Step
from airbundle.rehearse.rooms import Served
from airbundle.rehearse.site import Place
from airbundle.rehearse.tries import install_argv, run_tries
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import Status
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import record
from airbundle_onsite.system import Completed

# Where the installer mounts things in a container, too.
_MODEL, _MODELS, _CONFIG, _SITE, _STATE, _WHEELS, _PROBES = (
    f"/airbundle/{name}" for name in ("model", "models", "config", "site", "state", "wheels", "probes")
)
_INSTALL_SECONDS = 3600
_TAIL = 30
_LINES = 20_000  # of a container's output at most
_NETWORK = "airbundle-rehearsal"
# Of the block for benchmarking (RFC 2544) that the installer begins at its other end.
_SUBNETS = tuple(f"198.18.255.{last}/28" for last in range(240, -1, -16))


def try_without_start(
    place: Place, manifest: BundleManifest, client: docker.APIClient, recorder: Recorder, labels: Mapping[str, str]
) -> None:
    """Load the images as the site would, and make the plans' tries; what cannot be done is said.

    Args:
        client: whatever it creates leads to the sinkhole.
    """
    plans = [plan for plan in manifest.launch if plan.runtime == "docker"]
    if not plans or manifest.needs.profile.arch != os.uname().machine:
        recorder.left_out(f"the engine itself: it is built for {manifest.needs.profile.arch}")
        return
    if not any(entry.path == f"{layout.IMAGES}/manifest.json" for entry in manifest.files):
        recorder.left_out("loading the images: this bundle has no archive of them that docker reads by itself")
        return
    room = DockerRoom(place, manifest, client, labels)
    if room.load(recorder) and room.install(plans[0], recorder):
        run_tries(plans, room, recorder)


class DockerRoom:
    """See `airbundle.rehearse.rooms.Room`: containers of the plans' images on a network of their own."""

    def __init__(
        self, place: Place, manifest: BundleManifest, client: docker.APIClient, labels: Mapping[str, str]
    ) -> None:
        self._place, self._manifest = place, manifest
        self._client, self._labels = client, labels
        self._directory = place.scratch / "release"
        self._network = ""

    def load(self, recorder: Recorder) -> bool:
        """Stream the images into the engine, and write out the small files."""
        recorder.begin("images", "load the images")
        began = time.monotonic()
        try:
            archive = image_archive(self._place.bundle, self._manifest)
            for _ in self._client.load_image(archive):  # type: ignore[no-untyped-call]
                pass
            said = ""
        except (docker.errors.APIError, requests.exceptions.RequestException) as error:
            said = str(error)
        payload.extract(self._place.bundle, self._manifest, self._directory, frozenset({"wheel", "config"}))
        for name in ("site", "state", layout.MODELS, layout.CONFIG):
            path = self._directory / name
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
        names = ", ".join(image.name for image in self._manifest.images)
        seconds = round(time.monotonic() - began, 3)
        recorder.done(
            Step("images", "fail" if said else "pass", said or f"{names} loaded", seconds, exit_code=1 if said else 0)
        )
        return not said

    def install(self, plan: LaunchPlan, recorder: Recorder) -> bool:
        """Install the wheels inside the image, when the plan has any."""
        pip = next((wheel.path for wheel in self._manifest.wheels if wheel.name == "pip"), None)
        if not plan.wheels or pip is None:
            return True
        recorder.begin("wheels", "install the wheels in the image without a network")
        began = time.monotonic()
        argv = install_argv("python3", f"{_WHEELS}/{Path(pip).name}", _WHEELS, _SITE)
        done = self.execute(plan, argv, {"HOME": "/tmp"}, _INSTALL_SECONDS)
        evidence = tuple((done.stdout + done.stderr).splitlines()[-_TAIL:]) if done.code else ()
        count = f"{len(self._manifest.wheels)} wheels"
        summary = f"{count} installed by the bundled pip" if not done.code else f"pip failed on {count}"
        seconds = round(time.monotonic() - began, 3)
        status: Status = "fail" if done.code else "pass"
        recorder.done(Step("wheels", status, summary, seconds, exit_code=done.code, evidence=evidence))
        return not done.code

    def values(self, plan: LaunchPlan) -> dict[str, str]:
        return {
            "python": "python3",
            "site": _SITE,
            "model": _MODEL,
            "models": _MODELS,
            "config": _CONFIG,
            "state": _STATE,
            "host": "0.0.0.0",
            "port": str(plan.port),
            "served_name": plan.model,
            "threads": str(os.cpu_count() or 1),
            "probes": _PROBES,
        }

    def weights(self, plan: LaunchPlan) -> int:
        return sum(model.size for model in self._manifest.models)

    def prepare(self, probes: Mapping[str, str], model: str) -> None:
        payload.write_texts(self._directory / "probes", probes)
        if model:
            payload.extract_models(self._place.bundle, self._manifest, self._directory, whole=model == "whole")

    def execute(self, plan: LaunchPlan, argv: Sequence[str], variables: Mapping[str, str], seconds: int) -> Completed:
        try:
            with self._running(plan, argv, variables) as container:
                try:
                    code = int(self._client.wait(container, timeout=seconds)["StatusCode"])
                except requests.exceptions.RequestException:
                    code = 124
                return Completed(tuple(argv), code, self._log(container), "")
        except docker.errors.APIError as error:
            return Completed(tuple(argv), 126, "", str(error.explanation or error))

    @contextlib.contextmanager
    def serve(self, plan: LaunchPlan, argv: Sequence[str], variables: Mapping[str, str]) -> Iterator[Served]:
        port = f"{plan.port}/tcp"
        with self._running(plan, argv, variables, published=port) as container:
            ports = self._client.inspect_container(container)["NetworkSettings"]["Ports"]
            number = int((ports.get(port) or [{"HostPort": 0}])[0]["HostPort"])  # none when it has ended already
            yield _Container(self._client, container, self._log, ("127.0.0.1", number))

    @contextlib.contextmanager
    def _running(
        self, plan: LaunchPlan, argv: Sequence[str], variables: Mapping[str, str], published: str = ""
    ) -> Iterator[str]:
        body = self._body(plan, argv, variables, published)
        container = str(self._client.create_container_from_config(body)["Id"])  # type: ignore[no-untyped-call]
        try:
            self._client.start(container)
            yield container
        finally:
            self._client.remove_container(container, v=True, force=True)

    def _log(self, container: str) -> str:
        return str(self._client.logs(container, tail=_LINES).decode("utf-8", "replace"))

    def _body(
        self, plan: LaunchPlan, argv: Sequence[str], variables: Mapping[str, str], published: str
    ) -> dict[str, Any]:
        environment = dict(variables)
        if plan.wheels:
            environment["PYTHONPATH"] = _SITE
        mounts = {
            _CONFIG: layout.CONFIG,
            _SITE: "site",
            _STATE: "state",
            _MODEL: layout.model_path(plan.model),
            _MODELS: layout.MODELS,
            _WHEELS: layout.WHEELS,
            _PROBES: "probes",
        }
        writable = (_SITE, _STATE)
        return {
            "Image": plan.image,
            "Entrypoint": list(argv[:1]),
            "Cmd": list(argv[1:]),
            "Env": [f"{name}={value}" for name, value in sorted(environment.items())],
            "Labels": dict(self._labels),
            "Healthcheck": {"Test": ["NONE"]},
            "ExposedPorts": {published: {}} if published else {},
            "HostConfig": {
                "NetworkMode": self._network_name(),
                "PortBindings": {published: [{"HostIp": "127.0.0.1", "HostPort": ""}]} if published else {},
                "CapDrop": ["ALL"],
                "CapAdd": ["DAC_OVERRIDE"],
                "SecurityOpt": ["no-new-privileges"],
                "ShmSize": plan.shm_bytes or 64 << 20,
                "Mounts": [
                    {
                        "Type": "bind",
                        "Source": str(self._directory / source),
                        "Target": target,
                        "ReadOnly": target not in writable,
                    }
                    for target, source in mounts.items()
                    if (self._directory / source).is_dir()
                ],
            },
        }

    def _network_name(self) -> str:
        """A network for the tries, made with the first of them; what it leads to is the caller's business."""
        for subnet in () if self._network else _SUBNETS:
            gateway = str(ipaddress.IPv4Network(subnet).network_address + 1)
            pool = docker.types.IPAMPool(subnet, gateway=gateway, aux_addresses={})
            try:
                self._client.create_network(
                    _NETWORK,
                    driver="bridge",
                    check_duplicate=True,
                    ipam=docker.types.IPAMConfig(pool_configs=[pool]),
                    options={"com.docker.network.bridge.enable_ip_masquerade": "false"},
                )
            except docker.errors.APIError as error:
                if "overlap" not in str(error.explanation or error).lower() or subnet == _SUBNETS[-1]:
                    raise
            else:
                self._network = _NETWORK
                break
        return _NETWORK


@record
class _Container:
    client: docker.APIClient
    container: str
    read: Callable[[str], str]
    address: tuple[str, int]

    def ended(self) -> int | None:
        state = self.client.inspect_container(self.container)["State"]
        return None if state["Running"] else int(state["ExitCode"]) or 1

    def log(self) -> str:
        return self.read(self.container)


def image_archive(bundle: Path, manifest: BundleManifest) -> Iterator[bytes]:
    """The bundle's images/ as an archive that docker loads, streamed."""
    prefix = f"{layout.IMAGES}/"
    for entry in manifest.files:
        if not entry.path.startswith(prefix):
            continue
        info = tarfile.TarInfo(entry.path.removeprefix(prefix))
        info.size, info.mode = entry.size, 0o644
        yield info.tobuf(tarfile.GNU_FORMAT)
        yield from payload.chunks(bundle, manifest, entry)
        yield bytes(-entry.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
