"""A private Docker Engine: own socket, data, bridge and containerd, so that the machine's own is never touched."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from parts import need
from parts.process import Daemon, wait_until


@dataclass(frozen=True)
class DockerEngine:
    """A running engine.

    Attributes:
        socket: path of its API socket.
        data_root: where it keeps images and containers.
        log: its log file.
    """

    socket: Path
    data_root: Path
    log: Path

    @property
    def host(self) -> str:
        """Value for DOCKER_HOST."""
        return f"unix://{self.socket}"

    def run(self, *words: str, check: bool = True, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        """Run the docker command against it; raises RuntimeError with its stderr when it fails and `check` is set."""
        environment = {**os.environ, "DOCKER_HOST": self.host}
        for name in ("DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
            environment.pop(name, None)
        argv = [need.program("docker"), *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, env=environment)
        if check and done.returncode != 0:
            raise RuntimeError(f"docker {' '.join(words)}: {done.stderr}")
        return done

    def forget_images(self) -> None:
        """Remove every image that no container has, whatever tests before left."""
        self.run("image", "prune", "-af")


@contextmanager
def running(data_root: Path | None = None) -> Iterator[DockerEngine]:
    """A fresh engine; on leaving it is ended, unmounted and removed.

    Args:
        data_root: where it keeps images and containers, e.g. on a small disk; by default a directory of its own.
    """
    need.need("docker")
    with _free_network() as third, _running(third, data_root) as engine:
        yield engine


@contextmanager
def _running(third: int, data_root: Path | None) -> Iterator[DockerEngine]:
    # A short path of its own: the name of a unix socket has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="ab-docker-"))
    name = f"ab{secrets.token_hex(3)}"
    engine = DockerEngine(directory / "docker.sock", data_root or directory / "data", directory / "dockerd.log")
    argv = [
        need.program("dockerd"),
        *("--config-file", str(_empty_configuration(directory))),
        *("--host", engine.host),
        *("--data-root", str(engine.data_root)),
        *("--exec-root", str(directory / "exec")),
        *("--pidfile", str(directory / "docker.pid")),
        *("--containerd-namespace", name, "--containerd-plugins-namespace", f"{name}p"),
        *("--bridge", name),
        *("--default-address-pool", f"base=198.19.{third}.0/24,size=28"),
    ]
    _make_bridge(name, f"198.18.{third}.1/24")
    daemon = Daemon(argv, engine.log, env={**os.environ, "PATH": need.SEARCH})
    try:
        wait_until(lambda: _answers(engine), 60, "dockerd", process=daemon)
        yield engine
        _remove_containers(engine)
    finally:
        daemon.stop(30)
        _ip("link", "delete", name)
        _forget_rules(name)
        unmount_below(engine.data_root)
        unmount_below(directory)
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _free_network() -> Iterator[int]:
    """A third byte of an address that no other engine has meanwhile, of this run or another.

    198.18.0.0/15 is set apart for tests of networks, so no real network of this machine is hidden.
    """
    for third in range(10, 250):  # below are those that airbundle chooses from
        with Path(tempfile.gettempdir(), f"ab-network-{third}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield third
            return
    raise RuntimeError("no network is free for one more engine")


def _empty_configuration(directory: Path) -> Path:
    path = directory / "daemon.json"
    path.write_text("{}")
    return path


def _make_bridge(name: str, address: str) -> None:
    for words in (
        ("link", "add", name, "type", "bridge"),
        ("addr", "add", address, "dev", name),
        ("link", "set", name, "up"),
    ):
        done = _ip(*words)
        if done.returncode != 0:
            raise RuntimeError(f"ip {' '.join(words)}: {done.stderr}")


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([need.program("ip"), *words], capture_output=True, text=True, timeout=20)


def _forget_rules(bridge: str) -> None:
    """Takes out the packet filter rules that docker leaves behind for a bridge that is gone."""
    iptables = need.program("iptables")
    for table in ("filter", "nat"):
        listed = subprocess.run([iptables, "-t", table, "-S"], capture_output=True, text=True, timeout=20)
        for rule in listed.stdout.splitlines():
            if rule.startswith("-A ") and f" {bridge} " in f"{rule} ":
                words = ["-D", *rule.split()[1:]]
                subprocess.run([iptables, "-t", table, *words], capture_output=True, timeout=20)


def _answers(engine: DockerEngine) -> bool:
    return engine.socket.exists() and engine.run("version", check=False, timeout=20).returncode == 0


def _remove_containers(engine: DockerEngine) -> None:
    """Also takes away the networks that docker would otherwise leave as bridges on this machine."""
    containers = engine.run("ps", "-aq", check=False).stdout.split()
    if containers:
        engine.run("rm", "-f", *containers, check=False)
    engine.run("network", "prune", "-f", check=False)


def unmount_below(directory: Path) -> None:
    """Unmount everything at or under a directory, deepest first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].encode().decode("unicode_escape").encode("latin-1").decode() for line in lines]
    for point in sorted((point for point in points if Path(point).is_relative_to(directory)), key=len, reverse=True):
        subprocess.run([need.program("umount"), "-l", point], capture_output=True, timeout=30)
