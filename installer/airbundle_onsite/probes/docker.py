"""The container engine: whether it answers, what it can do, and where its image layers really land."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, Optional, Protocol

from airbundle_onsite.contract.fingerprint import DockerFacts
from airbundle_onsite.dockerapi import DockerClient, DockerError, socket_path
from airbundle_onsite.probes.files import HostFiles
from airbundle_onsite.system import Runner

_CDI = ("/etc/cdi", "/var/run/cdi")
_KIND = re.compile(r"""^kind:\s*["']?([^"'\s]+)""", re.MULTILINE)
_DEVICE = re.compile(r"""^\s*(?:- )?name:\s*["']?([^"'\s]+)""", re.MULTILINE)
_ROOT = re.compile(r"""^root\s*=\s*["']([^"']+)["']""", re.MULTILINE)
_SYSTEM_CONTAINERD = "/run/containerd/containerd.sock"
_TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk")
_SECONDS = 10


class Engine(Protocol):
    """The two questions asked; `dockerapi.DockerClient` answers them. Both raise DockerError."""

    def version(self) -> Mapping[str, Any]: ...

    def info(self) -> Mapping[str, Any]: ...


OpenEngine = Callable[[Path], Engine]


def open_engine(path: Path) -> Engine:
    """A client of the engine behind a unix socket, which is not contacted yet."""
    return DockerClient(path, timeout=_SECONDS)


def docker_facts(files: HostFiles, environ: Mapping[str, str], connect: OpenEngine = open_engine) -> DockerFacts:
    """Facts of the engine that the installer would use, and of what the host offers it."""
    search = environ.get("PATH", "")
    facts = _engine_facts(files, environ, search, connect)
    return dataclasses.replace(facts, cdi=cdi_devices(files), gpu_toolkit=_toolkit(search))


def _engine_facts(files: HostFiles, environ: Mapping[str, str], search: str, connect: OpenEngine) -> DockerFacts:
    client = shutil.which("docker", path=search) or ""
    try:
        socket = socket_path(environ=environ)
    except DockerError as error:
        return DockerFacts(state="failed", error=error.message)
    where = str(socket)
    if not files.path(where).exists():
        if not client or _is_podman_shim(client):
            return DockerFacts(state="absent")
        reason = f"{client} is installed, but no engine has opened {where}"
        return DockerFacts(state="failed", socket=where, snap=_is_snap(client), error=reason)
    engine = connect(files.path(where))
    try:
        return _answered(where, engine.version(), engine.info(), files, client)
    except DockerError as error:
        denied = isinstance(error.__cause__, PermissionError)
        return DockerFacts(state="denied" if denied else "failed", socket=where, error=error.message)
    except (ValueError, TypeError, AttributeError) as error:  # not JSON, or not the JSON of an engine
        reason = f"what answers at {where} is no container engine: {error}"
        return DockerFacts(state="failed", socket=where, error=reason)


def _answered(
    where: str, version: Mapping[str, Any], info: Mapping[str, Any], files: HostFiles, client: str
) -> DockerFacts:
    components = version.get("Components") or []
    podman = any("podman" in str(item.get("Name", "")).lower() for item in components)
    driver, store = _image_store(info, files)
    security = [str(option) for option in info.get("SecurityOptions") or []]
    return DockerFacts(
        state="ok",
        server="podman" if podman else "docker",
        version=str(version.get("Version", "")),
        api_version=str(version.get("ApiVersion", "")),
        min_api_version=str(version.get("MinAPIVersion", "")),
        storage_driver=driver,
        image_store=store,
        socket=where,
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        snap=str(info.get("DockerRootDir", "")).startswith("/var/snap/") or _is_snap(client),
        rootless=any("rootless" in option for option in security),
        cgroup_driver=str(info.get("CgroupDriver", "")),
    )


def _image_store(info: Mapping[str, Any], files: HostFiles) -> tuple[str, str]:
    """Storage driver, and the directory whose disk fills when an image is loaded.

    With the containerd image store the engine's data root stays small and its setting does not move the
    images: they lie under containerd's own root.
    """
    driver, data_root = str(info.get("Driver", "")), str(info.get("DockerRootDir", ""))
    status = info.get("DriverStatus") or []
    if ["driver-type", "io.containerd.snapshotter.v1"] not in [list(pair) for pair in status]:
        return driver, data_root
    address = str((info.get("Containerd") or {}).get("Address", ""))
    if not address and files.exists(_SYSTEM_CONTAINERD):
        address = _SYSTEM_CONTAINERD
    if not address or "/docker/containerd/" in address:  # the engine runs a containerd of its own
        return f"containerd:{driver}", f"{data_root}/containerd/daemon"
    configured = _ROOT.search(files.text("/etc/containerd/config.toml") or "")
    return f"containerd:{driver}", configured.group(1) if configured else "/var/lib/containerd"


def _is_snap(client: str) -> bool:
    return client.startswith("/snap/") or os.path.realpath(client or "/").startswith("/snap/")


def _is_podman_shim(client: str) -> bool:
    """Whether `docker` is the script with which podman offers itself under that name."""
    try:
        with Path(client).open("rb") as file:
            head = file.read(2048)
    except OSError:
        return False
    return head.startswith(b"#!") and b"podman" in head


def _toolkit(search: str) -> str:
    found = (shutil.which(name, path=search) or shutil.which(name, path="/usr/bin:/usr/local/bin") for name in _TOOLKIT)
    return next((path for path in found if path), "")


def cdi_devices(files: HostFiles) -> tuple[str, ...]:
    """Full device names, ``vendor/class=name``, of the CDI specifications on the host."""
    return tuple(sorted(set(_cdi_names(files))))


def _cdi_names(files: HostFiles) -> Iterator[str]:
    for directory in _CDI:
        for name in files.names(directory):
            text = files.text(f"{directory}/{name}") or ""
            if name.endswith(".json"):
                yield from _cdi_json(text)
            elif name.endswith((".yaml", ".yml")):
                # The two keys needed stand on lines of their own in every generator's output; a YAML parser
                # would be a dependency for nothing.
                kind = _KIND.search(text)
                yield from (f"{kind.group(1)}={device}" for device in _DEVICE.findall(text) if kind)


def _cdi_json(text: str) -> list[str]:
    try:
        document = json.loads(text)
        return [f"{document['kind']}={device['name']}" for device in document.get("devices") or []]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return []


def podman_version(runner: Runner, environ: Mapping[str, str]) -> str:
    """Version of the podman on PATH, or an empty string."""
    path: Optional[str] = shutil.which("podman", path=environ.get("PATH", ""))
    if path is None:
        return ""
    done = runner.run([path, "--version"], timeout=_SECONDS)
    words = done.stdout.split()
    return words[-1] if done.code == 0 and words else "unknown"
