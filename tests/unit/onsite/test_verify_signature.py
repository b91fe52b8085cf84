"""SSH signatures: RFC 8032's own vectors, and what the real ssh-keygen writes."""

import base64
import subprocess

import pytest

from airbundle_onsite.contract import layout
from airbundle_onsite.errors import ExitCode, TrustError
from airbundle_onsite.signature import ed25519_verify, verify_unpinned
from airbundle_onsite.verify.bundle import structure_checks, trust
from parts import need
from parts.bundles import make_bundle
from parts.keys import verify_signature

DATA = b'{"name": "demo"}\n'

RFC8032 = [  # section 7.1, tests 1 to 3 and the one of SHA-512("abc")
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize(("key", "message", "signature"), RFC8032)
def test_rfc_8032(key, message, signature):
    key, message, signature = (bytes.fromhex(text) for text in (key, message, signature))
    assert ed25519_verify(key, message, signature)
    assert not ed25519_verify(key, message + b"x", signature)
    for position in (0, 31, 32, 63):
        changed = bytearray(signature)
        changed[position] ^= 1
        assert not ed25519_verify(key, message, bytes(changed))


def test_a_scalar_beyond_the_order_is_refused():
    key, message, signature = (bytes.fromhex(text) for text in RFC8032[1])
    order = 2**252 + 27742317777372353535851937790883648493
    scalar = int.from_bytes(signature[32:], "little") + order
    assert not ed25519_verify(key, message, signature[:32] + scalar.to_bytes(32, "little"))


class Keys:
    """Two ed25519 keys and an RSA key, made and used by the real ssh-keygen."""

    def __init__(self, directory):
        self.directory, self.program = directory, need.program("ssh-keygen")
        for name, kind in (("alice", "ed25519"), ("mallory", "ed25519"), ("rsa", "rsa")):
            self.run("-q", "-t", kind, "-N", "", "-C", "", "-f", str(directory / name))

    def run(self, *words, data=None):
        done = subprocess.run([self.program, *words], input=data, capture_output=True, check=True, timeout=60)
        return done.stdout

    def sign(self, name, data, *, namespace="airbundle", hash_name="sha512"):
        how = ("-n", namespace, "-O", f"hashalg={hash_name}", "-f", str(self.directory / name))
        return self.run("-Y", "sign", "-q", *how, data=data)

    def public(self, name):
        return " ".join((self.directory / f"{name}.pub").read_text().split()[:2])

    def fingerprint(self, name):
        return self.run("-l", "-f", str(self.directory / f"{name}.pub")).decode().split()[1]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    need.need("ssh-keygen")
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.mark.real("ssh-keygen")
@pytest.mark.parametrize("hash_name", ["sha256", "sha512"])
def test_what_ssh_keygen_signs_verifies(keys, hash_name):
    signature = keys.sign("alice", DATA, hash_name=hash_name)
    signer = verify_signature(DATA, signature, f"# ours\n\nalice@office {keys.public('alice')} a comment\n".encode())
    assert signer == f"alice@office {keys.fingerprint('alice')}"
    assert verify_unpinned(DATA, signature) == keys.fingerprint("alice")
    # Copied as text by a Windows machine, both files keep what they say.
    assert verify_unpinned(DATA, signature.replace(b"\n", b"\r\n")) == keys.fingerprint("alice")
    for before in (b"# ours\r\n\r\n", b"\xef\xbb\xbf"):
        as_text = before + f"alice {keys.public('alice')}\r\n".encode()
        assert verify_signature(DATA, signature, as_text) == f"alice {keys.fingerprint('alice')}"


@pytest.mark.real("ssh-keygen")
def test_options_of_allowed_signers(keys):
    signature, key = keys.sign("alice", DATA), keys.public("alice")
    for options, allowed in (
        ('namespaces="airbundle"', True),
        ('namespaces="git,airbundle"', True),
        ('namespaces="git"', False),
        ("cert-authority", False),
        ('namespaces="airbundle",valid-before="20200101"', False),
    ):
        line = f"alice {options} {key}\n".encode()
        if allowed:
            assert verify_signature(DATA, signature, line).startswith("alice SHA256:")
        else:
            with pytest.raises(TrustError, match="not among"):
                verify_signature(DATA, signature, line)


@pytest.mark.real("ssh-keygen")
def test_what_must_not_verify(keys):
    allowed = f"alice {keys.public('alice')}\n".encode()
    good = keys.sign("alice", DATA)
    body = base64.b64decode(b"".join(good.splitlines()[1:-1]))
    cases = {
        "not over these bytes": (DATA + b" ", good),
        "not among this site's allowed signers": (DATA, keys.sign("mallory", DATA)),
        "namespace 'file'": (DATA, keys.sign("alice", DATA, namespace="file")),
        "'ssh-rsa' found": (DATA, keys.sign("rsa", DATA)),
        "not an SSH signature": (DATA, b"hello"),
        "cut short": (DATA, _armor(body[:-3])),
        "surplus bytes": (DATA, _armor(body + b"\0")),
        "version 2": (DATA, _armor(body[:9] + b"\2" + body[10:])),
    }
    for words, (data, signature) in cases.items():
        with pytest.raises(TrustError, match=words) as caught:
            verify_signature(data, signature, allowed)
        assert caught.value.exit_code == ExitCode.TRUST
        assert caught.value.remedy


def _armor(body):
    return b"-----BEGIN SSH SIGNATURE-----\n" + base64.b64encode(body) + b"\n-----END SSH SIGNATURE-----\n"


@pytest.mark.real("ssh-keygen")
def test_a_signed_bundle(keys, tmp_path):
    bundle = make_bundle(tmp_path / "bundle", {"config/a": b"a"})
    data = (bundle / layout.MANIFEST).read_bytes()
    (bundle / layout.SIGNATURE).write_bytes(keys.sign("alice", data))
    allowed = f"alice {keys.public('alice')}\n".encode()
    assert trust(bundle, allowed).signer == f"alice {keys.fingerprint('alice')}"
    assert trust(bundle).signer == keys.fingerprint("alice")
    statuses = {check.id: check.status for check in structure_checks(bundle)[1]}
    assert statuses["verify.signature"] == "warn"

    (bundle / layout.SIGNATURE).write_bytes(keys.sign("mallory", data))
    with pytest.raises(TrustError) as caught:
        trust(bundle, allowed)
    assert keys.fingerprint("mallory") in "\n".join(caught.value.lines())

    (bundle / layout.SIGNATURE).write_bytes(keys.sign("alice", data + b" "))
    with pytest.raises(TrustError, match="cannot be trusted"):
        trust(bundle)
