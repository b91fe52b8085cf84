"""The docker runtime on a real engine: images streamed in, containers that answer and can reach nothing."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import runtime_samples as samples
from airbundle_onsite.contract.launch import SmokeTest
from airbundle_onsite.contract.manifest import Serving
from airbundle_onsite.dockerapi import DockerError
from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.runtimes.docker import DockerRuntime
from airbundle_onsite.runtimes.failures import EngineError
from airbundle_onsite.smoke import run_smoke, wait_ready
from airbundle_onsite.system import Silent, SystemClock
from parts import docker, need
from parts.disks import Disks
from parts.docker import DockerEngine
from parts.images import ImageArchive, small_image
from parts.process import Daemon, free_port, wait_until
from parts.wheels import make_wheel

pytestmark = pytest.mark.real("docker", "images")

REACH = """
import socket, sys
for word in sys.argv[1:]:
    kind, host, port = word.split("/")
    try:
        if kind == "tcp":
            socket.create_connection((host, int(port)), 4).close()
        elif kind == "udp":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.settimeout(4)
                probe.sendto(b"ping", (host, int(port)))
                probe.recvfrom(10)
        else:
            socket.getaddrinfo(host, int(port))
        print("reached", word)
    except OSError:
        print("failed", word)
"""


@pytest.fixture
def runtime(docker_engine: DockerEngine, tmp_path: Path) -> Iterator[DockerRuntime]:
    made = DockerRuntime(samples.environment(tmp_path / "root", docker_engine.host))
    yield made
    for slot in ("service", "candidate"):
        for version in ("1", "2"):
            found = made.find("demo", version, slot)  # type: ignore[arg-type]
            if found:
                made.remove(found)


@pytest.fixture(scope="module")  # other modules take images out of the shared engine
def loaded_base(
    docker_engine: DockerEngine, base_archive: ImageArchive, tmp_path_factory: pytest.TempPathFactory
) -> ImageArchive:
    """The base image, loaded once through the runtime."""
    root = tmp_path_factory.mktemp("load")
    launch = samples.plan("docker")
    made = samples.manifest(launch, images=[samples.image_entry(base_archive)])
    DockerRuntime(samples.environment(root, docker_engine.host)).load_images(made, samples.image_blobs(base_archive))
    return base_archive


def test_images_stream_in_and_are_found_by_id_and_name(
    docker_engine: DockerEngine, runtime: DockerRuntime, loaded_base: ImageArchive
) -> None:
    entry = samples.image_entry(loaded_base)
    made = samples.manifest(samples.plan("docker"), images=[entry])
    assert runtime.has_images(made) == []
    assert docker_engine.run("inspect", "-f", "{{.Id}}", entry.name).stdout.strip() == entry.config_digest
    docker_engine.run("rmi", "-f", entry.config_digest)  # other tests may have given it other names
    assert runtime.has_images(made) == [entry.name]
    with pytest.raises(EngineError, match="is not in the container engine any more"):
        runtime._image_id(entry)
    runtime.load_images(made, samples.image_blobs(loaded_base))
    assert runtime.has_images(made) == []


def test_an_image_without_a_name_gets_it_back(
    docker_engine: DockerEngine, runtime: DockerRuntime, loaded_base: ImageArchive
) -> None:
    entry = replace(samples.image_entry(loaded_base), name="airbundle-test/other:7")
    made = samples.manifest(samples.plan("docker", image=entry.name), images=[entry])
    assert runtime.has_images(made) == []  # by its id, whatever it is called
    runtime.load_images(made, samples.image_blobs(loaded_base))
    assert docker_engine.run("inspect", "-f", "{{.Id}}", entry.name).stdout.strip() == entry.config_digest
    docker_engine.run("rmi", entry.name)


def test_a_missing_blob_is_named_and_nothing_is_loaded(
    docker_engine: DockerEngine, runtime: DockerRuntime, llama_archive: ImageArchive
) -> None:
    entry = samples.image_entry(llama_archive, "airbundle-test/incomplete:1")
    made = samples.manifest(samples.plan("docker", image=entry.name), images=[entry])
    missing = entry.layers[0].digest
    with pytest.raises(IntegrityError) as caught:
        runtime.load_images(made, samples.image_blobs(llama_archive, without=[missing]))
    assert missing[7:] in caught.value.details[0]
    assert docker_engine.run("images", "-q", entry.name).stdout == ""


def test_an_engine_that_cannot_read_a_layer_says_so(runtime: DockerRuntime, base_archive: ImageArchive) -> None:
    entry = samples.image_entry(base_archive)
    wrong = replace(entry.layers[0], diff_id="sha256:" + "0" * 64)
    made = samples.manifest(
        samples.plan("docker"), images=[replace(entry, config_digest=entry.layers[0].digest, layers=(wrong,))]
    )
    with pytest.raises(DockerError, match="could not load the images"):
        runtime.load_images(made, samples.image_blobs(base_archive))


@pytest.mark.real("ext4")
def test_a_disk_that_fills_while_images_are_loaded_is_said_and_given_back(tmp_path: Path) -> None:
    """An image that fits by itself, but not beside the copy that the engine unpacks it from."""
    content = random.Random(7).randbytes(70 << 20)
    archive = small_image(tmp_path, "large", {"weights": content})
    entry = samples.image_entry(archive)
    made = samples.manifest(samples.plan("docker", image=entry.name), images=[entry])
    with Disks() as disks, docker.running(disks.ext4(110) / "data") as engine:
        runtime = DockerRuntime(samples.environment(tmp_path / "root", engine.host))
        before = shutil.disk_usage(engine.data_root).free
        assert before > len(content)
        with pytest.raises(DockerError, match="could not load the images") as caught:
            runtime.load_images(made, samples.image_blobs(archive))
        assert "no space left on device" in str(caught.value)
        assert "free space where the engine keeps its images" in caught.value.remedy
        assert engine.run("images", "-aq").stdout == ""
        wait_until(lambda: shutil.disk_usage(engine.data_root).free > before - (8 << 20), 20, "the room")


def test_the_fake_engine_answers_and_is_confined(
    docker_engine: DockerEngine, runtime: DockerRuntime, loaded_base: ImageArchive, tmp_path: Path
) -> None:
    launch = samples.plan("docker")
    made = samples.manifest(launch, images=[samples.image_entry(loaded_base)])
    release = samples.release(tmp_path / "release 中文", made, launch)
    runtime.prepare(release)
    instance = runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    checks = wait_ready(instance, launch, runtime, SystemClock(), Silent())
    checks += run_smoke(made, launch, instance, SystemClock(), Silent())
    assert {check.status for check in checks} == {"pass"}, checks
    name = instance.details["container"]
    facts = docker_engine.run(
        "inspect",
        "-f",
        "{{.HostConfig.RestartPolicy.Name}} {{json .HostConfig.PortBindings}} {{json .HostConfig.CapDrop}} "
        '{{index .Config.Labels "airbundle.version"}} {{.HostConfig.LogConfig.Type}} {{.Image}}',
        name,
    ).stdout.split()
    binding = f'{{"8000/tcp":[{{"HostIp":"127.0.0.1","HostPort":"{instance.port}"}}]}}'
    assert facts == ["unless-stopped", binding, '["ALL"]', "1", "json-file", made.images[0].config_digest]
    inside = docker_engine.run("exec", name, "env").stdout.splitlines()
    assert {"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "http_proxy=", "HTTPS_PROXY="} <= set(inside)
    assert docker_engine.run("exec", name, "touch", "/airbundle/model/x", check=False).returncode != 0
    assert docker_engine.run("exec", name, "touch", "/airbundle/state/x").returncode == 0
    assert "listening on" in runtime.logs(instance)

    runtime.stop(instance)
    assert runtime.state(instance).status == "exited"
    docker_engine.run("image", "prune", "-af")
    assert runtime.has_images(made) == [], "the stopped container holds the image"
    runtime.remove(instance)
    assert runtime.state(instance).status == "absent"
    assert runtime.find("demo", "1", "service") is None


@contextmanager
def listener(address: str) -> Iterator[int]:
    """A TCP and a UDP echo service on this host."""
    with closing(socket.create_server((address, 0))) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        port = tcp.getsockname()[1]
        udp.bind((address, port))

        def echo() -> None:
            while True:
                try:
                    data, sender = udp.recvfrom(10)
                    udp.sendto(data, sender)
                except OSError:
                    return

        threading.Thread(target=echo, daemon=True).start()
        yield port


def outside_address() -> str:
    """This machine's own address on the network outside."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.99", 9))  # sends nothing; asks the kernel which address it would use
        address: str = probe.getsockname()[0]
    return address


