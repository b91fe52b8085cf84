"""The venv runtime with a real engine: llama.cpp as a wheel serves a real model, with no docker and no network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import runtime_samples as samples
from airbundle_onsite.contract.launch import SmokeTest
from airbundle_onsite.runtimes.venv import VenvRuntime
from airbundle_onsite.smoke import run_smoke, wait_ready
from airbundle_onsite.system import Silent, SystemClock
from parts import need, store
from parts.process import free_port

XLLAMACPP = "xllamacpp==2026.10.11549"

ENGINE = """
import signal, sys, xllamacpp
model, host, port, name, threads = sys.argv[1:]
settings = xllamacpp.CommonParams()
settings.model.path, settings.hostnames, settings.port = model, [host], int(port)
settings.n_ctx, settings.n_parallel, settings.cpuparams.n_threads = 2048, 1, int(threads)
server = xllamacpp.Server(settings)
signal.sigwait({signal.SIGTERM, signal.SIGINT})
"""


def _wheel(directory: Path) -> None:
    def make(empty: Path) -> None:
        argv = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
            str(empty),
        ]
        done = subprocess.run([*argv, XLLAMACPP], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            need.absent(XLLAMACPP, f"let pip reach PyPI ({done.stderr.strip()[-300:]})")

    (wheel,) = store.once(XLLAMACPP.replace("==", "-"), make).glob("*.whl")
    directory.mkdir(parents=True)
    (directory / wheel.name).symlink_to(wheel)


def test_llama_cpp_as_a_wheel_knows_the_capital_of_france(smollm2_gguf: Path, tmp_path: Path) -> None:
    directory = tmp_path / "release"
    _wheel(directory / "wheels")
    samples.add_pip(directory / "wheels")
    argv = ("{python}", "{config}/engine.py", "{model}/model.gguf", "{host}", "{port}", "{served_name}", "{threads}")
    launch = samples.plan("venv", argv=argv, wheels=True)
    body = {"model": "{served_name}", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    test = SmokeTest("capital", "/v1/completions", body, ("paris",))
    made = samples.manifest(launch, smoke=[test], wheels=samples.wheel_entries(directory / "wheels"))
    release = samples.release(directory, made, launch)
    (directory / "config" / "engine.py").write_text(ENGINE)
    (directory / "models" / launch.model / "model.gguf").symlink_to(smollm2_gguf)
    runtime = VenvRuntime(samples.environment(tmp_path / "root"))
    runtime.prepare(release)
    instance = runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    try:
        checks = wait_ready(instance, launch, runtime, SystemClock(), Silent())
        checks += run_smoke(made, launch, instance, SystemClock(), Silent())
        assert {check.status for check in checks} == {"pass"}, (checks, runtime.logs(instance))
    finally:
        runtime.remove(instance)
