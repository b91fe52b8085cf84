"""Signatures of bundle.json: ed25519 keys in the format of OpenSSH, as ``ssh-keygen -Y verify`` accepts by hand.

A private key in a file signs here, through the `cryptography` library. A key that stays in an agent or on a hardware
token is named by its public half, and ssh-keygen signs with it.

Several signatures stand one after the other in bundle.json.sig; ssh-keygen reads the first.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import struct
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import IntegrityError, TrustError, UsageError
from airbundle_onsite.signature import (
    MOST_SIGNATURES,
    NAMESPACE,
    armored,
    fingerprint,
    parse_signature,
    verify_unpinned,
)
from airbundle_onsite.system import Runner, Talk
from airbundle_onsite.verify.bundle import trust
from airbundle_onsite.verify.parts import check_parts

if TYPE_CHECKING:  # `cryptography` is loaded where a key is used: most commands use none
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MAGIC = b"SSHSIG"
_HASH = b"sha512"
_KEY_TYPE = b"ssh-ed25519"
_COMMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")
_PROBE = b"airbundle: whether this key can sign\n"
# A name that every verification ignores, should the machine stop between writing and renaming.
_PARTIAL = f"._{layout.SIGNATURE}"


@record
class KeyPair:
    """A new key: its two files, its fingerprint, and the line for a site's allowed_signers file."""

    private: str
    public: str
    fingerprint: str
    allowed_signers: str


@record
class SigningKey:
    """A key that has shown that it can sign.

    Attributes:
        fingerprint: of its public half.
        sign: makes an armoured SSH signature for the namespace ``airbundle``; the result has been verified.
    """

    fingerprint: str
    sign: Callable[[bytes], bytes]


def default_path(environ: Mapping[str, str]) -> Path:
    """Where a person's key is unless said otherwise: ``~/.config/airbundle/key``."""
    base = environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "airbundle" / "key"


def keygen(path: Path, comment: str, passphrase: str) -> KeyPair:
    """Make a key pair: `path` (mode 0600, encrypted when there is a passphrase) and ``<path>.pub``.

    Args:
        path: of the private half.
        comment: whose key it is: the name that stands first in the line for allowed_signers.
        passphrase: empty for none.

    Raises:
        UsageError: one of the files exists, or the comment could not stand in a line of allowed_signers.
    """
    if not _COMMENT.fullmatch(comment):
        raise UsageError(
            f"a key cannot be called {comment!r}", remedy="take letters, digits and . _ @ + -, as in office@example.com"
        )
    public_path = path.with_name(f"{path.name}.pub")
    for each in (path, public_path):
        if each.exists():
            raise UsageError(f"{each} exists already", remedy="name another file; a key is never overwritten")
    from cryptography.hazmat.primitives import serialization as ssh
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    encryption = ssh.BestAvailableEncryption(passphrase.encode()) if passphrase else ssh.NoEncryption()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(key.private_bytes(ssh.Encoding.PEM, ssh.PrivateFormat.OpenSSH, encryption))
    public = key.public_key().public_bytes(ssh.Encoding.OpenSSH, ssh.PublicFormat.OpenSSH).decode()
    public_path.write_text(f"{public} {comment}\n", encoding="utf-8")
    raw = key.public_key().public_bytes_raw()
    line = f'{comment} namespaces="{NAMESPACE}" {public}'
    return KeyPair(str(path), str(public_path), fingerprint(raw), line)


def sign(data: bytes, key: Path, *, ask: Callable[[str], str], runner: Runner) -> bytes:
    """Sign `data` once; see `open_key`."""
    return open_key(key, ask=ask, runner=runner).sign(data)


