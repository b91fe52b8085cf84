"""What becomes of a store under careless hands and bad disks: other releases go on, and every cure named works."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airbundle_onsite.errors import ExitCode
from parts import need
from parts.process import port_open, wait_until
from parts.sites import Site, release_bundle, site


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return {version: release_bundle(folder, version) for version in ("v1", "v2")}


@pytest.fixture
def two(tmp_path: Path, bundles: dict[str, Path]) -> Iterator[Site]:
    """v2 runs, v1 is the one before."""
    with site(tmp_path / "root") as made:
        for version in ("v1", "v2"):
            done = made.install(bundles[version])
            assert done.code == 0, done
        yield made


def record_of(where: Site, version: str) -> Path:
    return where.root / "releases/demo" / version / "release.json"


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def test_a_damaged_record_of_another_release(two: Site, bundles: dict[str, Path]) -> None:
    spoil(record_of(two, "v1"))
    status = two.run("status")
    assert status.code == 0, status
    assert "damaged    v1" in status.out
    assert "damaged" in two.run("list").out
    for words in (("stop",), ("start",), ("prune", "--yes"), ("smoke",), ("support-bundle", two.root / "s.tgz")):
        done = two.run(*words)
        assert done.code == 0, done
    back = two.run("rollback", "--yes")
    assert back.code == ExitCode.INTEGRITY
    assert "release.json is damaged" in back.err
    assert "airbundlectl uninstall v1 --name demo" in back.err
    assert two.answer() == "Paris, says v2"
    assert two.run("uninstall", "--yes", "v1").code == 0
    again = two.install(bundles["v1"], "--allow-older")
    assert (again.code, two.answer()) == (0, "Paris, says v1"), again


def test_a_damaged_record_of_what_runs(two: Site, bundles: dict[str, Path]) -> None:
    spoil(record_of(two, "v2"))
    status = two.run("status", "--json")
    assert status.code == ExitCode.NOTHING_RUNNING
    assert status.json[0]["state"] == "unknown"
    for words in (("stop",), ("start",)):
        done = two.run(*words)
        assert done.code == ExitCode.INTEGRITY, done
        assert "airbundlectl uninstall v2 --name demo" in done.err
    assert two.answer() == "Paris, says v2"
    removed = two.run("uninstall", "v2", "--yes")
    assert removed.code == 0, removed
    assert (two.answer(), two.engines()) == (None, [])
    done = two.install(bundles["v2"])
    assert (done.code, two.answer()) == (0, "Paris, says v2"), done


def test_a_record_about_another_place(two: Site, tmp_path: Path) -> None:
    """Whoever acts by it would act there: nothing outside the release is touched."""
    (tmp_path / "precious").write_bytes(b"mine")
    path = record_of(two, "v1")
    for name, version in (("../../x", "v1"), ("demo", "v2"), ("demo", "../../..")):
        path.write_text(json.dumps({**json.loads(path.read_text()), "name": name, "version": version}))
        done = two.run("activate", "v1", "--yes")
        assert done.code == ExitCode.INTEGRITY
        assert "it is about" in done.err
    assert two.run("uninstall", "v1", "--yes").code == 0
    assert (tmp_path / "precious").read_bytes() == b"mine"
    assert two.answer() == "Paris, says v2"
    assert two.run("status").code == 0


def test_a_manifest_edited_after_the_installation(two: Site, bundles: dict[str, Path]) -> None:
    path = two.root / "releases/demo/v1/bundle.json"
    path.write_bytes(path.read_bytes() + b" ")
    done = two.run("rollback", "--yes")
    assert done.code == ExitCode.INTEGRITY
    assert "is not the one that was installed" in done.err
    assert two.answer() == "Paris, says v2"
    assert two.run("uninstall", "v1", "--yes").code == 0


def test_an_old_line_of_the_journal_is_history(two: Site) -> None:
    journal = two.root / "journal.jsonl"
    journal.write_bytes(b"\xff garbage\n" + b"[" * 100_000 + b"\n" + journal.read_bytes())
    assert two.run("status").code == 0
    back = two.run("rollback", "--yes")
    assert (back.code, two.answer()) == (0, "Paris, says v1"), back
    assert b"garbage" not in journal.read_bytes()


def test_the_last_line_of_the_journal_cannot_be_read(two: Site) -> None:
    journal = two.root / "journal.jsonl"
    for line in (b"garbage\n", b"[" * 100_000 + b"\n", b'{"tx": 5}\n'):
        with journal.open("ab") as file:
            file.write(line)
        status = two.run("status")
        assert status.code == 0, status
        assert "cannot be read" in status.out
        done = two.run("stop")
        assert done.code == ExitCode.INTEGRITY
        assert f"mv {journal} {journal}.damaged" in done.err
    assert two.answer() == "Paris, says v2"
    journal.rename(f"{journal}.damaged")
    assert two.run("rollback", "--yes").code == 0
    assert two.answer() == "Paris, says v1"


def test_the_highest_sequence_is_damaged(two: Site, bundles: dict[str, Path]) -> None:
    assert two.run("uninstall", "v1", "--yes").code == 0
    for text in ("", "[]", "{", '{"sequence": "x"}'):
        (two.root / "releases/demo/seen.json").write_text(text)
        older = two.install(bundles["v1"])
        assert older.code == ExitCode.TRUST, older


def test_a_model_file_deleted(two: Site, bundles: dict[str, Path]) -> None:
    (two.root / "releases/demo/v1/models/demo/model.gguf").unlink()
    done = two.run("rollback", "--yes")
    assert done.code == ExitCode.INTEGRITY
    assert "models/demo/model.gguf" in done.err
    assert "--reinstall" in done.err
    assert two.answer() == "Paris, says v2"
    cured = two.install(bundles["v1"], "--reinstall")  # the very bundle again: not an older one coming in
    assert (cured.code, two.answer()) == (0, "Paris, says v1"), cured


def test_current_and_weights_deleted_while_a_release_runs(two: Site, bundles: dict[str, Path]) -> None:
    shutil.rmtree(two.root / "weights")
    (two.root / "releases/demo/current").unlink()
    status = two.run("status")
    assert status.code == ExitCode.NOTHING_RUNNING
    assert two.run("start").code == ExitCode.USAGE
    back = two.run("activate", "v1", "--yes")  # v2 has the port, and is taken over instead of being in the way
    assert (back.code, two.answer(), two.current()) == (0, "Paris, says v1", "v1"), back
    assert two.leftovers() == []
    (two.root / "releases/demo/current").unlink()
    (two.root / "releases/demo/current").symlink_to("nowhere")
    again = two.install(bundles["v1"])
    assert (again.code, two.answer(), two.current()) == (0, "Paris, says v1", "v1"), again


# --- processes ----------------------------------------------------------------------------------------------


def _supervisor(where: Site) -> int:
    (found,) = where._running("supervisor.py")
    return found


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_the_engine_killed_comes_back(two: Site) -> None:
    _kill(two.engines()[0])
    wait_until(lambda: two.answer() == "Paris, says v2", 20, "the engine")


def test_the_supervisor_killed_is_said_and_cured(two: Site) -> None:
    _kill(_supervisor(two))
    status = two.run("status")
    assert status.code == 0, status
    assert "its supervisor is gone" in status.out
    assert two.run("stop").code == 0
    assert two.run("start").code == 0
    assert "supervisor" not in two.run("status").out
    assert (len(two.engines()), two.answer()) == (1, "Paris, says v2")


def test_the_log_removed_by_hand_ends_nothing(two: Site) -> None:
    supervisor = _supervisor(two)
    (two.root / "run/demo@v2-service/engine.log").unlink()
    time.sleep(1)
    assert _supervisor(two) == supervisor
    _kill(two.engines()[0])
    wait_until(lambda: two.answer() == "Paris, says v2", 20, "the engine")


def test_stop_claims_nothing_about_what_it_cannot_find(two: Site) -> None:
    supervisor = _supervisor(two)
    shutil.rmtree(two.root / "run")
    done = two.run("stop")
    assert done.code == 0, done
    assert f"Port {two.port} on 127.0.0.1 is in use by" in done.err
    started = two.run("start")
    assert started.code == ExitCode.PREFLIGHT
    assert f"port {two.port}" in started.err
    os.kill(supervisor, signal.SIGTERM)
    wait_until(lambda: not port_open(two.port), 20, "the engine's end")
    assert two.run("start").code == 0
    assert two.answer() == "Paris, says v2"


def test_staging_needs_no_free_port(two: Site, tmp_path: Path) -> None:
    with site(tmp_path / "second") as other:
        other.port = two.port
        done = other.install(release_bundle(tmp_path, "v3"), "--stage")
        assert done.code == 0, done
        assert f"port {two.port}" in done.err
        started = other.run("activate", "v3", "--yes", "--port", two.port)
        assert started.code == ExitCode.PREFLIGHT, started
    assert two.answer() == "Paris, says v2"


def test_credentials_of_whoever_installs_go_nowhere(two: Site) -> None:
    secret = {"HF_TOKEN": "hf_" + "a" * 20, "OPENAI_API_KEY": "sk-" + "b" * 20, "DB_PASSWORD": "c" * 20}
    assert two.run("stop", env=secret).code == 0
    assert two.run("start", env=secret).code == 0
    assert two.run("support-bundle", two.root / "support.tgz", env=secret).code == 0
    environment = Path(f"/proc/{two.engines()[0]}/environ").read_bytes()
    kept = [path.read_bytes() for path in two.root.rglob("*") if path.is_file() and not path.is_symlink()]
    for value in secret.values():
        assert value.encode() not in environment
        assert not any(value.encode() in data for data in kept)
    for path in [*two.root.rglob("*.log"), *two.root.rglob("spec.json"), two.root / "support.tgz"]:
        if path.name != "prepare.log":
            assert path.stat().st_mode & 0o077 == 0, path


def test_without_proc_nothing_is_started_that_could_not_be_stopped(tmp_path: Path, bundles: dict[str, Path]) -> None:
    need.need("ext4")  # stands for: root, who may mount
    words = [sys.executable, "-I", bundles["v1"] / "onsite.pyz", "--bundle", bundles["v1"], "--yes"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh", *words, "--root", tmp_path / "r"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == ExitCode.PREFLIGHT, done.stderr
    assert "mount -t proc proc /proc" in done.stderr


def test_names_and_versions_that_read_the_same_when_joined(two: Site, tmp_path: Path) -> None:
    """``demo`` ``v2-x`` and ``demo-v2`` ``x`` are two releases: neither takes the other's process."""
    first = release_bundle(tmp_path / "one", "v2-x", sequence=5)
    second = release_bundle(tmp_path / "two", "x", sequence=5, edit=lambda manifest: replace(manifest, name="demo-v2"))
    assert two.install(first).code == 0
    other = Site(two.root)
    done = other.install(second)
    assert done.code == 0, done
    assert (two.answer(), other.answer()) == ("Paris, says v2-x", "Paris, says x")
    status = two.run("status")
    assert status.code == 0, status


@pytest.mark.parametrize("name", ["lock", "journal.jsonl"])
def test_a_named_pipe_in_place_of_a_file_is_not_waited_for(two: Site, name: str) -> None:
    pipe = two.root / name
    pipe.unlink()
    os.mkfifo(pipe)
    status = two.run("status", timeout=40)
    assert status.code == 0, status
    assert two.run("support-bundle", two.root / "s.tgz", timeout=40).code == 0
    done = two.run("stop", timeout=40)
    assert done.code == ExitCode.INTEGRITY, done
    assert f"{pipe} is no regular file" in done.err and "rm " in done.err
    assert two.answer() == "Paris, says v2"
    pipe.unlink()
    assert two.run("stop").code == 0
