"""Interpreters, and the whole fingerprint on this very machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import airbundle_onsite
from airbundle_onsite import probes
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.record import decode_json, encode
from airbundle_onsite.probes.files import HostFiles
from airbundle_onsite.probes.pythons import pythons
from airbundle_onsite.system import SystemClock, SystemRunner
from unit.onsite.stub_nvml import StubNvml

INSTALLER = Path(airbundle_onsite.__file__).parents[1]


def script(path: Path, answer: str, code: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\nexit {code}\n")
    path.chmod(0o755)
    return path


def found(tmp_path: Path, *directories: str) -> dict[str, tuple[str, bool]]:
    environ = {"PATH": os.pathsep.join(str(tmp_path / name) for name in directories), "HOME": str(tmp_path)}
    facts = pythons(HostFiles(), SystemRunner(), environ)
    return {one.path: (one.version, one.venv) for one in facts if one.path.startswith(str(tmp_path))}


def test_interpreters_that_count(tmp_path: Path) -> None:
    good = script(tmp_path / "a/python3.11", "cpython 3.11.2 64 1")
    bare = script(tmp_path / "a/python3.12", "cpython 3.12.1 64 0")
    script(tmp_path / "a/python3.8", "cpython 3.8.20 64 1")
    script(tmp_path / "a/python3.10", "pypy 3.10.14 64 1")
    script(tmp_path / "a/python3.13", "cpython 3.13.0 32 1")
    script(tmp_path / "a/python3.9", "cpython 3.9.1 64 1", code=1)
    script(tmp_path / "a/python3-config", "cpython 3.11.2 64 1")
    (tmp_path / "a/python3").symlink_to("python3.11")
    pyenv = script(tmp_path / ".pyenv/versions/3.13.0/bin/python3", "cpython 3.13.0 64 1")
    assert found(tmp_path, "a", "missing", ".") == {
        str(tmp_path / "a/python3"): ("3.11.2", True),
        str(bare): ("3.12.1", False),
        str(pyenv): ("3.13.0", True),
    }
    assert good.exists()


def test_shims_and_virtual_environments_are_passed_over(tmp_path: Path) -> None:
    script(tmp_path / "shims/python3", "cpython 3.11.2 64 1")
    script(tmp_path / "venv/bin/python3", "cpython 3.11.2 64 1")
    (tmp_path / "venv/pyvenv.cfg").touch()
    assert found(tmp_path, "shims", "venv/bin") == {}


def test_another_hosts_interpreters_are_not_run(tmp_path: Path) -> None:
    assert pythons(HostFiles(tmp_path), SystemRunner(), {"PATH": "/usr/bin"}) == ()


@pytest.fixture(scope="module")
def here() -> tuple[Fingerprint, float]:
    paths = {
        "root": Path("/opt/airbundle"),
        "bundle": INSTALLER,
        "temp": Path("/tmp"),
        "docker": Path("/var/lib/docker"),
    }
    begun = sum(os.times()[:4])
    taken = probes.take(paths, runner=SystemRunner(), clock=SystemClock(), environ=os.environ)
    return taken, sum(os.times()[:4]) - begun


def test_this_machine_is_plausible(here: tuple[Fingerprint, float]) -> None:
    taken, _ = here
    assert taken.os.machine == os.uname().machine and taken.os.kernel == os.uname().release
    assert taken.os.euid == os.geteuid() and taken.os.distribution
    assert taken.cpu.logical and 1 <= taken.cpu.logical <= (os.cpu_count() or 1)
    assert taken.cpu.physical is None or 1 <= taken.cpu.physical <= taken.cpu.logical
    assert "sse2" in taken.cpu.flags or "asimd" in taken.cpu.flags
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert taken.memory.total and 2**28 < taken.memory.total <= pages
    assert taken.memory.available and taken.memory.available <= taken.memory.total
    assert {disk.purpose for disk in taken.disks} >= {"root", "bundle", "temp"}
    assert abs(taken.taken - time.time()) < 60
    assert taken.gpu.state in ("no-driver", "no-gpu", "ok", "failed")


def test_this_interpreters_base_is_found(here: tuple[Fingerprint, float]) -> None:
    base = os.path.realpath(sys.executable)
    assert base in {os.path.realpath(python.path) for python in here[0].pythons}


def test_it_costs_little(here: tuple[Fingerprint, float]) -> None:
    """Seconds of CPU, of this process and of the interpreters it asked: the wall's depend on who else is at work."""
    taken, seconds = here
    if taken.gpu.state == "no-driver":
        assert seconds < 1.0, f"{seconds:.2f} s"


def test_it_survives_the_journey_as_json(here: tuple[Fingerprint, float]) -> None:
    assert decode_json(Fingerprint, encode(here[0]), "fingerprint") == here[0]


def test_a_recorded_gpu_host_survives_it_too() -> None:
    taken = probes.take({}, runner=SystemRunner(), clock=SystemClock(), environ={"PATH": ""}, nvml=StubNvml())
    assert len(taken.gpu.devices) == 2
    assert decode_json(Fingerprint, encode(taken), "fingerprint") == taken


def test_another_filesystem_root(tmp_path: Path) -> None:
    taken = probes.take(
        {"root": Path("/opt/x")}, runner=SystemRunner(), clock=SystemClock(), environ={}, filesystem_root=tmp_path
    )
    assert taken.docker.state in ("absent", "failed") and taken.pythons == () and taken.ports_in_use == ()
    assert [disk.purpose for disk in taken.disks] == ["root"]


def test_a_port_listened_on_is_seen() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = probes.take({}, runner=SystemRunner(), clock=SystemClock(), environ={"PATH": ""})
        assert listener.getsockname()[1] in taken.ports_in_use


def test_nothing_needs_more_than_the_standard_library() -> None:
    """Imported alone, isolated from site-packages, with warnings as errors."""
    code = f"import sys; sys.path.insert(0, {str(INSTALLER)!r}); import airbundle_onsite.probes, airbundle_onsite.match"
    done = subprocess.run([sys.executable, "-I", "-S", "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