def open_key(key: Path, *, ask: Callable[[str], str], runner: Runner) -> SigningKey:
    """Make a key ready to sign, before hours of work that would end without a signature.

    A key in an agent or on a token signs a line of text for that; a token may want to be touched.

    Args:
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
    if b"PRIVATE KEY" in content:
        private = _private_key(key, content, ask)
        raw = private.public_key().public_bytes_raw()
        return SigningKey(fingerprint(raw), lambda data: _checked(data, _by_file(data, private, raw)))
    shown = parse_signature(_checked(_PROBE, _by_agent(_PROBE, key, runner))).fingerprint
    return SigningKey(shown, lambda data: _checked(data, _by_agent(data, key, runner)))


def sign_all(data: bytes, keys: Sequence[SigningKey]) -> bytes:
    """Content of ``bundle.json.sig``: one signature of each key, in this order, each key once."""
    return b"".join(key.sign(data) for key in {key.fingerprint: key for key in keys}.values())


def resign(bundle: Path, keys: Sequence[SigningKey], *, replace: bool, talk: Talk) -> tuple[str, ...]:
    """Sign a finished bundle, in one step, after every byte of it was verified.

    Args:
        bundle: its directory, which must be writable.
        keys: sign it; a signature that one of them made before is made anew.
        replace: drop the signatures of other keys.
        talk: told about progress.

    Returns:
        Fingerprints of all keys whose signatures it has now.

    Raises:
        IntegrityError, TrustError: the bundle is not whole, or a signature that it has is not good.
        UsageError: too many signatures.
    """
    trusted = trust(bundle)
    bad = [check for check in check_parts(trusted, talk) if check.status == "fail"]
    if bad:
        details = [line for check in bad for line in (check.summary, *check.evidence)]
        raise IntegrityError(
            f"{bundle} is not whole, and was not signed",
            details=details,
            remedy="; ".join(check.remedy for check in bad),
        )
    data = (bundle / layout.MANIFEST).read_bytes()
    if hashlib.sha256(data).hexdigest() != trusted.sha256:
        raise IntegrityError(f"{bundle / layout.MANIFEST} changed while it was being signed")
    own = {key.fingerprint for key in keys}
    kept = {} if replace or not trusted.signature else {_signer(each): each for each in armored(trusted.signature)}
    kept = {name: each for name, each in kept.items() if name and name not in own}
    if len(kept) + len(own) > MOST_SIGNATURES:
        raise UsageError(
            f"{bundle} would have {len(kept) + len(own)} signatures, and a site reads {MOST_SIGNATURES}",
            remedy="drop those of other keys with --replace",
        )
    _write_atomic(bundle / layout.SIGNATURE, b"".join(kept.values()) + sign_all(data, keys))
    return tuple(each.fingerprint for each in trust(bundle).signers)


def _signer(block: bytes) -> str:
    """Fingerprint of the key of a signature; empty for one that this program cannot read."""
    try:
        return parse_signature(block).fingerprint
    except TrustError:
        return ""


def _write_atomic(path: Path, content: bytes) -> None:
    partial = path.with_name(_PARTIAL)
    with partial.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    partial.chmod(0o644)
    partial.replace(path)


def _checked(data: bytes, signature: bytes) -> bytes:
    verify_unpinned(data, signature)
    return signature


def _private_key(key: Path, content: bytes, ask: Callable[[str], str]) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if key.stat().st_mode & 0o077:
        raise UsageError(f"signing key {key} can be read by others", remedy=f"chmod 600 {key}, or make a new key")
    private = _load(key, content, ask)
    if not isinstance(private, Ed25519PrivateKey):
        raise UsageError(f"signing key {key} is no ed25519 key", remedy="make one with `airbundle keygen`")
    return private


def _by_file(data: bytes, private: Ed25519PrivateKey, raw: bytes) -> bytes:
    tail = _string(NAMESPACE.encode()) + _string(b"") + _string(_HASH)
    made = private.sign(_MAGIC + tail + _string(hashlib.sha512(data).digest()))
    blob = _MAGIC + struct.pack(">I", 1) + _string(_string(_KEY_TYPE) + _string(raw)) + tail
    blob += _string(_string(_KEY_TYPE) + _string(made))
    lines = textwrap.wrap(base64.b64encode(blob).decode(), 70)
    return "\n".join(["-----BEGIN SSH SIGNATURE-----", *lines, "-----END SSH SIGNATURE-----", ""]).encode()


def _load(key: Path, content: bytes, ask: Callable[[str], str]) -> object:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

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
