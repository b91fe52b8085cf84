"""A container engine against a docker bundle."""

from __future__ import annotations

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import DockerFacts, Fingerprint
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.match.driver import match_image_cuda
from airbundle_onsite.versions import compare

MIN_API = "1.40"
"""Docker 19.03, the first with device requests; the client speaks any version from there on."""

_ZSTD_FROM = "23.0"
_CDI_FROM = "28.2"  # CDI is on by default from there; before, only where the administrator enabled it


def match_engine(manifest: BundleManifest, fingerprint: Fingerprint, root: str) -> list[CheckResult]:
    """Whether an engine answers, is new enough, sees the files, and can give GPUs to containers."""
    engine = fingerprint.docker
    if engine.state != "ok":
        return [_unusable(engine), *_gpus(manifest, fingerprint)]
    return [
        _api(engine),
        *_layers(manifest, engine),
        *_confined(engine, root),
        *_gpus(manifest, fingerprint),
    ]


def _unusable(engine: DockerFacts) -> CheckResult:
    summary, remedy = {
        "absent": (
            "there is no container engine on this host",
            "install docker (or podman with its socket) from the distribution's packages and start it, or have the "
            "bundle built for the venv runtime, which needs none",
        ),
        "denied": (
            f"this user may not use the container engine at {engine.socket}",
            "run the command as root (sudo), or have the administrator add this user to the group docker",
        ),
        "failed": (
            "the container engine does not answer",
            "start it (systemctl start docker) and see why it stopped (journalctl -u docker)",
        ),
    }[engine.state]
    if engine.state == "failed" and not engine.socket:  # nothing was asked: the address itself will not do
        summary = "the container engine that DOCKER_HOST names cannot be used"
        remedy = (
            "run this on the machine of that engine: files are mounted from there, and the service answers there; "
            "DOCKER_HOST has to be unset (unset DOCKER_HOST) or name a local socket, as unix:///var/run/docker.sock"
        )
    return CheckResult(
        id="match.docker.state",
        status="fail",
        summary=summary,
        expected="a container engine that answers",
        actual=engine.error or engine.state,
        remedy=remedy,
    )


def _api(engine: DockerFacts) -> CheckResult:
    names = f"{engine.server} {engine.version}, API {engine.api_version}".strip()
    if compare(engine.api_version, MIN_API) >= 0:
        since = f" (from {engine.min_api_version})" if engine.min_api_version else ""
        return CheckResult(id="match.docker.api", status="pass", summary=f"{names}{since}, {engine.storage_driver}")
    return CheckResult(
        id="match.docker.api",
        status="fail",
        summary=f"{names} is too old",
        expected=f"API {MIN_API} or newer (Docker 19.03)",
        actual=f"API {engine.api_version or 'unknown'}",
        remedy="install a newer docker from packages on a medium; Docker 23 or newer is advised",
    )


def _layers(manifest: BundleManifest, engine: DockerFacts) -> list[CheckResult]:
    packed = [image.name for image in manifest.images if any("zstd" in layer.media_type for layer in image.layers)]
    if not packed or engine.server != "docker" or compare(engine.version, _ZSTD_FROM) >= 0:
        return []
    return [
        CheckResult(
            id="match.docker.zstd",
            status="fail",
            summary=f"docker {engine.version} cannot unpack zstd layers, and {', '.join(packed)} has them",
            expected=f"docker {_ZSTD_FROM} or newer",
            actual=f"docker {engine.version}",
            remedy="update docker, or have the bundle built from an image with gzip layers",
        )
    ]


def _confined(engine: DockerFacts, root: str) -> list[CheckResult]:
    if not engine.snap or root.startswith("/home/"):
        return []
    return [
        CheckResult(
            id="match.docker.snap",
            status="fail",
            summary=f"docker was installed as a snap, which sees files under /home only, and the root is {root}",
            expected="an installation root that docker can see",
            actual=f"snap docker with {root}",
            remedy="install below a home directory with --root, or replace the snap by the distribution's docker",
        )
    ]


def _gpus(manifest: BundleManifest, fingerprint: Fingerprint) -> list[CheckResult]:
    """Only when some plan uses GPUs; a plan without them can still be taken, so nothing fails then."""
    with_gpus = [plan for plan in manifest.launch if plan.needs.gpus or plan.gpus != "none"]
    if not with_gpus or (fingerprint.gpu.state != "ok" and len(with_gpus) < len(manifest.launch)):
        return []
    checks = [_toolkit(fingerprint.docker), *_reload(fingerprint.docker)] if fingerprint.docker.state == "ok" else []
    used = {plan.image for plan in with_gpus}
    images = (match_image_cuda(image, fingerprint.gpu) for image in manifest.images if image.name in used)
    if fingerprint.gpu.state == "ok":
        checks.extend(check for check in images if check is not None)
    return checks


def _reload(engine: DockerFacts) -> list[CheckResult]:
    """NVIDIA's hook gives devices behind the back of systemd, which takes them away when it reloads its units.

    A hint, no warning: most hosts with docker and NVIDIA's runtime are like this, nothing is wrong with them now, and
    what is lost comes back with one command. As a warning it would make ``--strict`` refuse nearly all of them.
    """
    if "nvidia" not in engine.runtimes or engine.cgroup_driver != "systemd":
        return []
    return [
        CheckResult(
            id="match.docker.reload",
            status="pass",
            summary="should the service lose its GPUs after a `systemctl daemon-reload`, airbundlectl --start gives "
            "them back: change units and packages before this installation rather than after",
            expected="control groups by cgroupfs, or devices that systemd knows of",
            actual="control groups by systemd, devices by NVIDIA's runtime",
            remedy='for good, set "exec-opts": ["native.cgroupdriver=cgroupfs"] in /etc/docker/daemon.json and restart '
            "docker (toolkits from 1.18 on give devices by CDI of themselves, and are not concerned)",
        )
    ]


def _toolkit(engine: DockerFacts) -> CheckResult:
    check = "match.docker.gpu"
    cdi = [name for name in engine.cdi if name.startswith("nvidia.com/gpu=")]
    if "nvidia" in engine.runtimes:
        return CheckResult(id=check, status="pass", summary="the engine has the runtime nvidia")
    if cdi and (engine.server == "podman" or compare(engine.version, _CDI_FROM) >= 0):
        return CheckResult(id=check, status="pass", summary=f"the engine gives GPUs by CDI: {', '.join(cdi[:4])}")
    if engine.gpu_toolkit:
        return CheckResult(
            id=check,
            status="fail",
            summary=f"NVIDIA's container toolkit is installed ({engine.gpu_toolkit}), but the engine does not use it",
            expected="the runtime nvidia, or CDI devices",
            actual=f"runtimes: {', '.join(engine.runtimes) or 'none'}; CDI devices: {', '.join(cdi) or 'none'}",
            remedy="nvidia-ctk runtime configure --runtime=docker && systemctl restart docker (running containers "
            "restart with it)"
            if engine.server != "podman"
            else "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
    return CheckResult(
        id=check,
        status="fail",
        summary="the engine cannot give a container a GPU: nvidia-container-toolkit is not installed",
        expected="the runtime nvidia, or CDI devices",
        actual=f"runtimes: {', '.join(engine.runtimes) or 'none'}; CDI devices: {', '.join(cdi) or 'none'}",
        remedy="install the package nvidia-container-toolkit (without network: with its dependencies "
        "libnvidia-container1, libnvidia-container-tools and nvidia-container-toolkit-base from a medium), then "
        "nvidia-ctk runtime configure --runtime=docker && systemctl restart docker",
    )