@pytest.fixture
def neighbour(docker_engine: DockerEngine, loaded_base: ImageArchive) -> Iterator[str]:
    """Address of another container, on a network of its own, that listens at port 9000."""
    name = samples.image_entry(loaded_base).name
    docker_engine.run("network", "create", "elsewhere")
    docker_engine.run(
        "run", "-d", "--name", "neighbour", "--network", "elsewhere", name, "python3", "-m", "http.server", "9000"
    )
    yield docker_engine.run(
        "inspect", "-f", "{{.NetworkSettings.Networks.elsewhere.IPAddress}}", "neighbour"
    ).stdout.strip()
    docker_engine.run("rm", "-f", "neighbour")
    docker_engine.run("network", "rm", "elsewhere")


def test_the_published_port_answers_and_nothing_outside_can_be_reached(
    docker_engine: DockerEngine, runtime: DockerRuntime, loaded_base: ImageArchive, neighbour: str, tmp_path: Path
) -> None:
    launch = samples.plan("docker")
    made = samples.manifest(launch, images=[samples.image_entry(loaded_base)])
    release = samples.release(tmp_path / "release", made, launch)
    runtime.prepare(release)
    instance = runtime.start(release, slot="candidate", host="127.0.0.1", port=free_port())
    assert wait_ready(instance, launch, runtime, SystemClock(), Silent())[-1].status == "pass"
    own = outside_address()
    with listener(own) as port:
        goals = [f"tcp/{neighbour}/9000", f"tcp/{own}/{port}", f"udp/{own}/{port}"]
        probe = ("python3", "-c", REACH, *goals, "name/model-hub.example/443")
        sealed = docker_engine.run("exec", instance.details["container"], *probe).stdout
        image = made.images[0].name
        control = docker_engine.run(
            "run", "--rm", "--network", "elsewhere", image, "python3", "-c", REACH, *goals
        ).stdout
    assert "reached" not in sealed
    assert control.splitlines() == [f"reached {goal}" for goal in goals]


