"""llama.cpp from its wheel, really started with the words of its launch plan; a real model must answer."""

from __future__ import annotations

import dataclasses
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airbundle import engines, profiles
from airbundle.cache import Cache
from airbundle.contract.lock import (
    LOCK_VERSION,
    BundleLock,
    LockedFile,
    LockedModel,
    LockedWheel,
    WheelSettings,
)
from airbundle.data import data_dir
from airbundle.modelcard import model_facts
from airbundle.smoketests import smoke_tests
from airbundle.spec import load_spec
from airbundle_onsite.contract.launch import fill
from parts import need, store
from parts.process import free_port, wait_until

LAUNCHER = data_dir("templates") / "engines" / "serve_llama_cpp.py"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def site() -> Path:
    """A directory with the xllamacpp wheel installed."""

    def make(directory: Path) -> None:
        argv = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(directory / "site"),
            "xllamacpp",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            need.absent("xllamacpp", f"let pip reach PyPI ({done.stderr.strip()[-300:]})")

    return store.once(f"xllamacpp-{sys.version_info[0]}.{sys.version_info[1]}", make) / "site"


def demo_lock(gguf: Path, cache: Cache) -> BundleLock:
    """The demo's lock, but for what only an index can tell."""
    spec = load_spec(data_dir("manifests") / "demo-smollm2.toml")
    sha256, size = cache.share(gguf, lambda _: None)
    model = LockedModel(
        "smollm2", spec.model.source, "0.1.2", "gguf", (LockedFile(gguf.name, sha256, size),), gguf.name
    )
    wheel = LockedWheel(
        "xllamacpp", "1", LockedFile("xllamacpp-1-py3-none-any.whl", "0" * 64, 1), requested_by=("spec",)
    )
    return BundleLock(
        LOCK_VERSION,
        0,
        "t",
        spec,
        "0" * 64,
        profiles.load(spec.target.profile),
        (dataclasses.replace(model, facts=model_facts(model, cache)),),
        (wheel,),
        WheelSettings("3.11", "linux_x86_64"),
    )


@contextmanager
def serving(argv: list[str], site: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher as a child process; killed at the end if it still runs."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site), "HOME": str(log.parent)}
    with log.open("wb") as handle:
        process = subprocess.Popen(argv, stdout=handle, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def post(port: int, path: str, body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with _DIRECT.open(request, timeout=120) as answer:
        return json.load(answer)


def healthy(port: int) -> bool:
    try:
        with _DIRECT.open(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def plan_words(made: BundleLock, gguf: Path, port: int, number: int = 0) -> list[str]:
    plan = engines.create("llama.cpp").plans(made)[number]
    values = {
        "python": sys.executable,
        "config": str(LAUNCHER.parent),
        "model": str(gguf.parent),
        "host": "127.0.0.1",
        "port": str(port),
        "served_name": plan.model,
        "threads": "2",
    }
    return [fill(word, values) for word in plan.argv]


@pytest.mark.parametrize(("number", "slots"), [(0, 2), (1, 1), (2, 1)])
def test_the_demo_s_plans_answer_its_smoke_test_within_their_memory(
    site: Path, smollm2_gguf: Path, tmp_path: Path, number: int, slots: int
) -> None:
    made = demo_lock(smollm2_gguf, Cache(tmp_path / "cache"))
    port = free_port()
    with serving(plan_words(made, smollm2_gguf, port, number), site, tmp_path / "log") as process:
        wait_until(lambda: process.poll() is not None or healthy(port), 120, "the engine")
        assert process.poll() is None, (tmp_path / "log").read_text()
        (smoke,) = smoke_tests(made)
        answer = post(port, smoke.path, {**smoke.body, "model": "smollm2"})
        assert "Paris" in answer["choices"][0]["message"]["content"]
        assert answer["model"] == "smollm2"
        with _DIRECT.open(f"http://127.0.0.1:{port}/metrics", timeout=5) as metrics:
            assert b"llamacpp:prompt_tokens_total" in metrics.read()
        status = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        peak = int(status["VmHWM"].split()[0]) * 1024
        plan = engines.create("llama.cpp").plans(made)[number]
        assert peak < plan.needs.memory < 3 * peak
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    text = (tmp_path / "log").read_text()
    assert "SIGTERM: stopping" in text
    assert f"n_slots = {slots}, n_ctx_slot = 2048" in text


def test_a_stop_while_loading_is_obeyed(site: Path, smollm2_gguf: Path, tmp_path: Path) -> None:
    made = demo_lock(smollm2_gguf, Cache(tmp_path / "cache"))
    with serving(plan_words(made, smollm2_gguf, free_port()), site, tmp_path / "log") as process:
        deadline = time.monotonic() + 60
        while b"loading" not in (tmp_path / "log").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_a_model_that_is_cut_short_ends_it_with_a_reason(site: Path, smollm2_gguf: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2_gguf.open("rb") as handle:
        cut.write_bytes(handle.read(3_000_000))
    argv = [sys.executable, str(LAUNCHER), "--model", str(cut), "--host", "127.0.0.1", "--port", "0", "--alias", "m"]
    with serving(argv, site, tmp_path / "log") as process:
        assert process.wait(timeout=60) == 1
    assert f"the engine could not load {cut}" in (tmp_path / "log").read_text()


def test_a_port_in_use_ends_it_before_anything_is_loaded(site: Path, smollm2_gguf: Path, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        argv = [sys.executable, str(LAUNCHER), "--model", str(smollm2_gguf), "--host", "127.0.0.1", "--port", port]
        with serving([*argv, "--alias", "m"], site, tmp_path / "log") as process:
            assert process.wait(timeout=60) == 1
    text = (tmp_path / "log").read_text()
    assert f"port {port}: Address already in use" in text
    assert "loading" not in text
