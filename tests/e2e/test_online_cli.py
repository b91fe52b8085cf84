"""The online command as a person meets it: exit codes, JSON, interruptions, and what it leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from airbundle import lockfile
from parts import journeys, models
from parts.journeys import airbundle
from parts.specs import write_spec


@pytest.fixture
def office(tmp_path, wheel_index):
    """A spec that needs nothing from outside: a local model, an index on loopback, a stand-in for the engine."""
    model = tmp_path / "m.gguf"
    model.symlink_to(models.smollm2_gguf())

    def write(version="v1"):
        return write_spec(tmp_path / f"{version}.toml", wheel_index, model, version=version)

    return write


def test_help_names_every_command():
    said = airbundle("--help").check()
    for command in ("init", "lock", "plan", "build", "inspect", "verify", "profiles", "cache", "demo"):
        assert re.search(rf"^  {command} ", said.out, re.M), command


@pytest.mark.parametrize("kind", ["venv", "docker", "base-wheels"])
def test_init_writes_a_spec_that_loads(tmp_path, kind):
    path = tmp_path / "mine.toml"
    airbundle("init", path, "--kind", kind).check()
    assert "exists already" in airbundle("init", path).check(2).err
    schema = path.read_text().partition("#:schema ")[2].split()[0]
    assert json.loads((tmp_path / schema).read_text())["title"] == "airbundle spec"
    said = airbundle("lock", path, "--set", 'target.profile="cpu-x86_65"', "--json")
    assert said.code in (2, 10) and "cpu-x86_64" in said.err


def test_profiles_are_listed_shown_and_missed_nearly():
    listed = airbundle("profiles").check().out
    assert "h200-sxm" in listed and "cpu-x86_64" in listed
    assert airbundle("profiles", "show", "h200-sxm", "--json").check().json[0]["gpu"]["capability"] == "9.0"
    assert "h200-sxm" in airbundle("profiles", "show", "h200-smx").check(2).err


def test_this_host_matches_the_cpu_profile(tmp_path):
    path = tmp_path / "site.json"
    done = journeys.run([sys.executable, "-m", "airbundle_onsite", "--fingerprint", str(path)])
    done.check()
    best = airbundle("profiles", "match", path, "--json").check().json[0]
    assert best["profile"].startswith("cpu-")


def test_plan_build_inspect_and_verify(office, tmp_path):
    spec, dist = office(), tmp_path / "dist"
    plan = airbundle("plan", spec, "--json").check().json
    assert plan["name"] == "tiny" and sum(plan["parts"]) == plan["payload"]
    assert not dist.exists()
    airbundle("build", spec, "-o", dist, "--dry-run").check()
    assert not dist.exists()
    built = airbundle("build", spec, "-o", dist, "--part-size", "40MB", "--json").check().json
    assert len(built["manifest"]["payload"]["parts"]) == 3
    assert 0 <= plan["payload"] - built["manifest"]["payload"]["size"] < 300_000, "an estimate from above"
    bundle = dist / "tiny-v1"
    assert "tiny v1" in airbundle("inspect", bundle).check().out
    assert airbundle("inspect", bundle, "--json").check().json["version"] == "v1"
    assert all(check["status"] != "fail" for check in airbundle("verify", bundle, "--json").check().json)
    assert airbundle("verify", bundle, "--strict").code == 4, "an unsigned bundle is a warning"
    again = airbundle("build", spec, "-o", dist).check(2)
    assert "exists already" in again.err and "--set bundle.version=v2" in again.err

    part = bundle / "payload.tar.001"
    data = bytearray(part.read_bytes())
    data[1000] ^= 1
    part.write_bytes(data)
    said = airbundle("verify", bundle).check(5)
    assert "payload.tar.001" in said.out and "payload.tar.000: 1 of 1 pieces are whole" in said.out


def test_a_second_build_from_the_cache_needs_no_source(office, tmp_path, wheel_index):
    spec = office()
    airbundle("build", spec, "-o", tmp_path / "a").check()
    (tmp_path / "m.gguf").unlink()
    for wheel in wheel_index.directory.iterdir():
        wheel.unlink()
    airbundle("build", spec, "-o", tmp_path / "b").check()
    names = sorted(path.name for path in (tmp_path / "a" / "tiny-v1").iterdir())
    for name in names:
        assert (tmp_path / "a/tiny-v1" / name).read_bytes() == (tmp_path / "b/tiny-v1" / name).read_bytes(), name


def test_every_failure_is_listed_once_and_the_code_is_10(office, tmp_path):
    spec = office()
    (tmp_path / "m.gguf").unlink()
    said = airbundle("lock", spec, "--set", 'wheels.requirements=["no-such-engine"]', "--json").check(10)
    assert "m.gguf" in said.err and "no-such-engine" in said.err
    assert said.json["exit_code"] == 10 and "Traceback" not in said.err
    assert not resolve_lock_exists(spec)


def resolve_lock_exists(spec):
    return spec.with_name(f"{spec.stem}.lock.json").exists()


def test_a_stale_lock_is_made_again_and_a_broken_one_is_named(office):
    spec = office()
    airbundle("lock", spec).check()
    path = spec.with_name("v1.lock.json")
    before = lockfile.read_lock(path)
    airbundle("lock", spec).check()
    assert lockfile.read_lock(path) == before, "locking again with nothing changed changes nothing"
    said = airbundle("plan", spec, "--set", "serving.context=1024")
    assert "another spec" in said.check().err
    path.write_text(path.read_text()[:200])
    said = airbundle("plan", spec)
    assert said.code in (2, 5) and "v1.lock.json" in said.err and "Traceback" not in said.err


@pytest.mark.parametrize("name", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_no_bundle_and_the_next_one_finishes(office, tmp_path, name):
    spec, dist = office(), tmp_path / "dist"
    airbundle("lock", spec).check()
    argv = [sys.executable, "-m", "airbundle", "build", str(spec), "-o", str(dist)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not list(dist.glob(".*partial/payload*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(name)
    _, error = process.communicate(timeout=60)
    assert b"Traceback" not in error
    left = sorted(path.name for path in dist.iterdir())
    assert "tiny-v1" not in left or process.returncode == 0
    airbundle("build", spec, "-o", dist, "--force").check()
    assert sorted(path.name for path in dist.iterdir()) == ["tiny-v1"]
    airbundle("verify", dist / "tiny-v1").check()


@pytest.mark.real("ext4")
def test_a_full_disk_is_named_and_leaves_nothing_half_written(office, small_disk):
    spec, disk = office(), small_disk(64)
    said = airbundle("build", spec, "-o", disk / "dist")
    assert said.code in (1, 2) and "free" in said.err and "Traceback" not in said.err
    assert [path for path in disk.rglob("*") if path.name.startswith(("tiny", ".tiny"))] == []


def test_the_cache_says_what_it_holds_and_forgets_on_request(office, tmp_path):
    spec, cache = office(), tmp_path / "own-cache"
    airbundle("build", spec, "-o", tmp_path / "dist", "--cache", cache).check()
    held = airbundle("cache", "info", "--cache", cache, "--json").check().json
    assert held["size"] > 90_000_000
    lock = spec.with_name("v1.lock.json")
    would = airbundle("cache", "prune", "--dry-run", "--cache", cache, "--json").check().json
    assert would["files"] == held["files"]
    airbundle("cache", "prune", "--keep", lock, "--cache", cache).check()
    airbundle("build", spec, "-o", tmp_path / "again", "--cache", cache).check()
    airbundle("cache", "prune", "--cache", cache).check()
    assert airbundle("cache", "info", "--cache", cache, "--json").check().json["files"] == 0


def test_a_file_where_a_bundle_is_wanted_is_told_what_it_is(tmp_path):
    spec, tar, other = (tmp_path / name for name in ("mine.toml", "mine-v1.tar", "note.txt"))
    for path in (spec, tar, other):
        path.write_text("x")
    for words in (("inspect",), ("verify",), ("rehearse",), ("diff", tmp_path), ("split",)):
        said = airbundle(*words, spec).check(2)
        assert "is a spec, and no bundle yet" in said.err and f"airbundle build {spec}" in said.err
    assert "tar -xf mine-v1.tar" in airbundle("inspect", tar).check(2).err
    assert "is a directory" in airbundle("inspect", other, "--json").check(2).json["summary"]


def test_an_unknown_word_is_a_usage_error():
    assert airbundle("biuld").check(2).err
    assert airbundle("build", "nowhere.toml").check(2).err.count("nowhere.toml")


def test_output_that_nobody_reads_is_no_crash():
    argv = f"{sys.executable} -m airbundle profiles | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", argv], capture_output=True, text=True, env=os.environ)
    assert "Traceback" not in done.stderr
    assert json.dumps(done.stdout)
