"""Rehearses a bundle of the docker runtime in a real engine, which afterwards has what it had before.

The installer's sealed network leads to an address that nobody has. The sinkhole is plugged in there, and a proxy before
the engine's socket sees to it that it is there, and is asked for names, before a container is created.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests

from airbundle.rehearse.apiproxy import ApiProxy
from airbundle.rehearse.askers import PROC, ProcAskers
from airbundle.rehearse.dockertry import try_without_start
from airbundle.rehearse.notebook import Recorder
from airbundle.rehearse.plug import Plug, bridge_with
from airbundle.rehearse.report import Step
from airbundle.rehearse.signals import shielded
from airbundle.rehearse.site import Place, SiteHalf
from airbundle.rehearse.tidy import Inventory
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import BusyError, PreflightError
from airbundle_onsite.system import Runner

ISOLATION = "sealed containers in a real engine, a sinkhole in the place of their dead gateway and resolver"
ROOT_LABEL = "airbundle.root"
"""The label by which the installer finds its containers."""
_GATEWAY_KEY = "DefaultGatewayIPv4"  # docker's name for the address that containers are routed to
_USUAL_SOCKET = "/var/run/docker.sock"
_TIMEOUT = 120  # seconds


def run_in_engine(
    place: Place, manifest: BundleManifest, runner: Runner, environ: Mapping[str, str], recorder: Recorder
) -> tuple[str, dict[str, str]]:
    """Run the site's half of a bundle against the engine that DOCKER_HOST names.

    Returns:
        How the network was cut, and facts on the engine.

    Raises:
        PreflightError: no engine here, or not enough rights to plug a sinkhole into its network.
        BusyError: another rehearsal uses it.
    """
    path = _socket_path(environ)
    if os.geteuid() != 0:
        raise PreflightError(
            "a rehearsal with docker needs root: the sinkhole becomes a port of the engine's bridge",
            remedy="run it with sudo -E, or on a machine where you may",
        )
    with _alone(path), _client(path) as client, _client(path) as lookups:
        facts = _facts(client)
        inventory = Inventory(client, manifest)
        guest = _Guest(client, _Containers(lookups, str(place.root)), inventory, runner, recorder)
        try:
            with _proxy(path, guest) as (proxy, address):
                environment = {**place.environment, "DOCKER_HOST": f"unix://{address}"}
                inside = Place(place.bundle, place.root, place.scratch, place.port, place.watch, environment)
                instead = _instead(inside, manifest, address, recorder)
                SiteHalf(inside, manifest, runner, recorder, instead).run()
            if proxy.failure is not None:
                raise proxy.failure
        finally:
            with shielded():
                _tidy(guest, inventory, str(place.root), recorder)
    return ISOLATION, facts


def _instead(place: Place, manifest: BundleManifest, proxy: Path, recorder: Recorder) -> Callable[[], None]:
    """The tries go through the proxy as the installer does, so that their network leads to the sinkhole, too."""

    def instead() -> None:
        with _client(proxy) as client:
            try_without_start(place, manifest, client, recorder, labels={ROOT_LABEL: str(place.root)})

    return instead


def _tidy(guest: _Guest, inventory: Inventory, root: str, recorder: Recorder) -> None:
    """Unplug, and give the engine back as it was."""
    recorder.begin("tidy", "give the engine back as it was")
    began = time.monotonic()
    try:
        guest.close()
    finally:
        left = inventory.restore(f"{ROOT_LABEL}={root}")
        summary = "the engine has what it had before" if not left else f"left in the engine: {'; '.join(left)}"
        recorder.done(Step("tidy", "warn" if left else "pass", summary, round(time.monotonic() - began, 3)))


# --- the engine -------------------------------------------------------------------------------------------


def _socket_path(environ: Mapping[str, str]) -> Path:
    address = environ.get("DOCKER_HOST") or f"unix://{_USUAL_SOCKET}"
    if not address.startswith("unix://"):
        raise PreflightError(
            f"DOCKER_HOST is {address}: a rehearsal needs an engine on this machine, by its unix socket",
            remedy="run it on the engine's machine, with DOCKER_HOST=unix:///path",
        )
    return Path(address.removeprefix("unix://"))


@contextlib.contextmanager
def _client(path: Path) -> Iterator[docker.APIClient]:
    """A client, and what goes wrong with it in a sentence."""
    try:
        client = docker.APIClient(base_url=f"unix://{path}", version="auto", timeout=_TIMEOUT)
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise PreflightError(
            f"no docker engine answers at {path}: {error}",
            remedy="start docker, or set DOCKER_HOST=unix:///path of its socket",
        ) from error
    try:
        with _in_words():
            yield client
    finally:
        client.close()


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise PreflightError(f"the docker engine refused: {error}", remedy="see the engine's log") from error


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One rehearsal at a time in an engine, whose sealed network they would share. The name goes with the process."""
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        try:
            holder.bind(f"\0airbundle-rehearsal-{name}")
        except OSError as error:
            raise BusyError(f"the docker engine at {path}", None) from error
        yield


