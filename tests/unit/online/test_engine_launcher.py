"""The launcher of llama.cpp's wheel, as far as it goes without the wheel."""

from __future__ import annotations

import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airbundle.data import data_dir

LAUNCHER = data_dir("templates") / "engines" / "serve_llama_cpp.py"


@pytest.fixture(scope="module")
def launcher() -> dict[str, Any]:
    """Its names."""
    return runpy.run_path(str(LAUNCHER), run_name="launcher")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file that begins like a GGUF."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF rest")
    return path


def words(model: Path, port: int, *more: str) -> list[str]:
    return ["--model", str(model), "--host", "127.0.0.1", "--port", str(port), "--alias", "m", *more]


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", LAUNCHER, *argv], capture_output=True, text=True, timeout=60)


def test_a_port_in_use_is_named(model: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = run(*words(model, port))
    assert done.returncode == 1
    assert f"address 127.0.0.1 port {port}: Address already in use" in done.stderr


def test_a_port_left_in_time_wait_is_free(launcher: dict[str, Any], model: Path) -> None:
    """As after a restart: the old server's connections linger, and must not keep the new one away."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first lingers
        client.close()
    assert launcher["refusal"](launcher["command_line"](words(model, port))) == ""


def test_a_model_that_is_not_there_or_none_is_named(tmp_path: Path, model: Path) -> None:
    done = run(*words(tmp_path / "gone.gguf", 1))
    assert (done.returncode, "gone.gguf: no such file" in done.stderr) == (1, True)
    model.write_bytes(b"version https://git-lfs")
    assert "not a GGUF file (it begins with b'vers')" in run(*words(model, 1)).stderr


def test_without_the_wheel_it_says_so(model: Path) -> None:
    done = run(*words(model, 0))
    assert (done.returncode, "xllamacpp cannot be loaded" in done.stderr) == (1, True)


def test_an_unknown_option_is_a_wrong_command_line(model: Path) -> None:
    done = run(*words(model, 0, "--ctx", "1"))
    assert done.returncode == 2
    assert "--ctx" in done.stderr


def test_options_reach_their_attributes(launcher: dict[str, Any], model: Path) -> None:
    class Bag:
        """Takes any attribute."""

    params, cpu, batch = Bag(), Bag(), Bag()
    params.cpuparams, params.cpuparams_batch = cpu, batch  # type: ignore[attr-defined]
    options = launcher["command_line"](words(model, 0, "--threads", "3", "--ctx-size", "64", "--no-webui"))
    for name, apply in (*launcher["VALUES"].items(), *launcher["SWITCHES"].items()):
        value = getattr(options, name[2:].replace("-", "_"))
        if value is not None:
            apply(params, value)
    assert vars(params) == {"cpuparams": cpu, "cpuparams_batch": batch, "n_ctx": 64, "ui": False}
    assert (vars(cpu), vars(batch)) == ({"n_threads": 3}, {"n_threads": 3})
