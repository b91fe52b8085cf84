"""Whether a host's container engine can run a plan, from its fingerprint. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import DockerFacts, Fingerprint
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.dockerapi import MIN_API
from airbundle_onsite.runtimes.values import is_loopback
from airbundle_onsite.system import Runner

_ZSTD_DOCKER = 23  # first docker that reads zstd layers

_STATES = {
    "absent": ("no container engine was found", "install docker from the distribution's medium, then run this again"),
    "denied": (
        "this user may not use the container engine",
        "run as root, or have the administrator add this user to the group docker",
    ),
    "failed": ("the container engine does not answer", "systemctl status docker; journalctl -u docker says why"),
}


def docker_checks(
    manifest: BundleManifest, plan: LaunchPlan, fingerprint: Fingerprint, root: Path, runner: Runner
) -> list[CheckResult]:
    """All checks of the docker runtime for this plan; `root` is the installation root."""
    docker = fingerprint.docker
    if docker.state != "ok":
        summary, remedy = _STATES[docker.state]
        return [
            CheckResult(
                "docker.engine", "fail", summary, "a running engine", docker.error or docker.state, remedy=remedy
            )
        ]
    checks = [_check_api(docker), *_check_layers(manifest, docker)]
    if plan.gpus != "none":
        checks.append(_check_gpus(docker, runner))
    if docker.snap:
        checks.append(_check_snap(root))
    checks.extend(_check_exposure(manifest))
    return checks


def _check_api(docker: DockerFacts) -> CheckResult:
    needed = ".".join(str(number) for number in MIN_API)
    found = tuple(int(part) for part in docker.api_version.split(".") if part.isdigit())
    status: Literal["pass", "fail"] = "pass" if found >= MIN_API else "fail"
    return CheckResult(
        "docker.engine",
        status,
        f"{docker.server or 'docker'} {docker.version} answers at {docker.socket}",
        expected=f"API {needed} or later",
        actual=f"API {docker.api_version or 'unknown'}",
        remedy="" if status == "pass" else "install Docker 19.03 or later",
    )


def _check_layers(manifest: BundleManifest, docker: DockerFacts) -> Iterator[CheckResult]:
    zstd = [image.name for image in manifest.images if any("zstd" in layer.media_type for layer in image.layers)]
    major = docker.version.split(".")[0]
    if zstd and docker.server != "podman" and major.isdigit() and int(major) < _ZSTD_DOCKER:
        yield CheckResult(
            "docker.zstd",
            "fail",
            f"docker {docker.version} cannot read the zstd layers of {', '.join(zstd)}",
            expected=f"docker {_ZSTD_DOCKER} or later",
            actual=docker.version,
            remedy="upgrade docker, or build the bundle from an image with gzip layers",
        )


def _check_gpus(docker: DockerFacts, runner: Runner) -> CheckResult:
    known = [name for name in docker.cdi if name.startswith("nvidia.com/gpu")]
    expected = "the engine knows the NVIDIA runtime or a CDI specification"
    if "nvidia" in docker.runtimes or known:
        how = "the NVIDIA runtime" if "nvidia" in docker.runtimes else f"CDI ({len(known)} devices)"
        return CheckResult("docker.gpu", "pass", f"containers get GPUs through {how}", expected, how)
    if runner.run(["nvidia-ctk", "--version"], timeout=20).code == 127:
        return CheckResult(
            "docker.gpu",
            "fail",
            "containers cannot get a GPU: nvidia-container-toolkit is not installed",
            expected,
            "nvidia-ctk: not found",
            remedy="install the package nvidia-container-toolkit from a local package, then: "
            "nvidia-ctk runtime configure --runtime=docker && systemctl restart docker",
        )
    return CheckResult(
        "docker.gpu",
        "fail",
        "nvidia-container-toolkit is installed, but the engine does not know its runtime",
        expected,
        f"runtimes: {', '.join(docker.runtimes) or 'none'}",
        remedy="nvidia-ctk runtime configure --runtime=docker && systemctl restart docker",
    )


def _check_snap(root: Path) -> CheckResult:
    inside = root.parts[:2] == ("/", "home")
    return CheckResult(
        "docker.snap",
        "pass" if inside else "fail",
        "docker is a snap, which reads only files under /home",
        expected="an installation root under /home",
        actual=str(root),
        remedy="" if inside else "use --root with a directory under /home, or docker from the distribution's packages",
    )


def _check_exposure(manifest: BundleManifest) -> Iterator[CheckResult]:
    if not is_loopback(manifest.serving.host):
        yield CheckResult(
            "docker.exposure",
            "warn",
            f"the engine's port is open to other machines at {manifest.serving.host}:{manifest.serving.port}",
            expected="127.0.0.1",
            actual=manifest.serving.host,
            remedy="without a gateway before it anybody who reaches this machine may use the model; the container "
            "is on a network whose packets can leave (no answer finds its way back)",
        )
