"""Container engines: absent, denied, failed and answering; and where their layers really land."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airbundle_onsite.contract.fingerprint import DockerFacts
from airbundle_onsite.dockerapi import DockerError
from airbundle_onsite.probes.docker import cdi_devices, docker_facts, open_engine, podman_version
from airbundle_onsite.probes.files import HostFiles
from unit.onsite.hosts import FakeRunner

VERSION = {"Version": "28.3.0", "ApiVersion": "1.51", "MinAPIVersion": "1.24", "Components": [{"Name": "Engine"}]}
INFO: dict[str, Any] = {
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"]],
    "DockerRootDir": "/var/lib/docker",
    "Runtimes": {"runc": {}, "nvidia": {}},
    "SecurityOptions": ["name=seccomp,profile=builtin"],
}
CONTAINERD = {"Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}
SOCKET = "/engine.sock"


class Answers:
    """An engine that says what it is told to, or fails."""

    def __init__(self, version: Mapping[str, Any], info: Mapping[str, Any], error: DockerError | None = None) -> None:
        self._version, self._info, self._error = version, info, error

    def version(self) -> Mapping[str, Any]:
        if self._error:
            raise self._error
        return self._version

    def info(self) -> Mapping[str, Any]:
        return self._info


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    (tmp_path / "engine.sock").touch()
    return HostFiles(tmp_path)


def ask(files: HostFiles, path: str = "", error: DockerError | None = None, **info: Any) -> DockerFacts:
    version = info.pop("version", VERSION)
    environ = {"DOCKER_HOST": f"unix://{SOCKET}", "PATH": path}
    return docker_facts(files, environ, lambda _path: Answers(version, {**INFO, **info}, error))


def test_an_ordinary_engine(files: HostFiles) -> None:
    facts = ask(files)
    assert (facts.state, facts.server, facts.version, facts.api_version) == ("ok", "docker", "28.3.0", "1.51")
    assert (facts.storage_driver, facts.image_store, facts.socket) == ("overlay2", "/var/lib/docker", SOCKET)
    assert facts.runtimes == ("nvidia", "runc") and facts.min_api_version == "1.24"
    assert not facts.snap and not facts.rootless


def test_containerd_image_store_lands_in_containerds_root(files: HostFiles) -> None:
    data_root = {"DockerRootDir": "/mnt/large/docker"}
    told = ask(files, **CONTAINERD, **data_root, Containerd={"Address": "/run/containerd/containerd.sock"})
    assert (told.storage_driver, told.image_store) == ("containerd:overlayfs", "/var/lib/containerd")
    own = ask(files, **CONTAINERD, **data_root, Containerd={"Address": "/run/docker/containerd/containerd.sock"})
    assert own.image_store == "/mnt/large/docker/containerd/daemon"


def test_containerd_that_the_engine_does_not_tell_about(files: HostFiles) -> None:
    assert ask(files, **CONTAINERD).image_store == "/var/lib/docker/containerd/daemon"
    system = files.path("/run/containerd/containerd.sock")
    system.parent.mkdir(parents=True)
    system.touch()
    assert ask(files, **CONTAINERD).image_store == "/var/lib/containerd"
    config = files.path("/etc/containerd/config.toml")
    config.parent.mkdir(parents=True)
    config.write_text('version = 2\nroot = "/srv/containerd"\n[plugins]\n  root = "/other"\n')
    assert ask(files, **CONTAINERD).image_store == "/srv/containerd"


def test_snap_rootless_and_podman(files: HostFiles) -> None:
    assert ask(files, DockerRootDir="/var/snap/docker/common/var-lib-docker").snap
    assert ask(files, SecurityOptions=["name=rootless"]).rootless
    podman = {"Version": "4.3.1", "ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}
    assert ask(files, version=podman).server == "podman"


def test_denied_failed_and_absent_are_different(files: HostFiles, tmp_path: Path) -> None:
    denied = DockerError("reach the container engine", 0, "no permission to use /engine.sock")
    denied.__cause__ = PermissionError(13, "Permission denied")
    assert ask(files, error=denied).state == "denied"
    failed = ask(files, error=DockerError("reach the container engine", 0, "nothing listens at /engine.sock"))
    assert failed.state == "failed" and failed.error == "nothing listens at /engine.sock"
    files.path(SOCKET).unlink()
    assert ask(files).state == "absent"
    tools = tmp_path / "tools"
    tools.mkdir()
    client = tools / "docker"
    client.write_bytes(b"\x7fELF")
    client.chmod(0o755)
    stopped = ask(files, path=str(tools))
    assert stopped.state == "failed" and str(client) in stopped.error and SOCKET in stopped.error
    client.write_text('#!/bin/sh\nexec /usr/bin/podman "$@"\n')  # podman under docker's name is no engine
    assert ask(files, path=str(tools)).state == "absent"


def test_an_address_that_is_no_socket_fails_and_is_named(files: HostFiles) -> None:
    facts = docker_facts(files, {"DOCKER_HOST": "tcp://10.0.0.1:2375", "PATH": ""})
    assert facts.state == "failed" and "tcp://10.0.0.1:2375" in facts.error


def test_a_stale_socket_of_the_real_client(tmp_path: Path) -> None:
    path = tmp_path / "stale.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.close()
    facts = docker_facts(HostFiles(), {"DOCKER_HOST": f"unix://{path}", "PATH": ""}, open_engine)
    assert facts.state == "failed" and str(path) in facts.error


@pytest.fixture
def garbage(tmp_path: Path) -> Iterator[Path]:
    """A socket behind which something answers that is no container engine."""
    path = tmp_path / "garbage.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(4)

    def serve() -> None:
        for body in (b"<html>", b"[]"):
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    threading.Thread(target=serve, daemon=True).start()
    yield path
    listener.close()


def test_something_else_behind_the_socket_fails(garbage: Path) -> None:
    for _ in range(2):
        facts = docker_facts(HostFiles(), {"DOCKER_HOST": f"unix://{garbage}", "PATH": ""})
        assert facts.state == "failed" and facts.error


def test_cdi_specifications_in_yaml_and_json(files: HostFiles) -> None:
    etc, run = files.path("/etc/cdi"), files.path("/var/run/cdi")
    etc.mkdir(parents=True)
    run.mkdir(parents=True)
    (etc / "nvidia.yaml").write_text(
        "---\ncdiVersion: 0.5.0\ncontainerEdits:\n  env:\n  - A=name: x\ndevices:\n- containerEdits:\n"
        '    deviceNodes:\n    - path: /dev/nvidia0\n  name: "0"\n- name: all\nkind: nvidia.com/gpu\n'
    )
    (run / "vendor.json").write_text('{"kind": "vendor.com/net", "devices": [{"name": "eth0"}]}')
    (run / "broken.json").write_text("{")
    (run / "list.json").write_text("[]")
    (run / "notes.txt").write_text("kind: x/y\n")
    assert cdi_devices(files) == ("nvidia.com/gpu=0", "nvidia.com/gpu=all", "vendor.com/net=eth0")
    assert ask(files).cdi == ("nvidia.com/gpu=0", "nvidia.com/gpu=all", "vendor.com/net=eth0")


def test_a_cdi_specification_nested_without_end_is_passed_over(files: HostFiles) -> None:
    folder = files.path("/etc/cdi")
    folder.mkdir(parents=True)
    (folder / "deep.json").write_text("[" * 200_000)
    assert cdi_devices(files) == ()


def test_the_toolkit_is_found_though_the_engine_does_not_use_it(files: HostFiles, tmp_path: Path) -> None:
    without = ask(files).gpu_toolkit  # of the machine that the tests run on, if it has one
    assert without == "" or Path(without).exists()
    tool = tmp_path / "nvidia-ctk"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert ask(files, path=str(tmp_path), Runtimes={"runc": {}}).gpu_toolkit == str(tool)


def test_podman_version(tmp_path: Path) -> None:
    tool = tmp_path / "podman"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    environ = {"PATH": str(tmp_path)}
    assert podman_version(FakeRunner({str(tool): (0, "podman version 4.3.1\n")}), environ) == "4.3.1"
    assert podman_version(FakeRunner({str(tool): (125, "")}), environ) == "unknown"
    assert podman_version(FakeRunner(), {"PATH": ""}) == ""
