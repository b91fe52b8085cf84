"""An engine that runs and does not answer: restarted with the reason said, unless it is only loading or busy."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import runtime_samples as samples
from airbundle_onsite.contract.launch import LogPattern, Readiness
from airbundle_onsite.contract.release import ReleaseRecord
from airbundle_onsite.deploy.ports import connections
from airbundle_onsite.deploy.restart import known_lines, loading_left
from airbundle_onsite.runtimes.base import InstanceState
from airbundle_onsite.store.releases import StagedRelease
from parts.sites import Site, release_bundle, site

LOST = LogPattern("demo.gpu-lost", "CUDA error: unknown error", "fail", "the engine cannot reach its GPU", "restart it")
MOMENTS = [f"{when}{step}" for step in ("begin", "switching", "started", "done") for when in ("before ", "")]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release_bundle(
        tmp_path_factory.mktemp("bundles"),
        "v1",
        flags=("--fault-file", "{state}/fault"),
        edit=lambda made: dataclasses.replace(
            made, launch=(dataclasses.replace(made.launch[0], log_patterns=(LOST,)),)
        ),
    )


@pytest.fixture
def one(tmp_path: Path, bundle: Path) -> Iterator[Site]:
    """A site with v1 running."""
    with site(tmp_path / "root") as made:
        done = made.install(bundle)
        assert done.code == 0, done
        yield made


def break_with(made: Site, fault: str) -> Path:
    """From now on every completion goes wrong in this way."""
    path = made.root / "releases/demo/v1/state/fault"
    path.write_text(fault)
    return path


@contextlib.contextmanager
def frozen(made: Site) -> Iterator[int]:
    (pid,) = made.engines()
    os.kill(pid, signal.SIGSTOP)
    yield pid
    assert made.engines() != [pid]


def test_start_leaves_one_that_answers_alone_and_restart_does_not(one: Site) -> None:
    before = one.engines()
    done = one.run("start", "--json")
    assert (done.code, done.json["restarted"], one.engines()) == (0, "", before), done
    done = one.run("restart")
    assert done.code == 0, done
    assert "it was restarted: asked for" in done.out
    assert one.answer() == "Paris, says v1" and one.engines() != before


def test_one_that_lost_its_gpu_is_restarted_and_its_log_says_why(one: Site) -> None:
    before = one.engines()
    fault = break_with(one, "lost-gpu")
    seen = one.run("status")
    assert seen.code == 8 and "--start restarts it" in seen.out and "cannot reach its GPU" in seen.out, seen
    failed = one.run("start", "--json")
    assert failed.code == 8, failed  # started anew, and no better: said, and left for a person
    assert "Restarting demo v1: the engine refuses to generate: HTTP 500" in failed.err
    assert "(its log: RuntimeError: CUDA error: unknown error)" in failed.err
    assert one.engines() != before
    fault.unlink()
    assert one.run("start").code == 0
    assert one.answer() == "Paris, says v1"


def test_a_frozen_one_is_restarted_and_its_log_kept(one: Site) -> None:
    with frozen(one):
        assert one.answer() is None
        done = one.run("start", "--json")
        assert done.code == 0, done
    assert "/health answers 200" in done.json["restarted"] or "not ready" in done.json["restarted"], done
    assert one.answer() == "Paris, says v1"
    (kept,) = (one.root / "logs").glob("*-engine-demo-v1.log")
    assert "listening on" in kept.read_text() and kept.stat().st_mode & 0o077 == 0
    (entry,) = [each for each in journal(one) if each["op"] == "restart"]
    assert entry["step"] == "done"
    assert one.run("start", "--json").json["restarted"] == ""


def test_the_same_bundle_again_mends_one_that_is_frozen(one: Site, bundle: Path) -> None:
    assert one.install(bundle, "--json").json["action"] == "unchanged"
    with frozen(one):
        done = one.install(bundle, "--json")
        assert (done.code, done.json["action"]) == (0, "restarted"), done
        assert "was restarted: " in done.json["answer"]
    assert one.answer() == "Paris, says v1"


def test_one_that_hangs_while_its_health_is_green_is_restarted(one: Site) -> None:
    fault = break_with(one, "hang")
    started = one.begin("start")
    try:
        assert started.stderr is not None
        while "Restarting demo v1" not in (line := started.stderr.readline()):
            assert line, "it ended without a restart"
        assert "does not generate: no whole answer within 5 s" in line
    finally:
        fault.unlink()
        _, err = started.communicate(timeout=60)
    assert started.returncode == 0, err
    assert one.answer() == "Paris, says v1"


def test_one_that_is_loading_is_waited_for(tmp_path: Path) -> None:
    """Started again by its supervisor after a crash: a new life, which has not answered yet."""
    slow = release_bundle(
        tmp_path,
        "v1",
        edit=lambda made: dataclasses.replace(
            made,
            launch=(
                dataclasses.replace(
                    made.launch[0],
                    argv=tuple({"none": "loading", "60": "4"}.get(word, word) for word in made.launch[0].argv),
                    readiness=Readiness(load_seconds=30, request_seconds=5),
                ),
            ),
        ),
    )
    with site(tmp_path / "root") as made:
        assert made.install(slow).code == 0
        (pid,) = made.engines()
        os.kill(pid, signal.SIGKILL)
        while not (later := made.engines()) or later == [pid]:
            pass
        done = made.run("start", "--json")
        assert done.code == 0, done
        assert done.json["restarted"] == "" and "may still be loading" in done.err
        assert made.engines() == later


def test_ctrl_c_waits_until_it_runs_again(one: Site) -> None:
    before = one.engines()
    running = one.begin("restart", hold_at="switching")
    assert running.stderr is not None
    while "HOLDING" not in running.stderr.readline():
        pass
    running.send_signal(signal.SIGINT)
    assert "things are being put in order" in running.stderr.readline()
    running.kill()  # the hold lasts a minute; what matters is that the signal did not end it
    running.communicate()
    done = one.run("start")
    assert done.code == 0, done
    assert (one.answer(), one.leftovers()) == ("Paris, says v1", []) and one.engines() != before


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_anywhere_the_next_command_brings_it_back(one: Site, moment: str) -> None:
    assert one.run("restart", kill_at=moment).code == -9
    assert one.run("status").code in (0, 8)
    done = one.run("start")
    assert done.code == 0, done
    assert (one.answer(), one.current(), one.leftovers()) == ("Paris, says v1", "v1", [])
    assert journal(one)[-1]["step"] in ("done", "undone")


def journal(made: Site) -> list[dict[str, object]]:
    return [json.loads(line) for line in (made.root / "journal.jsonl").read_text().splitlines()]


# --- by value ---------------------------------------------------------------------------------------------


def release(tmp_path: Path, **instance: object) -> StagedRelease:
    record = ReleaseRecord("demo", "1", 1, "0" * 64, 1, "cpu", "venv", "127.0.0.1", 8000, instance=instance)
    return StagedRelease(tmp_path, samples.manifest(samples.plan()), record)


@pytest.mark.parametrize(
    ("seen", "left"),
    [
        (InstanceState("running", life="a", age=5.0), 0.0),  # it answered in this life
        (InstanceState("running", life="b", age=5.0), 55.0),
        (InstanceState("running", life="b", age=61.0), 0.0),
        (InstanceState("running", life="b"), 60.0),
        (InstanceState("running", age=5.0), 55.0),
    ],
)
def test_how_long_it_may_still_load(tmp_path: Path, seen: InstanceState, left: float) -> None:
    assert loading_left(release(tmp_path, life="a"), samples.plan(), seen) == left


def test_lines_of_the_log_that_tell() -> None:
    plan = samples.plan(log_patterns=(LOST, LogPattern("demo.slots", "slots = 4", "fact", "slots")))
    log = "slots = 4\nRuntimeError: CUDA error: unknown error\nall fine\nNVRM: GPU has fallen off the bus\n"
    assert known_lines(plan, log) == ("RuntimeError: CUDA error: unknown error", "NVRM: GPU has fallen off the bus")
    assert known_lines(plan, "all fine\n") == ()


def test_open_connections_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connections(port) == 0
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0]:
            assert connections(port) == 1
            assert connections(client.getsockname()[1]) == 1
