"""The container that a launch plan describes, as the Docker Engine API wants it. Pure: values in, JSON values out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Optional

from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.layout import CONFIG, MODELS
from airbundle_onsite.contract.record import record
from airbundle_onsite.runtimes.base import InstanceState, ReleaseFiles
from airbundle_onsite.runtimes.docker_network import SEALED
from airbundle_onsite.runtimes.values import PROXIES, fill_plan

# Where things are inside a container.
MODEL_DIR = "/airbundle/model"
MODELS_DIR = "/airbundle/models"
CONFIG_DIR = "/airbundle/config"
SITE_DIR = "/airbundle/site"
STATE_DIR = "/airbundle/state"
WHEELS_DIR = "/airbundle/wheels"
UNPACKING = ".unpacking"
"""Directory in which pip unpacks wheels, inside the one that it installs into."""

LABEL = "airbundle"
_LOG_LIMITS = {"max-size": "50m", "max-file": "3"}


@record
class EngineTraits:
    """What of an engine changes how a container is written.

    Attributes:
        selinux: the engine labels files, so mounts must be relabelled.
        rootless: the engine's root is an ordinary user of the host.
        podman: it is podman.
        nvidia_runtime: the NVIDIA runtime is registered.
        cdi: it reads CDI specifications.
        init: it has an init program, which passes signals on and collects orphans.
        nofile, nproc: highest limits it may set; -1 is unlimited.
    """

    selinux: bool = False
    rootless: bool = False
    podman: bool = False
    nvidia_runtime: bool = False
    cdi: bool = False
    init: bool = False
    nofile: int = 65536
    nproc: int = -1


def traits(info: Mapping[str, Any], components: Mapping[str, str], limits: tuple[int, int]) -> EngineTraits:
    """What to know of an engine.

    Args:
        info: its ``/info``.
        components: versions by name, from its ``/version``.
        limits: this process's hard limits of open files and of processes.
    """
    security = " ".join(str(option) for option in info.get("SecurityOptions") or [])
    nofile, nproc = limits
    return EngineTraits(
        selinux="name=selinux" in security,
        rootless="name=rootless" in security,
        podman=any("podman" in name.lower() for name in components),
        nvidia_runtime="nvidia" in (info.get("Runtimes") or {}),
        cdi=bool(info.get("CDISpecDirs")),
        init=components.get("docker-init", "N/A") not in ("", "N/A"),
        nofile=65536 if nofile < 0 else min(65536, nofile),
        nproc=nproc,
    )


def container_names(name: str, version: str, slot: str) -> tuple[str, str]:
    """``airbundle-<name>-<version>-<slot>``, and what is taken when a container of another release has that name."""
    plain = f"airbundle-{name}-{version}-{slot}"
    return plain, f"{plain}.{hashlib.sha256(f'{name}@{version}'.encode()).hexdigest()[:8]}"


def labels(release: ReleaseFiles, root: str, slot: str) -> dict[str, str]:
    """Labels by which a container is found again."""
    manifest = release.manifest
    return {
        f"{LABEL}.name": manifest.name,
        f"{LABEL}.version": manifest.version,
        f"{LABEL}.slot": slot,
        f"{LABEL}.plan": release.plan.id,
        f"{LABEL}.root": root,
    }


def service_body(
    release: ReleaseFiles,
    *,
    image: str,
    slot: str,
    host: str,
    port: int,
    network: str,
    threads: int,
    root: str,
    engine: EngineTraits,
) -> dict[str, Any]:
    """Body of ``/containers/create`` for an engine.

    Args:
        image: id of the image; a name could be moved to another image, or be pulled.
        host, port: where the port is published on this machine.
        network: name of the network.
        threads: physical cores.
        root: installation root.
    """
    plan = release.plan
    argv, env = fill_plan(plan, _values(plan, threads))
    # An empty value, since the engine's client configuration or the image may set these.
    env = {**dict.fromkeys(PROXIES, ""), **env}
    if plan.wheels:
        env["PYTHONPATH"] = SITE_DIR
    return {
        "Image": image,
        "Entrypoint": argv[:1],
        "Cmd": argv[1:],
        "Env": [f"{name}={value}" for name, value in sorted(env.items())],
        "Labels": {**labels(release, root, slot), f"{LABEL}.host": host, f"{LABEL}.port": str(port)},
        "ExposedPorts": {f"{plan.port}/tcp": {}},
        # A health check of the image may call its own, proxied or remote, address; readiness is proven from outside.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **_mounts(_service_mounts(release), engine),
            **_confinement(engine, gpus=plan.gpus != "none"),
            **_gpus(plan.gpus, engine),
            "NetworkMode": network,
            **({"Init": True} if engine.init else {}),
            "PortBindings": {f"{plan.port}/tcp": [{"HostIp": host, "HostPort": str(port)}]},
            "RestartPolicy": {"Name": "unless-stopped" if slot == "service" else "no"},
            "IpcMode": "host" if plan.ipc_host else "private",
            **({"ShmSize": plan.shm_bytes} if plan.shm_bytes and not plan.ipc_host else {}),
            # Nobody answers at this address inside the container: names of the outside do not resolve there,
            # whatever resolvers this machine has.
            **({"Dns": ["127.0.0.1"], "DnsOptions": ["timeout:1", "attempts:1"]} if network == SEALED else {}),
        },
    }


def prepare_body(
    release: ReleaseFiles, *, image: str, argv: Sequence[str], user: str, target: str, root: str, engine: EngineTraits
) -> dict[str, Any]:
    """Body of ``/containers/create`` for installing wheels: no network at all, `target` (on the host) writable.

    `target` must hold a directory `UNPACKING`.
    """
    mounts = [
        (str(release.directory / "wheels"), WHEELS_DIR, True),
        (target, SITE_DIR, False),
    ]
    return {
        "Image": image,
        "Entrypoint": list(argv[:1]),
        "Cmd": list(argv[1:]),
        "User": user,
        # pip unpacks below TMPDIR and moves the result: elsewhere than in `target` it would fill the engine's disk too.
        "Env": ["HOME=/tmp", f"TMPDIR={SITE_DIR}/{UNPACKING}", *(f"{name}=" for name in PROXIES)],
        "Labels": labels(release, root, "prepare"),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **_mounts(mounts, engine),
            **_confinement(engine, gpus=False),
            "NetworkMode": "none",
            **({"Init": True} if engine.init else {}),
        },
    }


def _values(plan: LaunchPlan, threads: int) -> dict[str, str]:
    return {
        "python": "python3",
        "site": SITE_DIR,
        "model": MODEL_DIR,
        "models": MODELS_DIR,
        "config": CONFIG_DIR,
        "state": STATE_DIR,
        "host": "0.0.0.0",  # inside the container; outside, only the published address exists
        "port": str(plan.port),
        "served_name": plan.model,
        "threads": str(threads),
    }


def _service_mounts(release: ReleaseFiles) -> list[tuple[str, str, bool]]:
    directory, plan = release.directory, release.plan
    mounts = [
        (str(directory / MODELS / plan.model), MODEL_DIR, True),
        (str(directory / CONFIG), CONFIG_DIR, True),
        (str(directory / "state"), STATE_DIR, False),
    ]
    if any("{models}" in text for text in (*plan.argv, *plan.env.values())):
        mounts.append((str(directory / MODELS), MODELS_DIR, True))
    if plan.wheels:
        mounts.append((str(directory / "site"), SITE_DIR, True))
    return mounts + [(str(directory / mount.source), mount.target, mount.read_only) for mount in plan.mounts]


def _mounts(mounts: Sequence[tuple[str, str, bool]], engine: EngineTraits) -> dict[str, Any]:
    """Bind mounts. Only the older ``Binds`` can relabel for SELinux; only ``Mounts`` takes any path."""
    if engine.selinux:
        return {"Binds": [f"{source}:{target}:{'ro' if read_only else 'rw'},z" for source, target, read_only in mounts]}
    return {
        "Mounts": [
            {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}
            for source, target, read_only in mounts
        ]
    }


def _confinement(engine: EngineTraits, *, gpus: bool) -> dict[str, Any]:
    limits = [{"Name": "nofile", "Soft": engine.nofile, "Hard": engine.nofile}]
    limits.append({"Name": "nproc", "Soft": engine.nproc, "Hard": engine.nproc})
    if gpus and not engine.rootless:  # buffers that GPUs and network cards read directly stay in memory
        limits.append({"Name": "memlock", "Soft": -1, "Hard": -1})
    return {
        "CapDrop": ["ALL"],
        # Root in the container reads and writes the release's files whoever owns them on the host; the mounts
        # decide what it may write.
        "CapAdd": ["DAC_OVERRIDE"],
        "SecurityOpt": ["no-new-privileges"],
        "Ulimits": limits,
        "LogConfig": {"Type": "json-file", "Config": {} if engine.podman else _LOG_LIMITS},
    }


def _gpus(wanted: str, engine: EngineTraits) -> dict[str, Any]:
    if wanted == "none":
        return {}
    request: dict[str, Any]
    if engine.cdi and not engine.nvidia_runtime:
        ids = ["all"] if wanted == "all" else [str(index) for index in range(int(wanted))]
        request = {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={index}" for index in ids]}
    else:
        request = {"Count": -1 if wanted == "all" else int(wanted), "Capabilities": [["gpu"]]}
    return {"DeviceRequests": [request]}


def state_of(container: Mapping[str, Any], now: float) -> InstanceState:
    """What a container does; one that its engine is about to restart counts as exited.

    Args:
        container: what the engine says of it.
        now: seconds since the epoch.
    """
    state = container.get("State") or {}
    if not state.get("Running") or state.get("Restarting"):
        return InstanceState("exited", state.get("ExitCode"))
    began = str(state.get("StartedAt", ""))
    since = _seconds(began)
    return InstanceState(
        "paused" if state.get("Paused") else "running",
        life=f"{container.get('Id', '')}/{began}",
        age=None if since is None else max(0.0, now - since),
    )


def _seconds(stamp: str) -> Optional[float]:
    """Seconds since the epoch of ``2026-12-01T00:40:00.123456789Z``, whose fraction no parser of Python 3.9 takes."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)", stamp)
    if found is None:
        return None
    return datetime.fromisoformat(found[1] + found[2].replace("Z", "+00:00")).timestamp()


def published(container: Mapping[str, Any]) -> tuple[str, int]:
    """Host and port of a container that `service_body` described."""
    found = _labels(container)
    return found.get(f"{LABEL}.host", "127.0.0.1"), int(found.get(f"{LABEL}.port", "0"))


def is_of(container: Mapping[str, Any], root: str, name: str, version: str, slot: str) -> bool:
    """Whether a container is what this root started for a slot of a release."""
    found = _labels(container)
    wanted = {"root": root, "name": name, "version": version, "slot": slot}
    return all(found.get(f"{LABEL}.{key}") == value for key, value in wanted.items())


def owner(container: Mapping[str, Any]) -> Optional[str]:
    """Installation root that a container belongs to; None when it is not of airbundle."""
    return _labels(container).get(f"{LABEL}.root")


def _labels(container: Mapping[str, Any]) -> Mapping[str, str]:
    return (container.get("Config") or {}).get("Labels") or {}
