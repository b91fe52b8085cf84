"""A fingerprint against a bundle: disks, engine, CUDA of images, interpreter, port, SELinux, clock."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import Fingerprint, GpuFacts, PythonFacts
from airbundle_onsite.contract.launch import PlanNeeds
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.match import match_bundle
from airbundle_onsite.match.driver import requirement
from airbundle_onsite.probes.files import HostFiles
from airbundle_onsite.probes.gpu import SystemMemory, gpu_facts
from unit.onsite.hosts import GB, TAKEN, disk, docker, gpus, h100, host, image, layer, manifest, plan, with_os
from unit.onsite.stub_nvml import StubNvml

DOCKER = manifest(runtime="docker", images=(image(),), image_disk=6 * GB)
GPU_PLAN = plan("gpu", runtime="docker", gpus="all", needs=PlanNeeds(gpus=1))
CUDA13 = "cuda>=13.0 brand=unknown,driver>=535,driver<536 brand=tesla,driver>=570,driver<571"


def check(bundle: BundleManifest, fingerprint: Fingerprint, **options: object) -> list[CheckResult]:
    given = {"root": "/opt/airbundle", "port": 8000, **options}
    return match_bundle(bundle, fingerprint, **given)  # type: ignore[arg-type]


def bad(checks: list[CheckResult]) -> dict[str, CheckResult]:
    return {one.id: one for one in checks if one.status in ("warn", "fail")}


def test_hosts_that_fit() -> None:
    for bundle in (manifest(), DOCKER):
        checks = check(bundle, host())
        assert bad(checks) == {} and len(checks) >= 4


def test_disk_full_names_filesystem_bytes_and_shares() -> None:
    small = host(disks=(disk("root", free=3 * GB, mount="/srv"), disk("docker", device="8:2", mount="/var")))
    failed = bad(check(manifest(), small))["match.disk.root"]
    assert failed.status == "fail"
    assert "/srv has 3.0 GB free, 10.1 GB are needed" in failed.summary
    assert "free 7.1 GB on /srv" in failed.remedy and "--root" in failed.remedy
    assert any("10.1 GB at the site under the installation root" in line for line in failed.evidence)


def test_two_purposes_on_one_disk_are_added() -> None:
    each_alone_fits = host(disks=(disk("root", free=12 * GB), disk("docker", free=12 * GB)))
    failed = bad(check(DOCKER, each_alone_fits))["match.disk.root"]
    assert "18.1 GB" in failed.summary and len(failed.evidence) == 3
    apart = host(disks=(disk("root", free=12 * GB), disk("docker", free=12 * GB, device="8:2")))
    assert bad(check(DOCKER, apart)) == {}


def test_space_is_measured_where_containerd_keeps_the_layers() -> None:
    engine = docker(version="29.0.0", storage_driver="containerd:overlayfs", image_store="/var/lib/containerd")
    disks = (
        disk("root", device="8:17", mount="/mnt/large", free=900 * GB),
        disk("docker", path="/var/lib/containerd", free=2 * GB),
    )
    failed = bad(check(DOCKER, host(docker=engine, disks=disks)))["match.disk.docker"]
    assert "/ has 2.0 GB free, 8.0 GB are needed" in failed.summary and "/var/lib/containerd" in failed.expected


def test_a_disk_that_could_not_be_measured_warns() -> None:
    blind = bad(check(DOCKER, host(disks=(disk("root"),))))
    assert {name: one.status for name, one in blind.items()} == {"match.disk.docker": "warn"}


def test_root_read_only_or_noexec() -> None:
    assert "match.root.ro" in bad(check(manifest(), host(disks=(disk("root", read_only=True),))))
    noexec = host(disks=(disk("root", noexec=True), disk("docker", device="8:2")))
    assert "noexec" in bad(check(manifest(), noexec))["match.root.noexec"].actual
    assert bad(check(DOCKER, noexec)) == {}  # containers execute from the engine's own store


def test_port_in_use_and_held_by_this_installation() -> None:
    busy = host(ports_in_use=(22, 8000))
    failed = bad(check(manifest(), busy))["match.port"]
    assert "8000" in failed.summary and "8000" in failed.remedy and "--port" in failed.remedy
    assert bad(check(manifest(), busy, own_ports=(8000,))) == {}
    assert bad(check(manifest(), busy, port=8001)) == {}
    assert not any(one.id == "match.port" for one in check(manifest(), busy, port=0))


def test_clock_behind_the_bundle() -> None:
    late = manifest(created=TAKEN + 40 * 86400)
    warned = bad(check(late, host()))["match.clock"]
    assert warned.status == "warn" and "40 day(s)" in warned.summary
    assert bad(check(manifest(created=TAKEN + 3600), host())) == {}


def test_selinux_labels_local_disks_and_warns_on_shares() -> None:
    enforcing = with_os(host(), selinux="enforcing")
    passed = [one for one in check(DOCKER, enforcing) if one.id == "match.selinux"]
    assert [one.status for one in passed] == ["pass"]
    share = dataclasses.replace(enforcing, disks=(disk("root", filesystem="nfs4"), disk("docker", device="8:2")))
    warned = bad(check(DOCKER, share))["match.selinux"]
    assert warned.status == "warn" and "setenforce" not in warned.remedy
    assert not any(one.id == "match.selinux" for one in check(manifest(), share))


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (docker(state="absent"), "no container engine"),
        (docker(state="denied", error="no permission"), "may not use"),
        (docker(state="failed", error="nothing listens"), "does not answer"),
    ],
)
def test_an_engine_that_cannot_be_used(engine: object, words: str) -> None:
    failed = bad(check(DOCKER, host(docker=engine)))["match.docker.state"]
    assert failed.status == "fail" and words in failed.summary and failed.remedy
    assert "match.docker.state" not in bad(check(manifest(), host(docker=engine)))


def test_api_versions() -> None:
    old = bad(check(DOCKER, host(docker=docker(version="18.09.9", api_version="1.39"))))["match.docker.api"]
    assert "18.09.9" in old.summary and "1.39" in old.summary and "1.40" in old.expected
    # an engine that refuses old clients is met by speaking its own version
    new = docker(version="29.0.0", api_version="1.52", min_api_version="1.44")
    assert bad(check(DOCKER, host(docker=new))) == {}
    assert bad(check(DOCKER, host(docker=docker(api_version="1.100")))) == {}


def test_an_engine_elsewhere_is_met_with_the_right_cure() -> None:
    remote = docker(state="failed", socket="", error="'tcp://10.0.0.1:2375' is not a unix socket")
    failed = bad(check(DOCKER, host(docker=remote)))["match.docker.state"]
    assert "DOCKER_HOST" in failed.summary and "tcp://10.0.0.1:2375" in failed.actual
    assert "on the machine of that engine" in failed.remedy and "systemctl" not in failed.remedy
    stopped = bad(check(DOCKER, host(docker=docker(state="failed", socket="/run/docker.sock"))))["match.docker.state"]
    assert "systemctl start docker" in stopped.remedy


def test_zstd_layers_on_an_old_engine() -> None:
    zstd = image("engine:1", layer(1, GB, "application/vnd.oci.image.layer.v1.tar+zstd"))
    bundle = manifest(runtime="docker", images=(zstd,))
    old = docker(version="20.10.24", api_version="1.41")
    failed = bad(check(bundle, host(docker=old)))["match.docker.zstd"]
    assert "20.10.24" in failed.summary and "engine:1" in failed.summary and "23" in failed.expected
    assert bad(check(bundle, host())) == {}
    assert bad(check(DOCKER, host(docker=old))) == {}
    assert bad(check(bundle, host(docker=docker(server="podman", version="4.3.1", api_version="1.41")))) == {}


def test_docker_from_a_snap_sees_home_only() -> None:
    snap = host(docker=docker(snap=True))
    failed = bad(check(DOCKER, snap))["match.docker.snap"]
    assert "/opt/airbundle" in failed.summary and "--root" in failed.remedy
    assert bad(check(DOCKER, snap, root="/home/eng/airbundle")) == {}


GPU_BUNDLE = manifest(GPU_PLAN, runtime="docker", images=(image(require_cuda=CUDA13),))


def gpu_host(tmp_path: Path, **options: object) -> GpuFacts:
    return gpu_facts(HostFiles(tmp_path), SystemMemory(), StubNvml(**options))  # type: ignore[arg-type]


def test_toolkit_missing_is_told_from_installed_but_unused() -> None:
    plain = manifest(GPU_PLAN, runtime="docker", images=(image(),))
    missing = bad(check(plain, host(gpu=gpus(h100()))))["match.docker.gpu"]
    assert missing.status == "fail" and "nvidia-container-toolkit is not installed" in missing.summary
    assert "medium" in missing.remedy
    unused = docker(gpu_toolkit="/usr/bin/nvidia-ctk")
    found = bad(check(plain, host(gpu=gpus(h100()), docker=unused)))["match.docker.gpu"]
    assert "does not use it" in found.summary and "systemctl restart docker" in found.remedy


@pytest.mark.parametrize(
    ("engine", "fits"),
    [
        (docker(runtimes=("nvidia", "runc")), True),
        (docker(cdi=("nvidia.com/gpu=all",)), True),
        (docker(cdi=("nvidia.com/gpu=all",), version="27.5.1"), False),  # not on by default there
        (docker(cdi=("vendor.com/net=eth0",)), False),
        (docker(server="podman", version="4.9.4", cdi=("nvidia.com/gpu=all",)), True),
    ],
)
def test_ways_to_give_a_container_a_gpu(engine: object, fits: bool) -> None:
    plain = manifest(GPU_PLAN, runtime="docker", images=(image(),))
    assert ("match.docker.gpu" not in bad(check(plain, host(gpu=gpus(h100()), docker=engine)))) is fits


def test_devices_that_a_reload_of_systemd_takes_away() -> None:
    plain = manifest(GPU_PLAN, runtime="docker", images=(image(),))
    systemd = docker(runtimes=("nvidia",), cgroup_driver="systemd")
    found = check(plain, host(gpu=gpus(h100()), docker=systemd))
    (hint,) = [each for each in found if each.id == "match.docker.reload"]
    assert "daemon-reload" in hint.summary and "airbundlectl --start" in hint.summary and "cgroupfs" in hint.remedy
    assert bad(found) == {}, "nothing is wrong with such a host, also with --strict"
    for engine in (docker(runtimes=("nvidia",)), docker(cdi=("nvidia.com/gpu=all",), cgroup_driver="systemd")):
        assert "match.docker.reload" not in {each.id for each in check(plain, host(docker=engine))}
    assert "match.docker.reload" not in {each.id for each in check(DOCKER, host(docker=systemd))}


def test_image_needs_newer_cuda_than_the_driver(tmp_path: Path) -> None:
    engine = docker(runtimes=("nvidia",))
    old = gpu_host(tmp_path, driver="550.54.14", cuda=12040)
    failed = bad(check(GPU_BUNDLE, host(gpu=old, docker=engine)))["match.image.cuda"]
    assert failed.status == "fail"
    assert "CUDA 13.0" in failed.summary and "550.54.14" in failed.summary and "12.4" in failed.summary
    assert "580.65.06" in failed.expected and "580.65.06" in failed.remedy
    assert bad(check(GPU_BUNDLE, host(gpu=gpu_host(tmp_path), docker=engine))) == {}


def test_forward_compatibility_depends_on_the_product_and_only_warns(tmp_path: Path) -> None:
    branch = gpu_host(tmp_path, driver="570.133.20", cuda=12080)
    warned = bad(check(GPU_BUNDLE, host(gpu=branch, docker=docker(runtimes=("nvidia",)))))["match.image.cuda"]
    assert warned.status == "warn" and "forward compatibility" in warned.remedy


@pytest.mark.parametrize(
    ("require", "driver", "cuda", "verdict"),
    [
        ("cuda>=12.4", "550.54.14", "12.4", "met"),
        ("cuda>=12.10", "550.54.14", "12.9", "unmet"),
        ("cuda>=13.0 driver>=570", "570.26", "12.8", "met"),
        ("cuda>=13.0,driver>=600", "590.1", "13.1", "unmet"),
        ("cuda>=13.0", "580.1", None, "unknown"),
        ("cuda>=13.0 brand=tesla,driver>=535,driver<536", "550.1", "12.4", "unmet"),
        ("cuda>=13.0 brand=tesla,driver>=535,driver<536", "535.9", "12.2", "unknown"),
        ("something new", "580.1", "13.0", "unknown"),
    ],
)
def test_requirements_of_images(require: str, driver: str, cuda: str | None, verdict: str) -> None:
    assert requirement(require, gpus(h100(), driver=driver, cuda=cuda)) == verdict


def test_a_plan_without_gpus_leaves_a_way_on_a_host_without_them() -> None:
    both = manifest(GPU_PLAN, plan("cpu", runtime="docker"), runtime="docker", images=(image(require_cuda=CUDA13),))
    assert bad(check(both, host())) == {}


def test_no_interpreter_lists_what_was_found() -> None:
    tags = ("cp312-cp312-manylinux_2_28_x86_64",)
    bundle = manifest(wheel_tags=tags)
    failed = bad(check(bundle, host()))["match.python"]
    assert failed.status == "fail" and "/usr/bin/python3 (3.11.2)" in failed.evidence[0]
    assert "python3-venv" in failed.remedy
    none = bad(check(bundle, host(pythons=())))["match.python"]
    assert none.actual == "no Python 3.9 or newer" and none.evidence == ()
    fitting = host(pythons=(PythonFacts("/usr/bin/python3.12", "3.12.3", True),))
    assert bad(check(bundle, fitting)) == {}
