"""Installing, upgrading, going back: real bundles, the real command line, real processes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airbundle_onsite.contract.launch import LogPattern
from parts.bundles import flip
from parts.process import free_port
from parts.sites import Site, release_bundle, site


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    made = {version: release_bundle(folder, version) for version in ("v1", "v2")}
    made["wrong"] = release_bundle(folder, "v3", fault="wrong")
    made["wrong-alone"] = release_bundle(folder, "v4", fault="wrong", memory=0)
    made["dies"] = release_bundle(folder, "v5", fault="exit-at-start", memory=0)
    return made


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path / "root") as made:
        yield made


@pytest.fixture
def one(empty: Site, bundles: dict[str, Path]) -> Site:
    """A site with v1 running."""
    done = empty.install(bundles["v1"])
    assert done.code == 0, done
    return empty


def test_upgrade_and_back_and_forth(one: Site, bundles: dict[str, Path]) -> None:
    done = one.install(bundles["v2"])
    assert (done.code, one.answer()) == (0, "Paris, says v2"), done
    for expected in ("v1", "v2"):
        done = one.run("--rollback", "--yes", "--json")
        assert (done.code, one.answer()) == (0, f"Paris, says {expected}"), done
        assert (done.json["action"], done.json["version"]) == ("activated", expected)
    assert one.leftovers() == []


def test_weights_are_stored_once(one: Site, bundles: dict[str, Path]) -> None:
    assert one.run("--bundle", bundles["v2"], "stage", "--yes").code == 0
    files = [one.root / f"releases/demo/{version}/models/demo/model.gguf" for version in ("v1", "v2")]
    assert files[0].stat().st_ino == files[1].stat().st_ino
    assert files[0].stat().st_nlink == 3
    assert one.answer() == "Paris, says v1"


def test_the_same_bundle_again_changes_nothing(one: Site, bundles: dict[str, Path]) -> None:
    engines = one.engines()
    done = one.install(bundles["v1"], "--json")
    assert done.code == 0, done
    assert done.json["action"] == "unchanged"
    assert one.engines() == engines


def test_the_same_version_with_other_content_is_refused(one: Site, tmp_path: Path) -> None:
    other = release_bundle(tmp_path, "v1", answer="Paris, says another")
    done = one.install(other)
    assert done.code == 3, done
    assert "--reinstall" in done.err and done.err.count("…") >= 2
    assert one.answer() == "Paris, says v1"
    done = one.install(other, "--reinstall")
    assert (done.code, one.answer()) == (0, "Paris, says another"), done
    assert one.leftovers() == []


def test_an_older_bundle_is_refused_unless_allowed(empty: Site, bundles: dict[str, Path]) -> None:
    assert empty.install(bundles["v2"]).code == 0
    done = empty.install(bundles["v1"])
    assert done.code == 6, done
    assert "sequence 1" in done.err and "sequence 2" in done.err
    assert (empty.answer(), empty.install(bundles["v1"], "--allow-older").code) == ("Paris, says v2", 0)
    assert empty.answer() == "Paris, says v1"


def test_a_release_with_wrong_answers_never_replaces_a_good_one(one: Site, bundles: dict[str, Path]) -> None:
    done = one.install(bundles["wrong"])
    assert done.code == 7, done
    assert "v1 was never stopped and still answers" in done.err
    assert "Rome" in done.err
    assert (one.answer(), one.current(), one.leftovers()) == ("Paris, says v1", "v1", [])


@pytest.mark.parametrize("fault", ["wrong-alone", "dies"])
def test_without_room_for_both_the_old_one_comes_back(one: Site, bundles: dict[str, Path], fault: str) -> None:
    done = one.install(bundles[fault])
    assert done.code == 7, done
    assert "v1 was started again and answers" in done.err
    assert (one.answer(), one.current(), one.leftovers()) == ("Paris, says v1", "v1", [])


def test_an_engine_that_gives_up_is_told_with_the_cure_for_what_it_said(empty: Site, tmp_path: Path) -> None:
    known = LogPattern(
        "demo.context",
        r"max seq len \((?P<wanted>\d+)\) is larger than the maximum number of tokens .* \((?P<held>\d+)\)",
        "fail",
        "one request of the planned length does not fit the KV cache",
        "lower serving.context",
    )
    said = "The model's max seq len (131072) is larger than the maximum number of tokens stored in KV cache (27952)"
    bundle = release_bundle(
        tmp_path,
        "v1",
        fault="exit-at-start",
        flags=("--last-words", said),
        edit=lambda made: replace(made, launch=(replace(made.launch[0], log_patterns=(known,)),)),
    )
    done = empty.install(bundle)
    assert done.code == 8, done
    assert "does not fit the KV cache (wanted=131072, held=27952)" in done.err
    assert "lower serving.context" in done.err and said in done.err
    assert empty.engines() == []


def test_what_the_engine_chose_is_told_and_less_than_planned_is_a_warning(empty: Site, tmp_path: Path) -> None:
    said = r"cache of (?P<tokens>[\d,]+) tokens"
    patterns = (
        LogPattern("demo.cache", said, "fact", "tokens that the cache holds"),
        LogPattern("demo.less", said, "warn", "the cache is smaller than planned", "look at nvidia-smi", 200_000),
        LogPattern("demo.enough", said, "warn", "this is not told", "never", 100_000),
    )
    bundle = release_bundle(
        tmp_path,
        "v1",
        flags=("--first-words", "cache of 123,456 tokens"),
        edit=lambda made: replace(made, launch=(replace(made.launch[0], log_patterns=patterns),)),
    )
    done = empty.install(bundle)
    assert done.code == 0, done
    assert "  tokens that the cache holds (tokens=123,456)" in done.err
    assert "Warning: the cache is smaller than planned (tokens=123,456). What to do: look at nvidia-smi" in done.err
    assert "this is not told" not in done.err


def test_a_first_release_that_does_not_answer_is_taken_down(empty: Site, bundles: dict[str, Path]) -> None:
    done = empty.install(bundles["dies"], "--json")
    assert done.code == 8, done
    assert done.json["exit_code"] == 8
    assert "cannot load the model" in done.err  # the engine's own words
    assert (empty.current(), empty.engines()) == (None, [])


def test_bad_bytes_stop_the_installation_and_nothing_else(one: Site, tmp_path: Path) -> None:
    bundle = release_bundle(tmp_path, "v2")
    flip(bundle / "payload.tar.000", 5000)
    done = one.install(bundle)
    assert done.code == 5, done
    assert "payload.tar.000" in done.err
    assert (one.answer(), one.leftovers()) == ("Paris, says v1", [])
    assert not (one.root / "releases/demo/v2").exists()


def test_moving_to_another_port_and_back_when_that_fails(one: Site, bundles: dict[str, Path]) -> None:
    first = one.port
    one.port = free_port()
    done = one.install(bundles["v1"])
    assert (done.code, one.answer()) == (0, "Paris, says v1"), done
    assert one.run("--bundle", bundles["v1"], "--yes", "--port", first, kill_at="started").code == -9
    assert one.run("start").code == 0
    assert one.answer() == "Paris, says v1"


def test_stage_then_activate(one: Site, bundles: dict[str, Path]) -> None:
    done = one.run("--bundle", bundles["v2"], "--stage", "--yes")
    assert (done.code, one.answer(), one.current()) == (0, "Paris, says v1", "v1"), done
    done = one.run("activate", "v2", "--yes")
    assert (done.code, one.answer(), one.current()) == (0, "Paris, says v2", "v2"), done


def test_activating_what_is_not_whole_touches_nothing(one: Site, bundles: dict[str, Path]) -> None:
    assert one.run("--bundle", bundles["v2"], "--stage", "--yes").code == 0
    (one.root / "releases/demo/v2/config/fake_engine.py").unlink()
    done = one.run("activate", "v2", "--yes")
    assert done.code == 5, done
    assert "config/fake_engine.py" in done.err
    assert one.answer() == "Paris, says v1"


def test_a_port_in_use_is_named_with_its_holder(empty: Site, bundles: dict[str, Path]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", empty.port))
        holder.listen()
        done = empty.install(bundles["v1"])
    assert done.code == 3, done
    assert f"port {empty.port}" in done.err
    assert "pid" in done.err
    assert not (empty.root / "releases").exists()


def test_two_at_once_the_second_names_the_first(one: Site, bundles: dict[str, Path]) -> None:
    first = one.begin("--bundle", bundles["v2"], "--yes", hold_at="staged")
    try:
        assert first.stderr is not None
        while "HOLDING" not in (line := first.stderr.readline()):
            assert line, "the first installer ended early"
        second = one.install(bundles["v2"])
        assert second.code == 9, second
        assert str(first.pid) in second.err
        assert one.run("status").code == 0  # reading needs no lock
    finally:
        first.kill()
        first.communicate()
    done = one.install(bundles["v2"])
    assert (done.code, one.answer()) == (0, "Paris, says v2"), done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_while_staging(one: Site, bundles: dict[str, Path], number: int) -> None:
    running = one.begin("--bundle", bundles["v2"], "--yes", hold_at="staging")
    assert running.stderr is not None
    while "HOLDING" not in running.stderr.readline():
        pass
    running.send_signal(number)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 1, err
    assert "never stopped" in err and "Interrupted" in err
    assert (one.answer(), one.leftovers()) == ("Paris, says v1", [])
    assert not (one.root / "releases/demo/v2").exists()


def test_what_was_stopped_by_hand_stays_stopped_after_a_failure(one: Site, bundles: dict[str, Path]) -> None:
    assert one.run("stop").code == 0
    done = one.install(bundles["wrong"])
    assert done.code == 8, done
    assert "was not running before" in done.err
    assert (one.answer(), one.current()) == (None, "v1")
    assert one.run("start").code == 0
    assert one.answer() == "Paris, says v1"


def test_prune_keeps_the_active_one_and_the_one_before(one: Site, bundles: dict[str, Path], tmp_path: Path) -> None:
    assert one.install(bundles["v2"]).code == 0
    weights = b"GGUF" + bytes(300_000)
    assert one.install(release_bundle(tmp_path, "v6", weights=weights)).code == 0
    done = one.run("prune", "--yes", "--json")
    assert done.json["releases"] == ["demo v1"], done
    assert sorted(path.name for path in (one.root / "releases/demo").glob("v*")) == ["v2", "v6"]
    assert one.run("uninstall", "v2", "--yes").code == 0
    assert len(list(one.root.glob("weights/sha256/??/*"))) == 2  # one file and its proof
    assert one.answer() == "Paris, says v6"


def test_uninstall_leaves_nothing_running(one: Site) -> None:
    done = one.run("uninstall", "--yes")
    assert (done.code, one.answer(), one.engines()) == (0, None, []), done
    assert one.run("status").code == 8
    assert not list((one.root / "releases").glob("*"))
    assert "kept:" not in done.out


def test_uninstall_says_that_the_signers_stay(one: Site, bundles: dict[str, Path]) -> None:
    assert one.install(bundles["v2"]).code == 0
    pinned = one.root / "allowed_signers"
    pinned.touch()
    assert "kept" not in one.run("uninstall", "v1", "--yes").out  # v2 still needs them
    done = one.run("uninstall", "--yes", "--json")
    assert done.json["kept"] == [str(pinned)], done
    assert pinned.exists()


def test_everything_is_readable_by_others_whatever_the_umask(empty: Site, bundles: dict[str, Path]) -> None:
    done = empty.run("--bundle", bundles["v1"], "--yes", "--port", empty.port, env={"AB_UMASK": "077"})
    assert done.code == 0, done
    closed = [
        str(path.relative_to(empty.root))
        for path in (empty.root / "releases").rglob("*")
        if "venv" not in path.parts and not path.is_symlink() and not path.stat().st_mode & 0o004
    ]
    assert closed == []


def test_the_tool_that_stays_works_without_the_bundle(one: Site) -> None:
    done = subprocess.run(
        [one.root / "bin/airbundlectl", "status", "--json"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done
    assert json.loads(done.stdout)[0]["answers"] is True


def test_a_log_of_each_changing_run_is_kept_without_secrets(one: Site, bundles: dict[str, Path]) -> None:
    assert one.install(bundles["v2"], env={"HF_TOKEN": "hf_abcdefghijklmnopqrstuv"}).code == 0
    logs = sorted((one.root / "logs").glob("*.log"))
    assert len(logs) == 2
    text = "".join(log.read_text() for log in logs)
    assert "Proving v2 beside v1" in text and "hf_abc" not in text
    assert all(log.stat().st_mode & 0o077 == 0 for log in logs)


def test_smoke_tells_how_soon_the_first_token_comes(one: Site) -> None:
    done = one.run("smoke", "--json")
    assert done.code == 0, done
    assert 0 < done.json["latency"]["ttft"] < 5 and done.json["latency"]["tokens"] == 3
    assert "(TTFT)" in one.run("smoke").out
    kept = json.loads((one.root / "releases/demo/v1/release.json").read_text())["smoke"]
    assert [check["id"] for check in kept][-1] == "smoke.latency"