@contextmanager
def restarted(engine: DockerEngine) -> Iterator[None]:
    """End the engine's daemon and start the same one again; it is ended on leaving."""
    pid = int((engine.socket.parent / "docker.pid").read_text())
    argv = (Path("/proc") / str(pid) / "cmdline").read_bytes().decode().split("\0")[:-1]
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not (engine.socket.parent / "docker.pid").exists(), 60, "the end of dockerd")
    daemon = Daemon(argv, engine.log.with_name("dockerd-again.log"), env={**os.environ, "PATH": need.SEARCH})
    try:
        wait_until(lambda: engine.run("version", check=False).returncode == 0, 60, "dockerd", process=daemon)
        yield
        engine.run("rm", "-f", *engine.run("ps", "-aq").stdout.split(), check=False)
        engine.run("network", "prune", "-f")
    finally:
        daemon.stop(30)


def test_a_restart_of_the_engine_brings_the_service_back_and_keeps_it_sealed(
    base_archive: ImageArchive, tmp_path: Path
) -> None:
    launch = samples.plan("docker")
    made = samples.manifest(launch, images=[samples.image_entry(base_archive)])
    release = samples.release(tmp_path / "release", made, launch)
    with docker.running() as engine:
        runtime = DockerRuntime(samples.environment(tmp_path / "root", engine.host))
        runtime.load_images(made, samples.image_blobs(base_archive))
        runtime.prepare(release)
        instance = runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
        assert wait_ready(instance, launch, runtime, SystemClock(), Silent())[-1].status == "pass"
        with restarted(engine):
            assert wait_ready(instance, launch, runtime, SystemClock(), Silent())[-1].status == "pass"
            route = engine.run("exec", instance.details["container"], "cat", "/proc/net/route").stdout.splitlines()[1]
            network = engine.run("network", "inspect", "-f", "{{json .IPAM.Config}}", "airbundle").stdout
            runtime.remove(instance)
        gateway = socket.inet_ntoa(int(route.split()[2], 16).to_bytes(4, "little"))
        assert f'"DefaultGatewayIPv4":"{gateway}"' in network


