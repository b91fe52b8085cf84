"""The site's words, its exit codes, and what goes to which stream."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from airbundle_onsite.arguments import parse
from airbundle_onsite.cli import main
from airbundle_onsite.commands import COMMANDS
from airbundle_onsite.console import Console
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.deploy.redact import redact
from airbundle_onsite.deploy.world import real_world
from airbundle_onsite.errors import ExitCode, UsageError
from parts.bundles import flip, make_bundle
from parts.process import free_port


def _main(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = main([str(word) for word in words], stdout=out, stderr=err, stdin=io.StringIO())
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    plan = LaunchPlan(id="cpu", engine="none", engine_version="1", runtime="venv", argv=("{python}",), model="demo")
    return make_bundle(
        tmp_path / "with space 和" / "demo-1",
        {"models/demo/model.gguf": b"GGUF" + bytes(5000)},
        edit=lambda manifest: replace(manifest, launch=(plan,)),
    )


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_action_is_an_option_and_a_word(name: str) -> None:
    value = ["X"] if COMMANDS[name].value else []
    for first in (f"--{name}", name):
        options = parse(["--root", "/r", first, *value, "--json"])
        assert (options.command, options.value, options.json) == (name, value[0] if value else None, True)


def test_an_optional_word_may_be_left_out() -> None:
    assert parse(["rollback"]).value is None
    assert parse(["rollback", "v1"]).value == "v1"
    assert parse(["--rollback=v1"]).value == "v1"


def test_a_bundle_without_an_action_is_installed() -> None:
    options = parse(["--bundle", "/media/demo"])
    assert (options.command, options.bundle) == ("install", Path("/media/demo"))


def test_the_root_comes_from_the_option_then_the_environment() -> None:
    assert parse(["status"], "/env").root == Path("/env")
    assert parse(["status", "--root", "/opt/x"], "/env").root == Path("/opt/x")
    assert parse(["status"]).root == Path("/opt/airbundle")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["stauts"], "did you mean 'status'"),
        (["--rolback"], "did you mean '--rollback'"),
        (["--status", "--list"], "one action at a time"),
        (["status", "extra"], "extra"),
        (["activate"], "activate"),
        (["--port", "http", "status"], "http"),
        ([], "no action"),
    ],
)
def test_a_wrong_word_is_named(words: list[str], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(words)
    assert named in "\n".join(caught.value.lines())
    code, out, err = _main(*words)
    assert (code, out) == (2, "")
    assert named in err


def test_help_names_the_program_that_was_started_and_every_exit_code() -> None:
    for words, program in ((("--help",), "airbundlectl"), (("--bundle", "/b", "--help"), "bash install.sh")):
        out = _main(*words)[1]
        assert out.startswith(f"usage: {program} ")
        assert all(f"{code.value} " in out.partition("exit codes:")[2] for code in ExitCode)


def test_help_and_version_are_results() -> None:
    code, out, err = _main("--help")
    assert (code, err) == (0, "")
    assert all(f"--{name}" in out for name in COMMANDS)
    assert "exit codes" in out
    assert _main("--version")[0] == 0


def test_nothing_installed(tmp_path: Path) -> None:
    code, out, err = _main("--root", tmp_path / "root", "status")
    assert (code, err) == (8, "")
    assert "nothing is installed" in out
    code, out, _ = _main("--root", tmp_path / "root", "list", "--json")
    assert (code, json.loads(out)) == (0, [])
    code, out, err = _main("--root", tmp_path / "root", "rollback", "--yes")
    assert (code, out) == (2, "")
    assert "nothing is installed" in err
    assert not (tmp_path / "root").exists()


def test_verify_says_so_and_changes_nothing(bundle: Path, tmp_path: Path) -> None:
    code, out, _ = _main("--root", tmp_path / "root", "--bundle", bundle, "--verify")
    assert code == 0, out
    assert "pieces are whole" in out and "machine architecture" in out
    code, out, _ = _main("--root", tmp_path / "root", "--bundle", bundle, "--verify", "--strict", "--json")
    assert (code, json.loads(out)["exit_code"]) == (4, 4)  # it is not signed
    assert not (tmp_path / "root").exists()


def test_a_flipped_byte_is_integrity(bundle: Path, tmp_path: Path) -> None:
    flip(bundle / "payload.tar.000", 1500)
    code, out, _ = _main("--root", tmp_path / "root", "--bundle", bundle, "--verify", "--json")
    assert code == 5
    failed = [check for check in json.loads(out)["checks"] if check["status"] == "fail"]
    assert len(failed) == 1
    assert "payload.tar.000" in failed[0]["summary"]


def test_a_missing_signature_is_trust_when_signers_are_named(bundle: Path, tmp_path: Path) -> None:
    signers = tmp_path / "signers"
    signers.write_text("alice ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGsL5tJ0nEKkYz9a8Lw3p9yqVqDq0tQv2y0JwqkJ8n2K\n")
    for words in (["--verify"], ["--yes"]):
        code, _, _ = _main("--root", tmp_path / "root", "--bundle", bundle, "--allowed-signers", signers, *words)
        assert code == 6


def test_no_terminal_and_no_yes_changes_nothing(bundle: Path, tmp_path: Path) -> None:
    code, out, err = _main("--root", tmp_path / "root", "--bundle", bundle, "--port", free_port())
    assert (code, out) == (2, "")
    assert "--yes" in err
    assert not (tmp_path / "root" / "releases").exists()


def test_an_error_as_json_is_one_document(tmp_path: Path) -> None:
    code, out, _ = _main("--root", tmp_path / "root", "--bundle", tmp_path / "none", "--json", "--yes")
    document = json.loads(out)
    assert code == document["exit_code"] == 5
    assert document["remedy"]


def test_a_bug_ends_in_a_sentence(tmp_path: Path) -> None:
    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError("division by zero")

    out, err = io.StringIO(), io.StringIO()
    world = replace(real_world(dict(os.environ)), take_fingerprint=broken)
    code = main(["--root", str(tmp_path), "fingerprint"], world=world, stdout=out, stderr=err)
    assert (code, out.getvalue()) == (1, "")
    assert "unexpected ZeroDivisionError" in err.getvalue()


def test_a_fingerprint_goes_to_a_file_or_to_stdout(tmp_path: Path) -> None:
    code, out, _ = _main("--root", tmp_path, "fingerprint")
    assert code == 0
    assert json.loads(out)["os"]["machine"] == os.uname().machine
    code, out, _ = _main("--root", tmp_path, "fingerprint", tmp_path / "host.json")
    assert code == 0
    assert json.loads((tmp_path / "host.json").read_text())["fingerprint_version"] == 1


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_sparse_elsewhere() -> None:
    now = [0.0]
    for stream, least, most in ((_Terminal(), 20, 200), (io.StringIO(), 1, 9)):
        console = Console(io.StringIO(), stream, io.StringIO(), monotonic=lambda: now[0])
        for step in range(1001):
            now[0] += 0.1
            console.progress("copying", step * 1_000_000, 1_000_000_000)
        text = stream.getvalue()
        assert least <= text.count("copying") <= most * 10
        assert "100 %  1.0 GB of 1.0 GB" in text and "MB/s" in text and "left" in text
    assert text.count("copying") <= 9


def test_a_terminal_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(5, "Input/output error")

    console = Console(Gone(), Gone(), io.StringIO())
    console.keep_log(tmp_path / "logs", "install")
    console.say("still here")
    console.result("done")
    console.close()
    (log,) = (tmp_path / "logs").iterdir()
    assert "still here" in log.read_text() and "done" in log.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=SECRET-VALUE",
        '"api_key": "SECRET-VALUE"',
        "--api-key SECRET-VALUE",
        "--password=SECRET-VALUE",
        "Authorization: Bearer SECRET-VALUE",
        "non-default args: {'api_key': ['SECRET-VALUE', 'SECRET-VALUE-2'], 'port': 8000}",
        "ServerArgs(api_key='SECRET-VALUE', admin_api_key='SECRET-VALUE')",
        "command: ['vllm', 'serve', '--api-key', 'SECRET-VALUE']",
        "http://user:SECRET-VALUE@proxy:3128/",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nSECRET-VALUE\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_secrets_are_taken_out(text: str) -> None:
    assert "SECRET-VALUE" not in redact(f"before {text} after")


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 4096",
        "a token was generated",
        "sha256:0123abcd",
        "--root /opt/x",
        '"argv": ["--max-num-batched-tokens", "2048"]',
        '{"flag": "--max-num-batched-tokens", "goal": "time to first token"}',
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


def test_a_signers_file_without_a_signer_is_refused(bundle: Path, tmp_path: Path) -> None:
    signers = tmp_path / "team.pub"
    signers.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIN6WxlYNDMz3vd4FkrMZYj1HN26LCuO9OWNgI5xPvfFE\n")
    code, _, err = _main("--root", tmp_path / "r", "--bundle", bundle, "--verify", "--allowed-signers", signers)
    assert code == 2
    assert f"{signers}: no line of it names a key" in err and "a .pub file has no NAME" in err


def test_a_directory_around_the_bundle_is_told_from_a_damaged_one(bundle: Path, tmp_path: Path) -> None:
    code, out, _ = _main("--root", tmp_path / "r", "--bundle", bundle.parent, "--verify")
    assert code == 5
    assert "it holds no bundle" in out and "copy it again" not in out and "the parts were not read" in out


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "s.tgz"
    code, _, err = _main("--root", tmp_path / "r", "--support-bundle", target)
    assert code == 1
    assert str(target.parent) in err and "What to do: " in err and "Errno" not in err


def test_a_host_is_looked_at_before_the_parts_have_arrived(bundle: Path, tmp_path: Path) -> None:
    whole = _main("--root", tmp_path / "r", "--bundle", bundle, "--preflight", "--port", free_port())
    (bundle / "payload.tar.000").unlink()
    code, out, _ = _main("--root", tmp_path / "r", "--bundle", bundle, "--preflight", "--port", free_port())
    assert (code, "preflight.parts" in out) == (whole[0], False)
    assert "[WARN] payload.tar.000: it is missing" in out and "--receive" in out
    flip(bundle / "onsite.pyz", 100)
    assert _main("--root", tmp_path / "r", "--bundle", bundle, "--preflight")[0] == 5
