"""Careless words on the site's command line, and roots where nothing can be installed: a sentence, never a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airbundle_onsite.errors import ExitCode
from parts import disks
from parts.bundles import make_bundle, snapshot
from parts.process import free_port
from parts.shells import install_sh
from parts.sites import release_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("words") / "demo-1", {"models/m/w.gguf": bytes(4096)})


WORDS = {
    "no number": (("--port", "abc"), "argument --port: invalid int value: 'abc'"),
    "port 0": (("--port", "0"), "--port 0 is no TCP port"),
    "port too high": (("--port=70000",), "name one from 1 to 65535"),
    "negative port": (("--port", "-5"), "--port -5 is no TCP port"),
    "negative keep": (("--prune", "--keep", "-3"), "--keep -3 is no number of versions"),
    "near miss": (("--verfy",), "did you mean '--verify'?"),
    "near miss of a word": (("statsu",), "did you mean 'status'?"),
    "two actions": (("--status", "--list"), "one action at a time, found --status, --list"),
    "an empty root": (("--root", "", "--status"), "--root was followed by an empty word"),
    "an empty bundle": (("--bundle", "", "--verify"), "--bundle was followed by an empty word"),
    "an empty name": (("--status", "--name", ""), "--name was followed by an empty word"),
    "uninstall an empty version": (("--uninstall", ""), "--uninstall was followed by an empty word"),
    "roll back to an empty version": (("--rollback=",), "--rollback was followed by an empty word"),
    "activate an empty version": (("activate", ""), "--activate was followed by an empty word"),
    "a line end in the root": (("--root", "/tmp/a\nb", "--status"), "holds a line end"),
    "an escape in the root": (("--root", "/tmp/\x1b[2J", "--status"), "a control character"),
    "signers that are not there": (("--verify", "--allowed-signers", "/nonexistent"), "/nonexistent: No such file"),
}


@pytest.mark.parametrize("case", WORDS)
def test_words_that_make_no_sense(bundle: Path, tmp_path: Path, case: str) -> None:
    words, sentence = WORDS[case]
    env = {**os.environ, "AIRBUNDLE_ROOT": str(tmp_path / "root")}
    done = install_sh(bundle, *words, env=env, cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE, done.stdout + done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_usage_error_as_json(bundle: Path) -> None:
    done = install_sh(bundle, "--port", "0", "--json")
    assert done.returncode == ExitCode.USAGE
    assert json.loads(done.stdout)["exit_code"] == ExitCode.USAGE


def test_the_root_of_the_environment_is_looked_at_too(bundle: Path) -> None:
    done = install_sh(bundle, "--status", env={**os.environ, "AIRBUNDLE_ROOT": "a\nb"})
    assert done.returncode == ExitCode.USAGE
    assert "AIRBUNDLE_ROOT 'a\\nb' holds a line end" in done.stderr


def test_a_home_of_nobody(bundle: Path) -> None:
    done = install_sh(bundle, "--status", "--root", "~nobody-of-that-name/x")
    assert done.returncode == ExitCode.USAGE
    assert "name the directory without ~" in done.stderr


@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_a_root_that_is_a_file(bundle: Path, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    root = tmp_path / "file" / below if below else tmp_path / "file"
    for words in (("--yes",), ("--preflight",), ("--dry-run",)):
        done = install_sh(bundle, *words, "--root", str(root))
        assert done.returncode == ExitCode.PREFLIGHT, done.stdout + done.stderr
        assert f"{root} cannot be written" in done.stdout + done.stderr
        assert f"{tmp_path / 'file'} is no directory" in done.stdout + done.stderr
        assert "choose a directory of your own with --root DIR" in done.stdout + done.stderr
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_root_on_a_read_only_filesystem(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with disks.read_only_noexec(tmp_path / "disk") as disk:
        for words in (("--yes",), ("--preflight",)):
            done = install_sh(bundle, *words, "--root", str(disk / "root"))
            assert done.returncode == ExitCode.PREFLIGHT, done.stdout + done.stderr
            assert f"{disk} is on a read-only filesystem" in done.stdout + done.stderr


def test_install_sh_by_a_link(bundle: Path, tmp_path: Path) -> None:
    link = tmp_path / "start-here.sh"
    link.symlink_to(bundle / "install.sh")
    for shell in ("bash", "dash"):
        done = install_sh(bundle, "--verify", script=str(link), cwd=tmp_path, shell_name=shell)
        assert done.returncode == 0, done.stdout + done.stderr


def test_names_that_would_move_a_terminal(bundle: Path, tmp_path: Path) -> None:
    """What an attacker leaves on the stick is shown, not obeyed."""
    evil = make_bundle(tmp_path / "demo-1", {"models/m/w.gguf": bytes(64)})
    (evil / "x\x1b]0;owned\x07\x1b[2J").write_bytes(b"")
    for python in (sys.executable, "none"):
        done = install_sh(evil, "--verify", python=python)
        assert done.returncode == ExitCode.INTEGRITY
        assert "owned" in done.stdout
        assert "\x1b" not in done.stdout + done.stderr


# --- streams ------------------------------------------------------------------------------------------------


def _with_streams(bundle: Path, redirection: str, *words: str, root: Path) -> subprocess.CompletedProcess[str]:
    script = f'exec "$@" {redirection}'
    return subprocess.run(
        ["bash", "-c", script, "bash", "bash", str(bundle / "install.sh"), *words],
        env={**os.environ, "AIRBUNDLE_PYTHON": sys.executable, "AIRBUNDLE_ROOT": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", ">&- 2>&- <&-", "| head -1 >/dev/null"])
def test_streams_that_are_closed(bundle: Path, tmp_path: Path, redirection: str) -> None:
    if redirection.startswith("|"):
        redirection = f"{redirection}; exit ${{PIPESTATUS[0]}}"
        script = f'"$@" {redirection}'
        done = subprocess.run(
            ["bash", "-c", script, "bash", "bash", str(bundle / "install.sh"), "--fingerprint"],
            env={**os.environ, "AIRBUNDLE_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=60,
        )
    else:
        done = _with_streams(bundle, redirection, "--verify", root=tmp_path / "root")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Error" not in done.stderr
    assert "Exception" not in done.stderr


def test_nobody_to_ask(tmp_path: Path) -> None:
    bundle = release_bundle(tmp_path, "v1")
    for redirection in ("<&-", "</dev/null"):
        done = _with_streams(bundle, redirection, "--port", str(free_port()), root=tmp_path / "root")
        assert done.returncode == ExitCode.USAGE, done.stderr
        assert "standard input is no terminal" in done.stderr
        assert "add --yes" in done.stderr


def test_a_result_that_finds_no_room(bundle: Path, tmp_path: Path) -> None:
    done = _with_streams(bundle, ">/dev/full", "--fingerprint", root=tmp_path / "root")
    assert done.returncode == ExitCode.UNEXPECTED
    assert "The result could not be written to standard output: [Errno 28]" in done.stderr
    assert "Exception ignored" not in done.stderr


def test_the_media_are_untouched(bundle: Path, tmp_path: Path) -> None:
    before = snapshot(bundle)
    install_sh(bundle, "--verify", umask=0)
    install_sh(bundle, "--dry-run", "--root", str(tmp_path / "root"), umask=0)
    assert snapshot(bundle) == before
    assert list(tmp_path.iterdir()) == []
