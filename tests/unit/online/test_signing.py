"""Keys and signatures, held against the real ssh-keygen and against the site's own verifier."""

import subprocess

import pytest

from airbundle.signing import keygen, sign
from airbundle_onsite.errors import TrustError, UsageError
from airbundle_onsite.signature import verify_signature, verify_unpinned
from airbundle_onsite.system import SystemRunner
from parts import need

DATA = b'{"name": "demo"}\n'


def _no_question(prompt):
    raise AssertionError(f"asked: {prompt}")


@pytest.fixture
def key(tmp_path):
    keygen(tmp_path / "key", "office", "")
    return tmp_path / "key"


def _ssh_keygen(*words, **options):
    argv = [need.program("ssh-keygen"), *map(str, words)]
    return subprocess.run(argv, capture_output=True, timeout=60, **options)


@pytest.mark.real("ssh-keygen")
@pytest.mark.parametrize("passphrase", ["", "correct horse"])
def test_ssh_keygen_accepts_key_and_signature(tmp_path, passphrase):
    pair = keygen(tmp_path / "key", "office", passphrase)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    listed = _ssh_keygen("-l", "-f", tmp_path / "key.pub")
    assert pair.fingerprint in listed.stdout.decode()
    signature = sign(DATA, tmp_path / "key", ask=lambda _: passphrase, runner=SystemRunner())
    (tmp_path / "sig").write_bytes(signature)
    (tmp_path / "allowed").write_text(pair.allowed_signers + "\n")
    words = ("-Y", "verify", "-f", tmp_path / "allowed", "-I", "office", "-n", "airbundle", "-s", tmp_path / "sig")
    done = _ssh_keygen(*words, input=DATA)
    assert done.returncode == 0, done.stderr
    assert _ssh_keygen(*words, input=DATA + b"x").returncode != 0
    assert verify_signature(DATA, signature, pair.allowed_signers.encode()) == f"office {pair.fingerprint}"


@pytest.mark.real("ssh-keygen")
def test_a_key_that_ssh_keygen_made_signs_here(tmp_path):
    _ssh_keygen("-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "theirs").check_returncode()
    signature = sign(DATA, tmp_path / "theirs", ask=_no_question, runner=SystemRunner())
    assert verify_unpinned(DATA, signature).startswith("SHA256:")


@pytest.mark.real("ssh-keygen")
def test_a_public_key_is_signed_for_by_the_agent(tmp_path, key, monkeypatch):
    agent = subprocess.run([need.program("ssh-agent"), "-s"], capture_output=True, text=True, timeout=20)
    facts = dict(item.split("=", 1) for item in agent.stdout.replace("\n", "").split(";") if "=" in item)
    monkeypatch.setenv("SSH_AUTH_SOCK", facts["SSH_AUTH_SOCK"])
    try:
        subprocess.run([need.program("ssh-add"), str(key)], capture_output=True, timeout=20, check=True)
        key.unlink()
        signature = sign(DATA, key.with_name("key.pub"), ask=_no_question, runner=SystemRunner())
    finally:
        subprocess.run(["kill", facts["SSH_AGENT_PID"]], check=True)
    assert verify_unpinned(DATA, signature).startswith("SHA256:")


@pytest.mark.real("ssh-keygen")
def test_a_public_key_that_no_agent_holds_is_named(key, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    public = key.with_name("key.pub")
    key.unlink()
    with pytest.raises(TrustError, match=r"ssh-keygen could not sign with .*key\.pub"):
        sign(DATA, public, ask=_no_question, runner=SystemRunner())


def test_signatures_are_the_same_every_time(key):
    assert sign(DATA, key, ask=_no_question, runner=SystemRunner()) == sign(
        DATA, key, ask=_no_question, runner=SystemRunner()
    )


def test_a_key_that_others_can_read_is_refused(key):
    key.chmod(0o644)
    with pytest.raises(UsageError, match="can be read by others"):
        sign(DATA, key, ask=_no_question, runner=SystemRunner())


def test_a_wrong_passphrase_is_named(tmp_path):
    keygen(tmp_path / "key", "office", "right")
    with pytest.raises(UsageError, match="the passphrase does not fit"):
        sign(DATA, tmp_path / "key", ask=lambda _: "wrong", runner=SystemRunner())


def test_no_key_is_ever_overwritten(key):
    with pytest.raises(UsageError, match="exists already"):
        keygen(key, "office", "")


@pytest.mark.parametrize("content", [b"", b"not a key", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_what_is_no_key(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises((UsageError, TrustError)):
        sign(DATA, path, ask=_no_question, runner=SystemRunner())


def test_a_missing_key_says_how_to_make_one(tmp_path):
    with pytest.raises(UsageError) as caught:
        sign(DATA, tmp_path / "none", ask=_no_question, runner=SystemRunner())
    assert "airbundle keygen" in caught.value.remedy
