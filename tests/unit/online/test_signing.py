"""Keys and signatures, held against the real ssh-keygen and against the site's own verifier."""

import base64
import hashlib
import struct
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from airbundle.signing import default_path, keygen, resign, sign, sign_all
from airbundle_onsite.contract import layout
from airbundle_onsite.errors import IntegrityError, TrustError, UsageError
from airbundle_onsite.signature import armored, examine, verify_unpinned
from airbundle_onsite.system import Silent, SystemRunner
from airbundle_onsite.verify.bundle import structure_checks, trust
from parts import keys, need
from parts.bundles import flip, make_bundle, snapshot
from parts.keys import verify_signature

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


@pytest.mark.parametrize("comment", ["", "two words", "a,b", 'a"', "#a", "*", "a\nb"])
def test_a_name_that_would_break_allowed_signers(tmp_path, comment):
    with pytest.raises(UsageError, match="cannot be called"):
        keygen(tmp_path / "key", comment, "")
    assert not list(tmp_path.iterdir())


def test_where_a_key_is_by_default(tmp_path):
    assert default_path({"XDG_CONFIG_HOME": str(tmp_path)}) == tmp_path / "airbundle/key"
    assert default_path({"XDG_CONFIG_HOME": "relative"}).parts[-3:] == (".config", "airbundle", "key")
    keygen(tmp_path / "airbundle/key", "office", "")
    assert (tmp_path / "airbundle").stat().st_mode & 0o077 == 0


# --- several signatures -------------------------------------------------------------------------------------
@pytest.fixture
def trio(tmp_path):
    return [keys.make_key(tmp_path, name) for name in ("alice", "bob", "carol")]


def _verify_by_hand(folder, signature, key):
    (folder / "sig").write_bytes(signature)
    (folder / "allowed").write_text(key.line)
    words = ("-Y", "verify", "-f", folder / "allowed", "-I", key.pair.allowed_signers.split()[0], "-n", "airbundle")
    return _ssh_keygen(*words, "-s", folder / "sig", input=DATA)


@pytest.mark.real("ssh-keygen")
def test_ssh_keygen_reads_the_first_of_several_signatures(tmp_path, trio):
    both = sign_all(DATA, [key.signing for key in trio[:2]])
    assert _verify_by_hand(tmp_path, both, trio[0]).returncode == 0
    assert _verify_by_hand(tmp_path, both, trio[1]).returncode != 0
    second = subprocess.run(["awk", "/BEGIN SSH/ { n++ } n == 2"], input=both, capture_output=True, check=True).stdout
    assert second == armored(both)[1]
    assert _verify_by_hand(tmp_path, second, trio[1]).returncode == 0


def test_any_allowed_signature_will_do_and_all_are_reported(trio):
    alice, bob, carol = trio
    signature = sign_all(DATA, [alice.signing, bob.signing])
    assert verify_signature(DATA, signature, bob.line.encode()) == f"bob {bob.fingerprint}"
    both = verify_signature(DATA, signature, (bob.line + alice.line).encode())
    assert both == f"alice {alice.fingerprint}, bob {bob.fingerprint}"
    with pytest.raises(TrustError) as caught:
        verify_signature(DATA, signature, carol.line.encode())
    assert all(key.fingerprint in caught.value.summary for key in trio)
    found = examine(DATA, signature, None, [bob.fingerprint])
    assert [each.fingerprint for each in found.accepted] == [bob.fingerprint]
    assert [each.fingerprint for each in found.others] == [alice.fingerprint]


def test_one_good_signature_makes_up_for_a_bad_one_that_is_reported(trio):
    alice, bob, _ = trio
    signature = bob.signing.sign(DATA + b"x") + alice.signing.sign(DATA)
    found = examine(DATA, signature, (alice.line + bob.line).encode())
    assert [each.principal for each in found.accepted] == ["alice"]
    assert bob.fingerprint in found.refused[0] and "not over these bytes" in found.refused[0]
    with pytest.raises(TrustError) as caught:
        verify_signature(DATA, signature, bob.line.encode())
    assert "not over these bytes" in caught.value.details[0]


def test_a_key_named_twice_signs_once(trio):
    alice, bob, _ = trio
    assert len(armored(sign_all(DATA, [alice.signing, bob.signing, alice.signing]))) == 2


# --- hardware tokens ----------------------------------------------------------------------------------------
def _wire(value):
    return struct.pack(">I", len(value)) + value


def _token_signature(private, flags):
    """What a hardware token and ssh-keygen make together, after OpenSSH's PROTOCOL.u2f; also its public line."""
    kind = b"sk-ssh-ed25519@openssh.com"
    key = _wire(kind) + _wire(private.public_key().public_bytes_raw()) + _wire(b"ssh:")
    tail = _wire(b"airbundle") + _wire(b"") + _wire(b"sha512")
    message = b"SSHSIG" + tail + _wire(hashlib.sha512(DATA).digest())
    state = bytes([flags]) + struct.pack(">I", 7)
    value = private.sign(hashlib.sha256(b"ssh:").digest() + state + hashlib.sha256(message).digest())
    blob = b"SSHSIG" + struct.pack(">I", 1) + _wire(key) + tail + _wire(_wire(kind) + _wire(value) + state)
    armor = b"-----BEGIN SSH SIGNATURE-----\n" + base64.encodebytes(blob) + b"-----END SSH SIGNATURE-----\n"
    return armor, f"token {kind.decode()} {base64.b64encode(key).decode()}\n".encode()


@pytest.mark.real("ssh-keygen")
def test_signatures_of_hardware_tokens(tmp_path):
    private = Ed25519PrivateKey.generate()
    signature, line = _token_signature(private, 0x01)
    assert verify_signature(DATA, signature, line).startswith("token SHA256:")
    (tmp_path / "sig").write_bytes(signature)
    (tmp_path / "allowed").write_bytes(line)
    words = ("-Y", "verify", "-f", tmp_path / "allowed", "-I", "token", "-n", "airbundle", "-s", tmp_path / "sig")
    done = _ssh_keygen(*words, input=DATA)
    assert done.returncode == 0, done.stderr
    assert verify_signature(DATA, signature, line).split()[1] in done.stdout.decode()
    with pytest.raises(TrustError, match="not over these bytes"):
        verify_signature(DATA + b"x", signature, line)
    with pytest.raises(TrustError, match="without being touched"):
        verify_signature(DATA, _token_signature(private, 0)[0], line)


# --- a bundle that exists -----------------------------------------------------------------------------------
@pytest.fixture
def bundle(tmp_path):
    return make_bundle(tmp_path / "demo-1", {"config/a": b"a" * 3000})


def _signers(bundle):
    return [each.fingerprint for each in trust(bundle).signers]


def test_resign_adds_replaces_and_changes_nothing_else(bundle, trio):
    alice, bob, carol = trio
    before = snapshot(bundle)
    assert resign(bundle, [alice.signing], replace=False, talk=Silent()) == (alice.fingerprint,)
    assert resign(bundle, [bob.signing], replace=False, talk=Silent()) == (alice.fingerprint, bob.fingerprint)
    first = (bundle / layout.SIGNATURE).read_bytes()
    resign(bundle, [bob.signing], replace=False, talk=Silent())
    assert (bundle / layout.SIGNATURE).read_bytes() == first, "signing again changes nothing"
    assert resign(bundle, [carol.signing], replace=True, talk=Silent()) == (carol.fingerprint,)
    after = snapshot(bundle)
    assert after.pop(layout.SIGNATURE)[0] == "0o100644"
    assert after == before
    assert verify_unpinned((bundle / layout.MANIFEST).read_bytes(), (bundle / layout.SIGNATURE).read_bytes())


def test_resign_signs_nothing_that_is_not_whole(bundle, trio):
    alice, bob, _ = trio
    keys.sign(bundle, alice)
    flip(bundle / "payload.tar.000", 600)
    before = snapshot(bundle)
    with pytest.raises(IntegrityError, match="was not signed") as caught:
        resign(bundle, [bob.signing], replace=False, talk=Silent())
    assert "payload.tar.000, piece 1 of 1" in "\n".join(caught.value.details)
    assert snapshot(bundle) == before


def test_resign_does_not_cover_up_a_bad_signature(bundle, trio):
    alice, bob, _ = trio
    (bundle / layout.SIGNATURE).write_bytes(alice.signing.sign(b"other bytes"))
    for replace in (False, True):
        with pytest.raises(TrustError):
            resign(bundle, [bob.signing], replace=replace, talk=Silent())


def test_what_an_interrupted_resign_leaves_is_ignored(bundle, trio):
    keys.sign(bundle, trio[0])
    (bundle / f"._{layout.SIGNATURE}").write_bytes(b"half a sig")
    assert all(check.status != "fail" for check in structure_checks(bundle)[1])
    resign(bundle, [trio[1].signing], replace=False, talk=Silent())
    assert not (bundle / f"._{layout.SIGNATURE}").exists()


def test_no_more_signatures_than_a_site_reads(bundle, tmp_path, trio):
    many = [keys.make_key(tmp_path, f"k{number}").signing for number in range(16)]
    resign(bundle, many, replace=False, talk=Silent())
    assert len(_signers(bundle)) == 16
    with pytest.raises(UsageError, match="17 signatures"):
        resign(bundle, [trio[0].signing], replace=False, talk=Silent())