def test_a_candidate_that_dies_is_not_restarted_and_its_log_is_kept(
    runtime: DockerRuntime, loaded_base: ImageArchive, tmp_path: Path
) -> None:
    launch = samples.plan("docker", env={"FAKE_ENGINE_FAULT": "exit-at-start"})
    made = samples.manifest(launch, images=[samples.image_entry(loaded_base)])
    release = samples.release(tmp_path / "release", made, launch)
    runtime.prepare(release)
    instance = runtime.start(release, slot="candidate", host="127.0.0.1", port=free_port())
    check = wait_ready(instance, launch, runtime, SystemClock(), Silent())[-1]
    assert (check.id, check.status) == ("ready.process", "fail")
    assert "with code 3" in check.summary
    assert any("cannot load the model" in line for line in check.evidence)


def test_a_port_in_use_is_named_and_leaves_no_container(
    runtime: DockerRuntime, loaded_base: ImageArchive, tmp_path: Path
) -> None:
    launch = samples.plan("docker")
    made = samples.manifest(launch, images=[samples.image_entry(loaded_base)])
    release = samples.release(tmp_path / "release", made, launch)
    runtime.prepare(release)
    with closing(socket.create_server(("127.0.0.1", 0))) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(EngineError) as caught:
            runtime.start(release, slot="service", host="127.0.0.1", port=port)
    assert f"free port {port}" in caught.value.remedy
    assert runtime.find("demo", "1", "service") is None


def test_another_installation_s_container_is_left_alone(
    docker_engine: DockerEngine, runtime: DockerRuntime, loaded_base: ImageArchive, tmp_path: Path
) -> None:
    launch = samples.plan("docker")
    made = samples.manifest(launch, images=[samples.image_entry(loaded_base)])
    release = samples.release(tmp_path / "release", made, launch)
    runtime.prepare(release)
    runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    other = DockerRuntime(samples.environment(tmp_path / "elsewhere", docker_engine.host))
    assert other.find("demo", "1", "service") is None
    with pytest.raises(EngineError, match="belongs to the installation in"):
        other.start(release, slot="service", host="127.0.0.1", port=free_port())


def test_wheels_are_installed_in_a_container_without_network(
    runtime: DockerRuntime, loaded_base: ImageArchive, tmp_path: Path
) -> None:
    launch = samples.plan("docker", wheels=True, argv=("{python}", "-m", "tinyserver", "{port}", "{host}"))
    directory = tmp_path / "release"
    code = (
        "import runpy, sys\nimport tinydep\n"
        "sys.argv = ['x', '--port', sys.argv[1], '--host', sys.argv[2], '--answer', tinydep.ANSWER]\n"
        "runpy.run_path('/airbundle/config/fake_engine.py', run_name='__main__')\n"
    )
    make_wheel(directory / "wheels", "tinyserver", "1.0", ["tinydep"], files={"tinyserver.py": code})
    make_wheel(directory / "wheels", "tinydep", "2.0", files={"tinydep.py": "ANSWER = 'Paris, from a wheel'\n"})
    samples.add_pip(directory / "wheels")
    wheels = samples.wheel_entries(directory / "wheels")
    made = samples.manifest(launch, images=[samples.image_entry(loaded_base)], wheels=wheels)
    release = samples.release(directory, made, launch)
    (directory / "site.partial").mkdir()  # what a crash left
    (directory / "site.partial" / "junk").write_text("")
    runtime.prepare(release)
    assert {"tinydep.py", "tinyserver.py"} <= {path.name for path in (directory / "site").iterdir()}
    assert not {"junk", ".unpacking"} & {path.name for path in (directory / "site").iterdir()}
    assert "Successfully installed" in (directory / "prepare.log").read_text()
    runtime.prepare(release)
    instance = runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    checks = wait_ready(instance, launch, runtime, SystemClock(), Silent())
    checks += run_smoke(made, launch, instance, SystemClock(), Silent())
    assert checks[-1].status == "pass", checks
    assert checks[-1].actual == "Paris, from a wheel"