@contextlib.contextmanager
def _proxy(engine: Path, guest: _Guest) -> Iterator[tuple[ApiProxy, Path]]:
    directory = Path(tempfile.mkdtemp(prefix="ab-"))  # short: see ApiProxy
    try:
        address = directory / "docker.sock"
        proxy = ApiProxy(
            address,
            engine,
            {"/containers/create": guest.container_body, "/networks/create": guest.network_body},
        )
        try:
            yield proxy, address
        finally:
            proxy.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _facts(client: docker.APIClient) -> dict[str, str]:
    info = client.info()
    return {"docker": str(info.get("ServerVersion", "")), "docker_storage": str(info.get("Driver", ""))}


# --- the sinkhole in it -----------------------------------------------------------------------------------


@record
class _Network:
    """What matters of a docker network.

    Attributes:
        host: this machine's address on it.
        gateway: the dead one.
        bridges: names that its bridge probably has.
        occupied: addresses of containers that are on it now.
    """

    id: str
    host: str
    gateway: str
    bridges: tuple[str, ...]
    occupied: frozenset[str]


class _Guest:
    """Changes what the installer creates, and plugs the sinkhole in before the first container of a network."""

    def __init__(
        self,
        client: docker.APIClient,
        containers: _Containers,
        inventory: Inventory,
        runner: Runner,
        recorder: Recorder,
    ) -> None:
        self._client, self._containers, self._inventory = client, containers, inventory
        self._runner, self._recorder = runner, recorder
        self._plugs: dict[str, Plug] = {}

    def network_body(self, name: str, body: dict[str, Any]) -> Mapping[str, Any]:
        """A network with a way out gets the sinkhole for a gateway; the sealed one has a dead gateway already."""
        self._inventory.brought_network(name)
        for pool in (body.get("IPAM") or {}).get("Config") or []:
            reserved = pool.setdefault("AuxiliaryAddresses", {})
            if _GATEWAY_KEY not in reserved:
                reserved[_GATEWAY_KEY] = str(ipaddress.IPv4Network(pool["Subnet"]).network_address + 2)
        return body

    def container_body(self, name: str, body: dict[str, Any]) -> Mapping[str, Any]:
        """The sinkhole is there before the container, and its resolver."""
        host = body.setdefault("HostConfig", {})
        mode = str(host.get("NetworkMode") or "bridge")
        if mode == "none":
            return body
        if mode == "host" or mode.startswith("container:"):
            raise PreflightError(
                f"container {name} wants the network of {mode}, where a rehearsal sees nothing",
                remedy="let the launch plan use the installer's own network",
            )
        with _in_words():
            network = _network(self._client, mode)
        if network.id not in self._plugs:
            self._plugs[network.id] = self._plug(mode, network)
        host["Dns"] = [network.gateway]
        for bindings in (host.get("PortBindings") or {}).values():
            for binding in bindings or ():
                if binding.get("HostIp") in ("", "0.0.0.0", "::"):  # a site's neighbours may use it; the office's not
                    binding["HostIp"] = "127.0.0.1"
        return body

    def _plug(self, name: str, network: _Network) -> Plug:
        bridge = bridge_with(network.host, network.bridges)
        if bridge is None:
            raise PreflightError(
                f"no interface of this machine has {network.host}, the address of docker's network {name}",
                remedy="rehearse with an engine that runs on this machine itself as root",
            )
        askers = ProcAskers(self._containers.process_at)
        return Plug(bridge, network.gateway, askers, self._recorder.heard, network.occupied, self._runner)

    def close(self) -> None:
        """Unplug everything."""
        plugs, self._plugs = list(self._plugs.values()), {}
        for plug in plugs:
            plug.close()


def _network(client: docker.APIClient, name: str) -> _Network:
    found = client.inspect_network(name)
    pool = ((found.get("IPAM") or {}).get("Config") or [{}])[0]
    gateway = (pool.get("AuxiliaryAddresses") or {}).get(_GATEWAY_KEY, "")
    if not gateway:
        raise PreflightError(
            f"docker's network {name} was here before and leads outside, so a rehearsal would see nothing",
            remedy=f"remove it when nothing uses it: docker network rm {name}",
        )
    containers = (found.get("Containers") or {}).values()
    occupied = frozenset(str(each.get("IPv4Address", "")).partition("/")[0] for each in containers)
    named = str((found.get("Options") or {}).get("com.docker.network.bridge.name", ""))
    bridges = (named, f"br-{found['Id'][:12]}")
    return _Network(str(found["Id"]), str(pool.get("Gateway", "")), str(gateway), bridges, occupied)


class _Containers:
    """The rehearsal's own containers, by address."""

    def __init__(self, client: docker.APIClient, root: str) -> None:
        self._client, self._label = client, f"{ROOT_LABEL}={root}"
        self._known: dict[str, int] = {}

    def process_at(self, address: str) -> int | None:
        """Process id of the container with that address."""
        pid = self._known.get(address)
        if pid is None or not (PROC / str(pid)).exists():
            self._look()
        return self._known.get(address)

    def _look(self) -> None:
        self._known = {}
        for listed in self._client.containers(filters={"label": self._label}):
            with contextlib.suppress(docker.errors.NotFound):
                found = self._client.inspect_container(listed["Id"])
                networks = ((found.get("NetworkSettings") or {}).get("Networks") or {}).values()
                pid = int((found.get("State") or {}).get("Pid") or 0)
                self._known.update({str(each.get("IPAddress", "")): pid for each in networks if pid})
