"""What the docker runtime asks of an engine: containers, networks and archives, as values."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import runtime_samples as samples
from airbundle.oci import reference
from airbundle_onsite.contract.artifacts import ImageEntry, Layer
from airbundle_onsite.contract.launch import Mount
from airbundle_onsite.dockerapi import DockerError
from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.runtimes import docker_config as config
from airbundle_onsite.runtimes.base import Blob
from airbundle_onsite.runtimes.docker_archive import docker_archive, qualified
from airbundle_onsite.runtimes.docker_network import check_sealed, ensure_network, kernel_routes
from airbundle_onsite.runtimes.values import is_loopback, physical_cores

PLAN = samples.plan("docker")
ENGINE = config.EngineTraits()


def body(engine: config.EngineTraits = ENGINE, slot: str = "service", **changes: Any) -> dict[str, Any]:
    launch = replace(PLAN, **changes)
    release = samples.ReleaseFiles(Path("/opt/airbundle/r"), samples.manifest(launch), launch)
    made = config.service_body(
        release,
        image="sha256:" + "a" * 64,
        slot=slot,
        host="127.0.0.1",
        port=8001,
        network="airbundle",
        threads=4,
        root="/opt/airbundle",
        engine=engine,
    )
    json.dumps(made)
    return made


# --- containers -------------------------------------------------------------------------------------------


def test_the_command_replaces_the_image_s_and_placeholders_are_seen_from_inside() -> None:
    made = body()
    assert made["Entrypoint"] == ["python3"]
    assert made["Cmd"][:3] == ["/airbundle/config/fake_engine.py", "--host", "0.0.0.0"]
    assert made["Image"] == "sha256:" + "a" * 64
    assert made["HostConfig"]["PortBindings"] == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8001"}]}


def test_a_service_comes_back_and_a_candidate_does_not() -> None:
    assert body()["HostConfig"]["RestartPolicy"] == {"Name": "unless-stopped"}
    assert body(slot="candidate")["HostConfig"]["RestartPolicy"] == {"Name": "no"}


def test_the_plan_s_own_environment_wins_and_proxies_are_emptied() -> None:
    env = dict(pair.split("=", 1) for pair in body(env={"HF_HUB_OFFLINE": "0", "X": "{served_name}"})["Env"])
    assert (env["HF_HUB_OFFLINE"], env["TRANSFORMERS_OFFLINE"], env["X"]) == ("0", "1", "tiny")
    assert {env[name] for name in ("http_proxy", "HTTPS_PROXY", "all_proxy", "NO_PROXY")} == {""}
    assert "PYTHONPATH" not in env
    assert "PYTHONPATH=/airbundle/site" in body(wheels=True)["Env"]


def test_every_model_of_the_bundle_is_mounted_where_a_plan_asks_for_them() -> None:
    made = body(env={"X": "{models}/draft/d.gguf"})
    assert "X=/airbundle/models/draft/d.gguf" in made["Env"]
    (mount,) = [mount for mount in made["HostConfig"]["Mounts"] if mount["Target"] == "/airbundle/models"]
    assert mount["Source"].endswith("/models") and mount["ReadOnly"]


def test_mounts_are_read_only_but_the_state() -> None:
    mounts = body(wheels=True, mounts=(Mount("config/tools", "/tools"),))["HostConfig"]["Mounts"]
    assert {mount["Target"]: mount["ReadOnly"] for mount in mounts} == {
        "/airbundle/model": True,
        "/airbundle/config": True,
        "/airbundle/state": False,
        "/airbundle/site": True,
        "/tools": True,
    }
    assert mounts[0]["Source"] == "/opt/airbundle/r/models/tiny"


def test_under_selinux_every_mount_is_relabelled() -> None:
    engine = config.traits({"SecurityOptions": ["name=seccomp,profile=default", "name=selinux"]}, {}, (1024, -1))
    made = body(engine)["HostConfig"]
    assert "Mounts" not in made
    assert made["Binds"][0] == "/opt/airbundle/r/models/tiny:/airbundle/model:ro,z"
    assert all(bind.endswith((":ro,z", ":rw,z")) for bind in made["Binds"])


def test_gpus_by_runtime_by_cdi_or_not_at_all() -> None:
    assert "DeviceRequests" not in body()["HostConfig"]
    (request,) = body(replace(ENGINE, nvidia_runtime=True, cdi=True), gpus="all")["HostConfig"]["DeviceRequests"]
    assert request == {"Count": -1, "Capabilities": [["gpu"]]}
    (request,) = body(replace(ENGINE, nvidia_runtime=True), gpus="2")["HostConfig"]["DeviceRequests"]
    assert request["Count"] == 2
    (request,) = body(replace(ENGINE, cdi=True), gpus="2")["HostConfig"]["DeviceRequests"]
    assert request == {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]}
    (request,) = body(replace(ENGINE, cdi=True), gpus="all")["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == ["nvidia.com/gpu=all"]
    assert any(limit["Name"] == "memlock" for limit in body(gpus="all")["HostConfig"]["Ulimits"])


def test_shared_memory() -> None:
    assert body(shm_bytes=1 << 30)["HostConfig"]["ShmSize"] == 1 << 30
    made = body(shm_bytes=1 << 30, ipc_host=True)["HostConfig"]
    assert made["IpcMode"] == "host"
    assert "ShmSize" not in made


def test_confinement_and_logs() -> None:
    made = body()["HostConfig"]
    assert made["CapDrop"] == ["ALL"]
    assert made["SecurityOpt"] == ["no-new-privileges"]
    assert made["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "50m", "max-file": "3"}}
    assert made["Dns"] == ["127.0.0.1"]
    assert "Init" not in made
    assert body(replace(ENGINE, init=True))["HostConfig"]["Init"] is True


def test_traits_of_engines() -> None:
    docker = config.traits(
        {"SecurityOptions": ["name=rootless"], "Runtimes": {"runc": {}, "nvidia": {}}, "CDISpecDirs": ["/etc/cdi"]},
        {"Engine": "28.1", "docker-init": "0.19.0"},
        (524288, 4096),
    )
    assert docker == config.EngineTraits(
        rootless=True, nvidia_runtime=True, cdi=True, init=True, nofile=65536, nproc=4096
    )
    podman = config.traits({}, {"Podman Engine": "4.3.1"}, (1024, -1))
    assert podman == config.EngineTraits(podman=True, nofile=1024)
    assert body(podman)["HostConfig"]["LogConfig"] == {"Type": "json-file", "Config": {}}


def test_installing_wheels_has_no_network_and_one_writable_place() -> None:
    launch = replace(PLAN, wheels=True)
    release = samples.ReleaseFiles(Path("/r"), samples.manifest(launch), launch)
    made = config.prepare_body(
        release, image="i", argv=["python3", "-V"], user="0:0", target="/r/site.partial", root="/", engine=ENGINE
    )
    assert made["HostConfig"]["NetworkMode"] == "none"
    (unpacking,) = [entry for entry in made["Env"] if entry.startswith("TMPDIR=")]
    assert unpacking.startswith("TMPDIR=/airbundle/site/")  # not in the container, whose disk is the engine's
    assert {mount["Target"]: mount["ReadOnly"] for mount in made["HostConfig"]["Mounts"]} == {
        "/airbundle/wheels": True,
        "/airbundle/site": False,
    }


def container(**state: Any) -> dict[str, Any]:
    return {"Id": "c1", "State": {"StartedAt": "2026-12-01T00:00:00.123456789Z", **state}}


NOON = 1796083200.0  # 2026-12-01T00:00:00Z


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ({"Running": True}, "running"),
        ({"Running": True, "Paused": True}, "paused"),
        ({"Running": True, "Restarting": True, "ExitCode": 1}, "exited"),
        ({"Running": False, "ExitCode": 137}, "exited"),
    ],
)
def test_states_of_a_container(state: dict[str, Any], status: str) -> None:
    found = config.state_of(container(**state), NOON + 90)
    assert found.status == status and found.up is (status in ("running", "paused"))
    assert found.age == (90.0 if found.up else None)


@pytest.mark.parametrize(
    ("stamp", "age"),
    [("2026-12-01T01:00:00+01:00", 5.0), ("2026-12-01T00:00:00Z", 5.0), ("0001-01-01T00:00:00Z", None), ("", None)],
)
def test_how_long_a_container_runs(stamp: str, age: float | None) -> None:
    found = config.state_of(container(Running=True, StartedAt=stamp), NOON + 5).age
    assert found == age or (age is None and (found is None or found > 1e9))


def test_a_container_is_a_slot_s_by_its_labels_alone() -> None:
    labels = {"root": "/r", "name": "demo", "version": "v2-x", "slot": "service"}
    found = {"Config": {"Labels": {f"airbundle.{key}": value for key, value in labels.items()}}}
    assert config.is_of(found, "/r", "demo", "v2-x", "service")
    assert not config.is_of(found, "/r", "demo-v2", "x", "service")
    assert not config.is_of(found, "/other", "demo", "v2-x", "service")
    one, other = config.container_names("demo", "v2-x", "service"), config.container_names("demo-v2", "x", "service")
    assert one[0] == other[0] and one[1] != other[1]


# --- networks ---------------------------------------------------------------------------------------------


class Networks:
    """The part of an engine that keeps networks, as an engine of 1.41 answers."""

    def __init__(self, *networks: Mapping[str, Any], refuse: tuple[str, ...] = ()) -> None:
        self.networks = {network["Name"]: network for network in networks}
        self._refuse = refuse

    def find_json(self, path: str, *, operation: str) -> Any:
        return self.networks.get(path.rpartition("/")[2])

    def get_json(self, path: str, *, operation: str) -> Any:
        return list(self.networks.values()) if path == "/networks" else self.networks[path.rpartition("/")[2]]

    def post(self, path: str, body: Any, *, operation: str) -> Any:
        subnet = body["IPAM"]["Config"][0]["Subnet"]
        if subnet in self._refuse:
            raise DockerError(operation, 403, "Pool overlaps with other one on this address space")
        self.networks[body["Name"]] = body
        return {"Id": "n"}


def network(name: str, subnet: str, **more: Any) -> dict[str, Any]:
    return {"Name": name, "IPAM": {"Config": [{"Subnet": subnet}]}, **more}


def routes(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "route"
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    path.write_text(head + "".join(f"{line}\n" for line in lines))
    return path


DEFAULT = "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0"
BENCHMARK = "tun0\t000012C6\t00000000\t0001\t0\t0\t0\t0000FEFF\t0\t0\t0"  # 198.18.0.0/15


def test_the_sealed_network_has_a_dead_gateway_and_no_masquerade(tmp_path: Path) -> None:
    engine = Networks(network("bridge", "172.17.0.0/16"))
    assert ensure_network(engine, sealed=True, routes=routes(tmp_path, DEFAULT)) == "airbundle"  # type: ignore[arg-type]
    made = engine.networks["airbundle"]
    assert made["IPAM"]["Config"] == [
        {
            "Subnet": "198.18.0.0/26",
            "Gateway": "198.18.0.1",
            "AuxiliaryAddresses": {"DefaultGatewayIPv4": "198.18.0.2"},
        }
    ]
    assert made["Options"] == {"com.docker.network.bridge.enable_ip_masquerade": "false"}
    assert made["EnableIPv6"] is False
    assert ensure_network(engine, sealed=False, routes=routes(tmp_path, DEFAULT)) == "airbundle-lan"  # type: ignore[arg-type]
    assert engine.networks["airbundle-lan"]["IPAM"]["Config"] == [
        {"Subnet": "198.18.0.64/26", "Gateway": "198.18.0.65"}
    ]


def test_a_subnet_that_the_site_uses_is_left_to_it(tmp_path: Path) -> None:
    engine = Networks(network("other", "198.51.100.0/25"), refuse=("198.51.100.128/26",))
    ensure_network(engine, sealed=True, routes=routes(tmp_path, DEFAULT, BENCHMARK))  # type: ignore[arg-type]
    assert engine.networks["airbundle"]["IPAM"]["Config"][0]["Subnet"] == "198.51.100.192/26"


def test_no_subnet_left_names_them(tmp_path: Path) -> None:
    everything = [network(f"n{number}", f"{number}.0.0.0/8") for number in (10, 172, 192, 198, 203)]
    with pytest.raises(DockerError, match=r"every subnet known to airbundle is in use .*198\.18\.0\.0/22"):
        ensure_network(Networks(*everything), sealed=True, routes=routes(tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        network("airbundle", "172.20.0.0/16"),
        {
            "Name": "airbundle",
            "EnableIPv6": True,
            "IPAM": {
                "Config": [{"Subnet": "198.18.0.0/26", "AuxiliaryAddresses": {"DefaultGatewayIPv4": "198.18.0.2"}}]
            },
        },
    ],
)
def test_a_network_of_that_name_with_a_way_out_is_refused(tmp_path: Path, other: Mapping[str, Any]) -> None:
    with pytest.raises(DockerError, match="containers on it can reach the outside"):
        ensure_network(Networks(other), sealed=True, routes=routes(tmp_path))  # type: ignore[arg-type]


def test_a_container_whose_route_leads_out_is_refused(tmp_path: Path) -> None:
    engine = Networks()
    ensure_network(engine, sealed=True, routes=routes(tmp_path))  # type: ignore[arg-type]

    def started(networks: Mapping[str, str]) -> dict[str, Any]:
        attached = {name: {"Gateway": gateway} for name, gateway in networks.items()}
        return {"NetworkSettings": {"Networks": attached}}

    check_sealed(engine, "start", started({"airbundle": "198.18.0.2"}))  # type: ignore[arg-type]
    for networks in ({"airbundle": "198.18.0.1"}, {}, {"airbundle": "198.18.0.2", "bridge": "172.17.0.1"}):
        with pytest.raises(DockerError, match="would not be sealed"):
            check_sealed(engine, "start", started(networks))  # type: ignore[arg-type]


def test_kernel_routes_are_read_and_the_default_is_left_out(tmp_path: Path) -> None:
    assert [str(route) for route in kernel_routes(routes(tmp_path, DEFAULT, BENCHMARK))] == ["198.18.0.0/15"]
    assert list(kernel_routes(tmp_path / "absent")) == []


# --- archives ---------------------------------------------------------------------------------------------


def digest(letter: str) -> str:
    return f"sha256:{letter * 64}"


def image(name: str = "a:1", layers: str = "bc") -> ImageEntry:
    entries = tuple(
        Layer(digest(letter), 5, digest("d"), "application/vnd.oci.image.layer.v1.tar") for letter in layers
    )
    return ImageEntry(name, digest("e"), digest("e"), digest("f"), "linux/amd64", entries, 10)


def blob(path: str, data: bytes, size: int | None = None) -> Blob:
    return Blob(path, len(data) if size is None else size, iter([data[:2], data[2:]]))


def streamed() -> Iterator[Blob]:
    yield blob("images/oci-layout", b"{}")
    yield blob("images/index.json", b"{}")
    for letter in "ebcf":
        yield blob(f"images/blobs/sha256/{letter * 64}", letter.encode() * 600)


def test_the_archive_holds_manifest_configuration_and_layers_once() -> None:
    data = b"".join(docker_archive([image(), image("b:2", "b")], streamed()))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["manifest.json", *(f"blobs/sha256/{letter * 64}" for letter in "bcf")]
        handle = tar.extractfile("manifest.json")
        assert handle is not None
        manifest = json.load(handle)
        layer = tar.extractfile(f"blobs/sha256/{'c' * 64}")
        assert layer is not None
        assert layer.read() == b"c" * 600
    assert manifest[1] == {
        "Config": f"blobs/sha256/{'f' * 64}",
        "RepoTags": ["docker.io/library/b:2"],
        "Layers": [f"blobs/sha256/{'b' * 64}"],
    }


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("b:2", "docker.io/library/b:2"),
        ("vllm/vllm-openai:v1", "docker.io/vllm/vllm-openai:v1"),
        ("ghcr.io/org/engine:1", "ghcr.io/org/engine:1"),
        ("host:5000/engine:1", "host:5000/engine:1"),
        ("localhost/engine:1", "localhost/engine:1"),
    ],
)
def test_both_halves_give_an_image_the_same_whole_name(name: str, whole: str) -> None:
    assert qualified(name) == reference.qualified(name) == whole


def test_blobs_beyond_eight_gibibytes_have_a_size_that_docker_reads() -> None:
    huge = Blob(f"images/blobs/sha256/{'b' * 64}", 9 << 30, iter(()))
    stream = docker_archive([image(layers="b")], iter([huge]))
    chunks = [next(stream) for _ in range(4)]
    assert tarfile.TarInfo.frombuf(chunks[-1], "utf-8", "strict").size == 9 << 30


def test_missing_blobs_are_all_named() -> None:
    with pytest.raises(IntegrityError, match="3 blobs") as caught:
        list(docker_archive([image()], iter([])))
    assert len(caught.value.details) == 3


@pytest.mark.parametrize("size", [3, 700])
def test_a_blob_of_another_length_than_announced_is_refused(size: int) -> None:
    one = blob(f"images/blobs/sha256/{'b' * 64}", b"b" * 600, size)
    with pytest.raises(IntegrityError, match=f"{size} were announced"):
        list(docker_archive([image()], iter([one])))


# --- values -----------------------------------------------------------------------------------------------


def test_hyper_threads_of_a_core_count_once(tmp_path: Path) -> None:

    for cpu in os.sched_getaffinity(0):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text("0-999\n")
    assert physical_cores(tmp_path) == 1
    assert physical_cores(tmp_path / "absent") == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("10.0.0.5", False)],
)
def test_is_loopback(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer
