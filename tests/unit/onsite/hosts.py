"""Hosts and bundles to hold against each other: ordinary ones, with single facts replaced."""

from __future__ import annotations

import dataclasses
from typing import Any

from airbundle_onsite.contract.artifacts import ImageEntry, Layer
from airbundle_onsite.contract.fingerprint import (
    CpuFacts,
    DiskFacts,
    DockerFacts,
    Fingerprint,
    Gpu,
    GpuFacts,
    GpuLink,
    MemoryFacts,
    OsFacts,
    PythonFacts,
)
from airbundle_onsite.contract.launch import LaunchPlan, PlanNeeds
from airbundle_onsite.contract.manifest import BundleManifest, HostNeeds, Serving
from airbundle_onsite.contract.payload import Payload
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.system import Completed

GB = 10**9
TAKEN = 1_800_000_000
CPU_PROFILE = HardwareProfile(id="cpu", title="CPU", cpu_flags=("avx2",), min_memory=8 * GB, min_glibc="2.28")


def disk(purpose: str = "root", *, free: int = 100 * GB, device: str = "8:1", **facts: Any) -> DiskFacts:
    given = {"path": f"/{purpose}", "mount": "/", "filesystem": "ext4", "total": 200 * GB, **facts}
    return DiskFacts(purpose=purpose, free=free, device=device, **given)


def docker(**facts: Any) -> DockerFacts:
    given = {
        "state": "ok",
        "server": "docker",
        "version": "28.3.0",
        "api_version": "1.51",
        "storage_driver": "overlay2",
        "image_store": "/var/lib/docker",
        "socket": "/var/run/docker.sock",
        "runtimes": ("runc",),
    }
    return DockerFacts(**{**given, **facts})


def h100(index: int = 0, **facts: Any) -> Gpu:
    given = {
        "name": "NVIDIA H100 80GB HBM3",
        "capability": "9.0",
        "memory_total": 85_520_809_984,
        "memory_free": 84_000_000_000,
        "compute_mode": "default",
    }
    return Gpu(index=index, **{**given, **facts})


def gpus(*devices: Gpu, **facts: Any) -> GpuFacts:
    links = tuple(
        GpuLink(a=one.index, b=other.index, topology="node", nvlinks=18, p2p="ok")
        for at, one in enumerate(devices)
        for other in devices[at + 1 :]
    )
    given = {"driver": "550.90.07", "kernel_driver": "550.90.07", "cuda": "12.4", "links": links}
    return GpuFacts(state="ok", devices=devices, **{**given, **facts})


def host(**facts: Any) -> Fingerprint:
    """A Debian 12 server with 8 cores, 64 GB, docker and Python 3.11, without GPU."""
    given = {
        "os": OsFacts(machine="x86_64", kernel="6.1.0", glibc="2.36", selinux="disabled", init="systemd"),
        "cpu": CpuFacts(model="Test CPU", logical=16, physical=8, flags=("avx2", "fma", "f16c", "bmi2")),
        "memory": MemoryFacts(total=64 * GB, available=60 * GB),
        "disks": (disk("root"), disk("docker", device="8:2", mount="/var")),
        "docker": docker(),
        "gpu": GpuFacts(state="no-driver", error="no library"),
        "pythons": (PythonFacts("/usr/bin/python3", "3.11.2", True),),
    }
    return Fingerprint(fingerprint_version=1, taken=TAKEN, **{**given, **facts})


def with_os(fingerprint: Fingerprint, **facts: Any) -> Fingerprint:
    return dataclasses.replace(fingerprint, os=dataclasses.replace(fingerprint.os, **facts))


def layer(number: int, size: int, media_type: str = "application/vnd.oci.image.layer.v1.tar+gzip") -> Layer:
    digest = f"sha256:{number:064x}"
    return Layer(digest=digest, size=size, diff_id=digest, media_type=media_type)


def image(name: str = "engine:1", *layers: Layer, require_cuda: str = "") -> ImageEntry:
    held = layers or (layer(1, 2 * GB),)
    digest = "sha256:" + "a" * 64
    return ImageEntry(
        name=name,
        digest=digest,
        source_digest=digest,
        config_digest=digest,
        platform="linux/amd64",
        layers=held,
        size=sum(one.size for one in held),
        require_cuda=require_cuda,
    )


def plan(plan_id: str = "main", runtime: Any = "venv", **facts: Any) -> LaunchPlan:
    given: dict[str, Any] = {"needs": PlanNeeds(python=">=3.10" if runtime == "venv" else "", memory=2 * GB)}
    if runtime == "docker":
        given["image"] = "engine:1"
    given.update(facts)
    return LaunchPlan(
        id=plan_id, engine="engine", engine_version="1", runtime=runtime, argv=("serve",), model="m", **given
    )


def manifest(
    *plans: LaunchPlan,
    runtime: Any = "venv",
    profile: HardwareProfile = CPU_PROFILE,
    disk: int = 10 * GB,
    image_disk: int = 0,
    wheel_tags: tuple[str, ...] = (),
    images: tuple[ImageEntry, ...] = (),
    created: int = TAKEN,
) -> BundleManifest:
    return BundleManifest(
        schema_version=1,
        name="sample",
        version="1",
        sequence=1,
        created=created,
        tool="airbundle test",
        payload=Payload(size=0, parts=()),
        outer=(),
        files=(),
        needs=HostNeeds(profile=profile, runtime=runtime, disk=disk, image_disk=image_disk, wheel_tags=wheel_tags),
        serving=Serving(),
        images=images,
        launch=plans or (plan(runtime=runtime),),
    )


class FakeRunner:
    """Answers by the program's name; anything else is not found. Keeps what was run."""

    def __init__(self, answers: dict[str, tuple[int, str]] | None = None) -> None:
        self.answers = answers or {}
        self.ran: list[tuple[str, ...]] = []

    def run(self, argv: Any, *, timeout: float = 60, env: Any = None, cwd: Any = None) -> Completed:
        words = tuple(str(word) for word in argv)
        self.ran.append(words)
        code, text = self.answers.get(words[0], (127, ""))
        return Completed(words, code, text, "")
