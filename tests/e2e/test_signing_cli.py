"""Keys and signatures as a person makes them at the office, and a site that takes what they signed."""

import os
import pty
import select
import subprocess
import sys

import pytest

from parts import journeys, models, need
from parts.journeys import airbundle
from parts.sites import site
from parts.specs import write_spec


@pytest.fixture
def spec(tmp_path, wheel_index):
    return write_spec(tmp_path / "v1.toml", wheel_index, models.smollm2_gguf())


def _key(path, *words):
    return airbundle("keygen", path, "--no-passphrase", "--json", *words).check().json


@pytest.mark.real("ssh-keygen")
def test_from_keygen_to_a_site(spec, tmp_path):
    alice, bob = (_key(tmp_path / name, "--comment", name) for name in ("alice", "bob"))
    dist, bundle = tmp_path / "dist", tmp_path / "dist/tiny-v1"
    built = airbundle("build", spec, "-o", dist, "--sign-key", alice["private"], "--json").check().json
    assert built["signed_by"] == [alice["fingerprint"]]
    assert f"signed by {alice['fingerprint']}" in airbundle("inspect", bundle).check().out
    assert airbundle("inspect", bundle, "--json").check().json["x-signed-by"] == [alice["fingerprint"]]
    assert alice["fingerprint"] in (bundle / "contents.html").read_text()

    allowed = tmp_path / "allowed"
    allowed.write_text(alice["allowed_signers"] + "\n")
    by_hand = [need.program("ssh-keygen"), "-Y", "verify", "-f", allowed, "-I", "alice", "-n", "airbundle"]
    with (bundle / "bundle.json").open("rb") as data:
        subprocess.run([*by_hand, "-s", bundle / "bundle.json.sig"], stdin=data, check=True, timeout=60)

    airbundle("verify", bundle, "--allowed-signers", allowed, "--strict").check()
    assert airbundle("resign", bundle, "--sign-key", bob["private"], "--json").check().json["signed_by"] == [
        alice["fingerprint"],
        bob["fingerprint"],
    ]
    airbundle("resign", bundle, "--sign-key", bob["private"], "--replace").check()
    said = airbundle("verify", bundle, "--allowed-signers", allowed).check(6)
    assert alice["fingerprint"] in said.out and bob["fingerprint"] in said.out
    with site(tmp_path / "root") as here:
        staged = here.run("--stage", "--bundle", bundle, "--yes")
        assert staged.code == 6 and bob["fingerprint"] in staged.err, staged


def test_the_key_comes_from_the_environment_too_and_is_tried_before_the_work(spec, tmp_path):
    alice, bob = (_key(tmp_path / name) for name in ("alice", "bob"))
    variable = {**os.environ, "AIRBUNDLE_SIGN_KEY": os.pathsep.join([alice["private"], bob["private"]])}
    command = [sys.executable, "-m", "airbundle", "build", str(spec), "-o", str(tmp_path / "dist"), "--json"]
    built = journeys.run(command, env=variable).check().json
    assert built["signed_by"] == [alice["fingerprint"], bob["fingerprint"]]
    missing = airbundle("build", spec, "-o", tmp_path / "other", "--sign-key", tmp_path / "none").check(2)
    assert "airbundle keygen" in missing.err and not (tmp_path / "other").exists()


def test_an_unsigned_build_says_so(spec, tmp_path):
    assert "Not signed" in airbundle("build", spec, "-o", tmp_path / "dist").check().out
    assert "no key to sign with" in airbundle("resign", tmp_path / "dist/tiny-v1").check(2).err


def test_a_passphrase_needs_a_terminal(tmp_path):
    assert "--no-passphrase" in airbundle("keygen", tmp_path / "key").check(2).err
    assert not (tmp_path / "key").exists()


def test_a_passphrase_is_asked_for_twice_at_a_terminal(tmp_path):
    code, said = _typed(
        ["keygen", str(tmp_path / "key")], {"new key:": "correct horse", "confirmation:": "correct horse"}
    )
    assert code == 0 and "SHA256:" in said and "correct horse" not in said, said
    assert b"OPENSSH PRIVATE KEY" in (tmp_path / "key").read_bytes()
    refused = airbundle("build", "none.toml", "--sign-key", tmp_path / "key").check(2)
    assert "no terminal" in refused.err and "ssh-add" in refused.err


def _typed(words, answers):
    """Run the command at a terminal of its own, and type the answer to each question when it has been asked."""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-m", "airbundle", *words])
    said, waiting = "", dict(answers)
    try:
        while select.select([terminal], [], [], 60)[0]:
            try:
                said += os.read(terminal, 4096).decode()
            except OSError:  # the other side has closed it
                break
            for question in [each for each in waiting if each in said]:
                os.write(terminal, waiting.pop(question).encode() + b"\n")
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), said