def test_a_wheel_that_was_changed_is_refused(
    docker_engine: DockerEngine, runtime: DockerRuntime, loaded_base: ImageArchive, tmp_path: Path
) -> None:
    launch = samples.plan("docker", wheels=True)
    directory = tmp_path / "release"
    make_wheel(directory / "wheels", "tinydep", "2.0")
    samples.add_pip(directory / "wheels")
    wheels = samples.wheel_entries(directory / "wheels")
    make_wheel(directory / "wheels", "tinydep", "2.0", files={"tinydep.py": "EVIL = 1\n"})
    made = samples.manifest(launch, images=[samples.image_entry(loaded_base)], wheels=wheels)
    release = samples.release(directory, made, launch)
    with pytest.raises(EngineError) as caught:
        runtime.prepare(release)
    assert any("HASHES" in line for line in caught.value.details)
    assert not (directory / "site").exists()
    assert docker_engine.run("ps", "-aq", "--filter", "name=demo-1-prepare").stdout == ""


def test_a_port_open_to_the_network_answers_another_machine(
    runtime: DockerRuntime, loaded_base: ImageArchive, tmp_path: Path
) -> None:
    launch = samples.plan("docker")
    serving = Serving(host="0.0.0.0", port=free_port())
    made = samples.manifest(launch, images=[samples.image_entry(loaded_base)], serving=serving)
    release = samples.release(tmp_path / "release", made, launch)
    runtime.prepare(release)
    instance = runtime.start(release, slot="service", host=serving.host, port=serving.port)
    assert wait_ready(instance, launch, runtime, SystemClock(), Silent())[-1].status == "pass"
    with other_machine() as (own, run):
        answer = run(sys.executable, "-c", REACH, f"tcp/{own}/{serving.port}")
    assert answer.splitlines() == [f"reached tcp/{own}/{serving.port}"]


@contextmanager
def other_machine() -> Iterator[tuple[str, Callable[..., str]]]:
    """A network namespace behind a cable of its own: this host's address from there, and what runs commands in it."""
    token = secrets.token_hex(3)
    space, near, far = f"ab-{token}", f"abn{token}", f"abf{token}"
    block = f"10.{secrets.randbelow(50) + 70}.{secrets.randbelow(250)}"

    def ip(*words: str) -> None:
        subprocess.run([need.program("ip"), *words], check=True, capture_output=True, timeout=20)

    def run(*argv: str) -> str:
        words = [need.program("ip"), "netns", "exec", space, *argv]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout

    ip("netns", "add", space)
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
        ip("addr", "add", f"{block}.1/24", "dev", near)
        ip("link", "set", near, "up")
        ip("-n", space, "addr", "add", f"{block}.2/24", "dev", far)
        ip("-n", space, "link", "set", far, "up")
        yield f"{block}.1", run
    finally:
        ip("netns", "delete", space)


def test_llama_cpp_in_a_container_knows_the_capital_of_france(
    runtime: DockerRuntime, llama_archive: ImageArchive, smollm2_gguf: Path, tmp_path: Path
) -> None:
    entry = samples.image_entry(llama_archive, "airbundle-test/llama:1")
    argv = ("/usr/bin/llama-server", "-m", "{model}/model.gguf", "--host", "{host}", "--port", "{port}")
    launch = samples.plan(
        "docker", image=entry.name, argv=(*argv, "--alias", "{served_name}", "-c", "2048", "-t", "{threads}")
    )
    body = {"model": "{served_name}", "max_tokens": 24, "temperature": 0}
    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    test = SmokeTest("capital", "/v1/chat/completions", {**body, "messages": question}, ("paris",), concurrency=2)
    made = samples.manifest(launch, images=[entry], smoke=[test])
    release = samples.release(tmp_path / "release", made, launch)
    (release.directory / "models" / launch.model / "model.gguf").hardlink_to(smollm2_gguf)
    runtime.load_images(made, samples.image_blobs(llama_archive))
    runtime.prepare(release)
    instance = runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    checks = wait_ready(instance, launch, runtime, SystemClock(), Silent())
    checks += run_smoke(made, launch, instance, SystemClock(), Silent())
    assert {check.status for check in checks} == {"pass"}, (checks, runtime.logs(instance))
