"""What every runtime promises, held against each one that is discovered, with real processes and containers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from socket import create_server
from typing import Any

import pytest

import runtime_samples as samples
from airbundle_onsite import runtimes
from airbundle_onsite.contract.record import encode
from airbundle_onsite.errors import AirbundleError
from airbundle_onsite.runtimes.base import Blob, Environment, Instance, ReleaseFiles, Runtime
from airbundle_onsite.smoke import run_smoke, wait_ready
from airbundle_onsite.system import Silent, SystemClock
from parts.process import free_port, port_open, wait_until


@dataclass
class Bench:
    """A runtime and releases for it."""

    runtime: Runtime
    environment: Environment
    make: Callable[..., ReleaseFiles]

    def ready(self, release: ReleaseFiles, instance: Instance) -> bool:
        checks = wait_ready(instance, release.plan, self.runtime, SystemClock(), Silent())
        return checks[-1].status == "pass"


def _venv(root: Path, request: pytest.FixtureRequest) -> Bench:
    environment = samples.environment(root)

    def make(version: str = "1", **changes: Any) -> ReleaseFiles:
        launch = samples.plan("venv", **changes)
        return samples.release(root / "releases" / "demo" / version, samples.manifest(launch, version=version), launch)

    return Bench(runtimes.create("venv", environment), environment, make)


def _docker(root: Path, request: pytest.FixtureRequest) -> Bench:
    engine, archive = request.getfixturevalue("docker_engine"), request.getfixturevalue("base_archive")
    environment = samples.environment(root, engine.host)
    runtime = runtimes.create("docker", environment)
    image = samples.image_entry(archive)
    loaded = samples.manifest(samples.plan("docker"), images=[image])
    if runtime.has_images(loaded):
        runtime.load_images(loaded, samples.image_blobs(archive))

    def make(version: str = "1", **changes: Any) -> ReleaseFiles:
        launch = samples.plan("docker", **changes)
        made = samples.manifest(launch, version=version, images=[image])
        return samples.release(root / "releases" / "demo" / version, made, launch)

    return Bench(runtime, environment, make)


BENCHES = {"venv": _venv, "docker": _docker}
"""How to make a release for each runtime; a new runtime adds its own here."""


def _kinds() -> list[Any]:
    marks = {"docker": [pytest.mark.real("docker", "images")]}
    return [pytest.param(kind, marks=marks.get(kind, [])) for kind in runtimes.discover()]


@pytest.fixture(params=_kinds())
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = BENCHES[request.param](tmp_path / "root 中文", request)
    yield made
    for version in ("1", "2"):
        for slot in ("service", "candidate"):
            found = made.runtime.find("demo", version, slot)  # type: ignore[arg-type]
            if found is not None:
                made.runtime.remove(found)


def test_every_discovered_runtime_is_tested() -> None:
    assert set(runtimes.discover()) == set(BENCHES)


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no runtime 'podman-quadlet'; there are: docker, venv"):
        runtimes.create("podman-quadlet", samples.environment(tmp_path))


def test_the_kind_is_the_module_s_name(bench: Bench) -> None:
    assert bench.runtime.kind in runtimes.discover()


def test_start_answers_and_stop_ends_it(bench: Bench) -> None:
    release = bench.make()
    bench.runtime.prepare(release)
    port = free_port()
    instance = bench.runtime.start(release, slot="service", host="127.0.0.1", port=port)
    assert (instance.name, instance.version, instance.slot) == ("demo", "1", "service")
    assert (instance.host, instance.port) == ("127.0.0.1", port)
    assert bench.ready(release, instance)
    checks = run_smoke(release.manifest, release.plan, instance, SystemClock(), Silent())
    assert {check.status for check in checks} == {"pass"}
    assert bench.runtime.state(instance).status == "running"
    assert "listening on" in bench.runtime.logs(instance)
    bench.runtime.stop(instance)
    assert bench.runtime.state(instance).status == "exited"
    assert not port_open(port)
    bench.runtime.stop(instance)  # once more: nothing to do


def test_another_process_finds_it_again(bench: Bench) -> None:
    release = bench.make()
    bench.runtime.prepare(release)
    started = bench.runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    later = runtimes.create(bench.runtime.kind, bench.environment)
    found = later.find("demo", "1", "service")
    assert found is not None
    assert (found.host, found.port) == (started.host, started.port)
    assert encode(found.details)  # plain JSON, for the release record
    assert bench.ready(release, found)
    assert later.find("demo", "1", "candidate") is None
    assert later.find("demo", "2", "service") is None
    later.remove(replace(found, details={}))  # its names alone are enough


def test_a_stopped_one_is_found_and_starts_again(bench: Bench) -> None:
    release = bench.make()
    bench.runtime.prepare(release)
    first = bench.runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    bench.runtime.stop(first)
    assert bench.runtime.find("demo", "1", "service") is not None
    second = bench.runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    assert bench.ready(release, second)


def test_a_second_start_in_the_slot_replaces_the_first(bench: Bench) -> None:
    release = bench.make()
    bench.runtime.prepare(release)
    first = bench.runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    assert bench.ready(release, first)
    second = bench.runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    assert bench.ready(release, second)
    assert not port_open(first.port)


def test_two_releases_and_two_slots_side_by_side(bench: Bench) -> None:
    one, two = bench.make("1"), bench.make("2")
    started = []
    for release in (one, two):
        bench.runtime.prepare(release)
    started.append((one, bench.runtime.start(one, slot="service", host="127.0.0.1", port=free_port())))
    started.append((two, bench.runtime.start(two, slot="candidate", host="127.0.0.1", port=free_port())))
    assert all(bench.ready(release, instance) for release, instance in started)
    bench.runtime.remove(started[1][1])
    assert bench.runtime.state(started[0][1]).status == "running"


def test_remove_leaves_no_trace_but_the_release(bench: Bench) -> None:
    release = bench.make()
    bench.runtime.prepare(release)
    instance = bench.runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    bench.runtime.remove(instance)
    assert bench.runtime.state(instance).status == "absent"
    assert bench.runtime.find("demo", "1", "service") is None
    assert bench.runtime.logs(instance) == ""
    assert (release.directory / "config" / "fake_engine.py").is_file()
    bench.runtime.remove(instance)  # once more: nothing to do


def test_a_service_that_dies_is_restarted(bench: Bench) -> None:
    release = bench.make(env={"FAKE_ENGINE_FAULT": "crash"})
    bench.runtime.prepare(release)
    instance = bench.runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    wait_until(lambda: "listening on" in bench.runtime.logs(instance), 30, "the engine")
    run_smoke(release.manifest, release.plan, instance, SystemClock(), Silent())  # this one kills it
    wait_until(lambda: bench.runtime.logs(instance).count("listening on") >= 2, 30, "the second life")


def test_a_candidate_that_dies_stays_dead_with_code_and_log(bench: Bench) -> None:
    release = bench.make(env={"FAKE_ENGINE_FAULT": "exit-at-start"})
    bench.runtime.prepare(release)
    instance = bench.runtime.start(release, slot="candidate", host="127.0.0.1", port=free_port())
    wait_until(lambda: bench.runtime.state(instance).status == "exited", 30, "the end")
    assert bench.runtime.state(instance).code == 3
    assert bench.runtime.logs(instance).count("cannot load the model") == 1


def test_a_program_that_is_not_there_is_named(bench: Bench) -> None:
    """Either the start says it, or the engine ends at once and its log does."""
    release = bench.make(argv=("{config}/no-such-engine", "--port", "{port}"))
    bench.runtime.prepare(release)
    try:
        instance = bench.runtime.start(release, slot="candidate", host="127.0.0.1", port=free_port())
    except AirbundleError as error:
        assert "no-such-engine" in error.summary
        return
    wait_until(lambda: bench.runtime.state(instance).status == "exited", 30, "the end")
    assert bench.runtime.state(instance).code == 127
    assert "no-such-engine" in bench.runtime.logs(instance)


def test_the_engine_gets_offline_variables_no_proxy_and_its_placeholders(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTPS_PROXY", "PIP_INDEX_URL", "PYTHONPATH"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    argv = ("{python}", "-c", show, "{model}", "{config}", "{state}", "{served_name}", "{threads}", "{{literal}}")
    release = bench.make(argv=argv, env={"CACHE": "{state}/cache", "HF_HUB_OFFLINE": "1"})
    bench.runtime.prepare(release)
    instance = bench.runtime.start(release, slot="candidate", host="127.0.0.1", port=free_port())
    wait_until(lambda: bench.runtime.state(instance).status == "exited", 30, "the end")
    (model, config, state, name, threads, literal), env = json.loads(bench.runtime.logs(instance))
    assert all(path.startswith("/") for path in (model, config, state))
    assert (name, literal) == ("tiny", "{literal}")
    assert int(threads) >= 1
    assert env["CACHE"] == f"{state}/cache"
    assert (env["HF_HUB_OFFLINE"], env["TRANSFORMERS_OFFLINE"], env["DO_NOT_TRACK"]) == ("1", "1", "1")
    assert not any(env.get(proxy) for proxy in ("http_proxy", "HTTPS_PROXY"))
    assert "PIP_INDEX_URL" not in env
    assert "127.0.0.1:9" not in env.get("PYTHONPATH", "")


def test_state_outlives_a_restart_and_prepare_can_be_repeated(bench: Bench) -> None:
    keep = (
        "import pathlib, sys; p = pathlib.Path(sys.argv[1], 'kept'); print('kept' if p.exists() else 'new'); p.touch()"
    )
    release = bench.make(argv=("{python}", "-c", keep, "{state}"))
    for expected in ("new", "kept"):
        bench.runtime.prepare(release)
        instance = bench.runtime.start(release, slot="candidate", host="127.0.0.1", port=free_port())
        wait_until(lambda: bench.runtime.state(instance).status == "exited", 30, "the end")  # noqa: B023
        assert bench.runtime.logs(instance).strip() == expected


def test_without_images_the_blobs_are_still_consumed(bench: Bench) -> None:
    release = bench.make()
    taken = []

    def chunks(number: int) -> Iterator[bytes]:
        yield b"x"
        taken.append(number)

    blobs = (Blob(f"images/blobs/sha256/{number:064d}", 1, chunks(number)) for number in range(3))
    bench.runtime.load_images(replace(release.manifest, images=()), blobs)
    assert taken == [0, 1, 2]
    assert bench.runtime.has_images(replace(release.manifest, images=())) == []


def test_a_port_in_use_by_another_program_is_seen(bench: Bench) -> None:
    """Either the start says it, or the engine ends and its log does."""
    release = bench.make()
    bench.runtime.prepare(release)
    with closing(create_server(("127.0.0.1", 0))) as busy:
        port = busy.getsockname()[1]
        try:
            instance = bench.runtime.start(release, slot="candidate", host="127.0.0.1", port=port)
        except AirbundleError as error:
            assert str(port) in error.remedy
            return
        wait_until(lambda: bench.runtime.state(instance).status == "exited", 30, "the end")
        assert "in use" in bench.runtime.logs(instance)


def test_one_life_is_told_from_the_next(bench: Bench) -> None:
    release = bench.make()
    bench.runtime.prepare(release)
    lives = set()
    for _ in range(2):
        instance = bench.runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
        assert bench.ready(release, instance)
        first, second = bench.runtime.state(instance), bench.runtime.state(instance)
        assert first.up and first.life == second.life != ""
        assert first.age is not None and second.age is not None and 0 <= first.age <= second.age < 120
        lives.add(first.life)
    assert len(lives) == 2
    bench.runtime.stop(instance)
    ended = bench.runtime.state(instance)
    assert not ended.up and (ended.life, ended.age) == ("", None)


def test_a_sweep_with_nothing_to_remove_removes_nothing(bench: Bench) -> None:
    release = bench.make()
    bench.runtime.prepare(release)
    instance = bench.runtime.start(release, slot="service", host="127.0.0.1", port=free_port())
    assert bench.runtime.sweep([release.manifest]) == []
    assert bench.ready(release, instance)
    assert bench.runtime.has_images(release.manifest) == []
