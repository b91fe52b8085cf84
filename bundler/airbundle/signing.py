"""Signatures of bundle.json: ed25519 keys in the format of OpenSSH, as ``ssh-keygen -Y verify`` accepts by hand.

A private key in a file signs here, through the `cryptography` library. A key that stays in an agent or on a hardware
token is named by its public half, and ssh-keygen signs with it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import TrustError, UsageError
from airbundle_onsite.signature import NAMESPACE, fingerprint, verify_unpinned
from airbundle_onsite.system import Runner

_MAGIC = b"SSHSIG"
_HASH = b"sha512"
_KEY_TYPE = b"ssh-ed25519"


@record
class KeyPair:
    """A new key: its two files, its fingerprint, and the line for a site's allowed_signers file."""

    private: str
    public: str
    fingerprint: str
    allowed_signers: str


def keygen(path: Path, comment: str, passphrase: str) -> KeyPair:
    """Make a key pair: `path` (mode 0600, encrypted when there is a passphrase) and ``<path>.pub``.

    Raises:
        UsageError: one of the files exists.
    """
    public_path = path.with_name(f"{path.name}.pub")
    for each in (path, public_path):
        if each.exists():
            raise UsageError(f"{each} exists already", remedy="name another file; a key is never overwritten")
    key = Ed25519PrivateKey.generate()
    encryption = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, encryption))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    public_path.write_text(f"{public} {comment}\n", encoding="utf-8")
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    line = f'{comment} namespaces="{NAMESPACE}" {public}'
    return KeyPair(str(path), str(public_path), fingerprint(raw), line)


def sign(data: bytes, key: Path, *, ask: Callable[[str], str], runner: Runner) -> bytes:
    """Sign `data` for the namespace ``airbundle``; returns an armoured SSH signature.

    Args:
        data: what is signed.
        key: a private key file, or a ``.pub`` whose private half is in the agent or on a token.
        ask: asks a person for the passphrase of a file; never called for an unencrypted key.
        runner: for ssh-keygen.

    Raises:
        UsageError: the key cannot be read, or is no ed25519 key.
        TrustError: ssh-keygen could not sign.
    """
    try:
        content = key.read_bytes()
    except OSError as error:
        raise UsageError(f"signing key {key}: {error.strerror}", remedy="make one with `airbundle keygen`") from error
    signature = _by_agent(data, key, runner) if b"PRIVATE KEY" not in content else _by_file(data, key, content, ask)
    verify_unpinned(data, signature)
    return signature


def _by_file(data: bytes, key: Path, content: bytes, ask: Callable[[str], str]) -> bytes:
    if key.stat().st_mode & 0o077:
        raise UsageError(f"signing key {key} can be read by others", remedy=f"chmod 600 {key}, or make a new key")
    private = _load(key, content, ask)
    if not isinstance(private, Ed25519PrivateKey):
        raise UsageError(f"signing key {key} is no ed25519 key", remedy="make one with `airbundle keygen`")
    raw = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    tail = _string(NAMESPACE.encode()) + _string(b"") + _string(_HASH)
    made = private.sign(_MAGIC + tail + _string(hashlib.sha512(data).digest()))
    blob = _MAGIC + struct.pack(">I", 1) + _string(_string(_KEY_TYPE) + _string(raw)) + tail
    blob += _string(_string(_KEY_TYPE) + _string(made))
    lines = textwrap.wrap(base64.b64encode(blob).decode(), 70)
    return "\n".join(["-----BEGIN SSH SIGNATURE-----", *lines, "-----END SSH SIGNATURE-----", ""]).encode()


def _load(key: Path, content: bytes, ask: Callable[[str], str]) -> object:
    try:
        return load_ssh_private_key(content, None)
    except TypeError:  # how the library says that a passphrase is needed
        passphrase = ask(f"Passphrase of {key}")
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"signing key {key} cannot be read: {error}") from error
    try:
        return load_ssh_private_key(content, passphrase.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"signing key {key}: the passphrase does not fit") from error


def _by_agent(data: bytes, key: Path, runner: Runner) -> bytes:
    with tempfile.TemporaryDirectory(prefix="airbundle-sign-") as directory:
        path = Path(directory) / "bundle.json"
        path.write_bytes(data)
        done = runner.run(["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", str(key), str(path)], timeout=120)
        if done.code:
            raise TrustError(
                f"ssh-keygen could not sign with {key}: {(done.stderr or done.stdout).strip()}",
                remedy="ssh-add -L lists what the agent holds; a private key file can be named instead",
            )
        return path.with_name("bundle.json.sig").read_bytes()


def _string(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value
