"""The host fingerprint: read what a host is, change nothing, run in well under a second.

Each module reads one kind of fact; `take` puts them together. Everything that touches the world is injected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from airbundle_onsite.contract.fingerprint import FINGERPRINT_VERSION, Fingerprint
from airbundle_onsite.probes.apart import gpu_facts_apart
from airbundle_onsite.probes.cgroups import limits
from airbundle_onsite.probes.disk import disk_facts
from airbundle_onsite.probes.docker import OpenEngine, docker_facts, open_engine, podman_version
from airbundle_onsite.probes.files import HostFiles
from airbundle_onsite.probes.gpu import SystemMemory, gpu_facts
from airbundle_onsite.probes.host import clock_synchronised, cpu_facts, memory_facts, os_facts
from airbundle_onsite.probes.ports import listening
from airbundle_onsite.probes.pythons import pythons
from airbundle_onsite.system import Clock, Runner


def take(
    paths: Mapping[str, Path],
    *,
    runner: Runner,
    clock: Clock,
    environ: Mapping[str, str],
    filesystem_root: Path = Path("/"),
    nvml: Any = None,
    docker: Optional[OpenEngine] = None,
) -> Fingerprint:
    """Take the fingerprint of this host.

    Args:
        paths: purpose (``root``, ``bundle``, ``temp``, ``docker``) to the path that will be used for it.
            A running engine's own answer takes the place of ``docker``.
        runner: runs the few programs that are asked: interpreters, podman, chronyc.
        clock: the host's.
        environ: environment variables; PATH, HOME and DOCKER_HOST are looked at.
        filesystem_root: where the host's ``/`` is seen.
        nvml: a module like pynvml; None for the vendored one, in a process of its own.
        docker: opens an engine behind a socket; None for the real client.

    Raises:
        Nothing: what cannot be read is left unknown, with the reason where the record has a place for it.
    """
    files = HostFiles(filesystem_root)
    group = limits(files)
    memory = memory_facts(files, group)
    system = SystemMemory(memory.total, memory.available)
    gpu = gpu_facts_apart(files, system) if nvml is None else gpu_facts(files, system, nvml)
    engine = docker_facts(files, environ, docker or open_engine)
    wanted = {**paths, **({"docker": Path(engine.image_store)} if engine.image_store else {})}
    return Fingerprint(
        fingerprint_version=FINGERPRINT_VERSION,
        taken=int(clock.now()),
        os=os_facts(files, group),
        cpu=cpu_facts(files, group),
        memory=memory,
        disks=disk_facts(wanted, files),
        docker=engine,
        gpu=gpu,
        pythons=pythons(files, runner, environ),
        podman=podman_version(runner, environ),
        clock_synchronised=clock_synchronised(runner),
        ports_in_use=listening(files),
    )
