"""Checks SSH signatures (``ssh-keygen -Y sign``) with ed25519 keys, in pure Python.

A site need not have ssh-keygen. Formats: OpenSSH's PROTOCOL.sshsig for the signature, PROTOCOL.u2f for keys on hardware
tokens, ssh-keygen(1) for allowed signers.

A signature file may hold several signatures in armour, one after the other. ssh-keygen reads the first of them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Sequence
from typing import Optional, Union

from airbundle_onsite.contract.record import record
from airbundle_onsite.ed25519 import ed25519_verify
from airbundle_onsite.errors import TrustError

NAMESPACE = "airbundle"
MOST_SIGNATURES = 16
"""In one file: each takes some milliseconds to check."""

_KEY_TYPE = b"ssh-ed25519"
_TOKEN_TYPE = b"sk-ssh-ed25519@openssh.com"
_TOUCHED = 0x01  # the flag of a hardware token that a person touched it
_ARMOR = re.compile(rb"-----BEGIN SSH SIGNATURE-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END SSH SIGNATURE-----[ \t\r\n]*")
_HASHES = {b"sha256": hashlib.sha256, b"sha512": hashlib.sha512}
_OPTIONS = re.compile(r'(?:[^\s"]|"[^"]*")+')
_BASE64_KEY = re.compile(r"AAAA[A-Za-z0-9+/]+={0,2}")
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


@record
class Signature:
    """A parsed SSH signature: the key it claims to be by, and what it was made over.

    Attributes:
        key: the public key as SSH writes it.
        public_key: the 32 bytes of ed25519 in it.
        value: the 64 bytes of the signature.
        token: what a hardware token put before the message it signed; empty for other keys.
    """

    key: bytes
    public_key: bytes
    namespace: str
    reserved: bytes
    hash_name: bytes
    value: bytes
    token: Optional[bytes] = None

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint as ssh-keygen prints it: ``SHA256:…``."""
        return _fingerprint(self.key)

    @property
    def public_line(self) -> str:
        """The key as a line of a ``.pub`` file, without a comment."""
        return f"{_Reader(self.key).string().decode('ascii')} {base64.b64encode(self.key).decode('ascii')}"


@record
class Signer:
    """Somebody an allowed-signers file names, or a key alone, whose `principal` is empty then."""

    principal: str
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.principal} {self.fingerprint}".lstrip()


@record
class Findings:
    """What the signatures of one file come to.

    Attributes:
        accepted: valid signatures by keys that are allowed.
        others: valid signatures by keys that nobody allowed.
        refused: why the rest counts for nothing, one sentence each.
        valid: the signatures of `accepted` and `others` themselves, in the file's order.
    """

    accepted: tuple[Signer, ...] = ()
    others: tuple[Signer, ...] = ()
    refused: tuple[str, ...] = ()
    valid: tuple[Signature, ...] = ()


def fingerprint(public_key: bytes) -> str:
    """``SHA256:…`` of an ed25519 public key of 32 bytes."""
    return _fingerprint(_string(_KEY_TYPE) + _string(public_key))


def is_fingerprint(text: str) -> bool:
    """Whether `text` has the form of a key's fingerprint, as ssh-keygen prints it."""
    return bool(_FINGERPRINT.fullmatch(text))


def _fingerprint(key: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def examine(data: bytes, signature: bytes, allowed_signers: Optional[bytes], named: Sequence[str] = ()) -> Findings:
    """Check every signature of a file. Whether what was found suffices is for the caller to say.

    Args:
        data: what was signed.
        signature: content of the ``.sig`` file.
        allowed_signers: content of an allowed-signers file, as for ``ssh-keygen -Y verify``; None for no file.
        named: fingerprints of keys that are allowed too.

    Raises:
        TrustError: it is no file of signatures.
    """
    accepted, others, refused, valid = [], [], [], []
    signers = _allowed(allowed_signers or b"")
    for parsed in parse_signatures(signature):
        if isinstance(parsed, TrustError):
            refused.append(parsed.summary)
            continue
        problem = _problem(parsed, data)
        if problem is not None:
            refused.append(problem.summary)
            continue
        valid.append(parsed)
        principal = signers.get(parsed.key)
        if principal is not None or parsed.fingerprint in named:
            accepted.append(Signer(principal or "", parsed.fingerprint))
        else:
            others.append(Signer("", parsed.fingerprint))
    return Findings(tuple(accepted), tuple(others), tuple(refused), tuple(valid))


def verify_unpinned(data: bytes, signature: bytes) -> str:
    """Check that a signature was made over `data` by the key it names; returns the fingerprints, joined by commas.

    Whether those keys are to be trusted is for a person to say. Raises TrustError.
    """
    found = examine(data, signature, None)
    if not found.others:
        raise not_allowed(found, ())
    return ", ".join(map(str, found.others))


def not_allowed(found: Findings, needed: Sequence[Signer]) -> TrustError:
    """The error for a file without a signature that counts: who signed it, and who should have."""
    if not found.others:
        tampered = "do not use this bundle; ask its sender for a fresh copy"
        return TrustError("; ".join(found.refused), remedy=tampered)
    those = ", ".join(str(each) for each in needed) or "nobody"
    return TrustError(
        f"signed by {', '.join(map(str, found.others))}, which is not among this site's allowed signers: {those}",
        details=found.refused,
        remedy="compare the fingerprint with the sender over another channel; only when they agree, accept the key: "
        f"--accept-signer {found.others[0].fingerprint} beside those, --replace-signer … instead of them",
    )


def parse_signatures(data: bytes) -> list[Union[Signature, TrustError]]:
    """Every signature of a file, or why it cannot be read: a file may hold some that are not for this program.

    Raises:
        TrustError: it is not one signature in armour after the other.
    """
    found: list[Union[Signature, TrustError]] = []
    position = 0
    while position < len(data) or not found:
        armor = _ARMOR.match(data, position)
        if not armor:
            raise _malformed("it is not an SSH signature in armour")
        if len(found) == MOST_SIGNATURES:
            raise _malformed(f"more than {MOST_SIGNATURES} signatures found in one file")
        try:
            found.append(_parse(armor.group(1)))
        except TrustError as error:
            found.append(error)
        position = armor.end()
    return found


def armored(data: bytes) -> list[bytes]:
    """The signatures of a file one by one, each in its armour. Raises TrustError like `parse_signatures`."""
    count = len(parse_signatures(data))
    blocks = [match.group().strip() + b"\n" for match in _ARMOR.finditer(data)]
    assert len(blocks) == count
    return blocks


def parse_signature(signature: bytes) -> Signature:
    """The first signature of a file. Raises TrustError when it is not one with an ed25519 key."""
    first = parse_signatures(signature)[0]
    if isinstance(first, TrustError):
        raise first
    return first


def _parse(armor: bytes) -> Signature:
    try:
        reader = _Reader(base64.b64decode(armor.replace(b"\r", b"").replace(b"\n", b""), validate=True))
        if reader.take(6) != b"SSHSIG":
            raise _malformed("the magic SSHSIG is missing")
        version = struct.unpack(">I", reader.take(4))[0]
        if version != 1:
            raise _malformed(f"version {version} found, 1 needed")
        key, namespace, reserved, hash_name, blob = (reader.string() for _ in range(5))
        reader.end()
        kind, public_key, rest = _typed(key, 32, "key")
        application = rest.string() if kind == _TOKEN_TYPE else b""
        rest.end()
        signed_with, value, rest = _typed(blob, 64, "signature")
        if signed_with != kind:
            raise ValueError(f"signature of type {_shown(signed_with)} found, {_shown(kind)} needed")
        token = None
        if kind == _TOKEN_TYPE:
            state = rest.take(5)  # flags, and a counter
            if not state[0] & _TOUCHED:
                raise ValueError("the hardware token signed without being touched")
            token = hashlib.sha256(application).digest() + state
        rest.end()
        return Signature(key, public_key, namespace.decode("ascii"), reserved, hash_name, value, token)
    except (ValueError, binascii.Error) as error:
        raise _malformed(str(error)) from error


def _typed(blob: bytes, size: int, what: str) -> tuple[bytes, bytes, _Reader]:
    """Type and content of a key or a signature, and what follows."""
    reader = _Reader(blob)
    kind = reader.string()
    if kind not in (_KEY_TYPE, _TOKEN_TYPE):
        raise ValueError(f"{what} of type {_shown(kind)} found, 'ssh-ed25519' needed")
    value = reader.string()
    if len(value) != size:
        raise ValueError(f"{what} of {len(value)} bytes found, {size} needed")
    return kind, value, reader


def _shown(kind: bytes) -> str:
    return repr(kind.decode("ascii", "replace")[:40])


def _problem(parsed: Signature, data: bytes) -> Optional[TrustError]:
    """Why the signature is not one of our namespace, over `data`, by the key it names; None when it is."""
    if parsed.namespace != NAMESPACE:
        return TrustError(
            f"the signature is for the namespace {parsed.namespace[:60]!r}, needed {NAMESPACE!r}",
            remedy=f"sign again with ssh-keygen -Y sign -n {NAMESPACE}",
        )
    if parsed.hash_name not in _HASHES:
        return _malformed(f"hash {parsed.hash_name.decode('ascii', 'replace')[:20]!r} found, sha256 or sha512 needed")
    fields = (
        parsed.namespace.encode(),
        parsed.reserved,
        parsed.hash_name,
        _HASHES[parsed.hash_name](data).digest(),
    )
    message = b"SSHSIG" + b"".join(_string(field) for field in fields)
    if parsed.token is not None:
        message = parsed.token + hashlib.sha256(message).digest()
    if not ed25519_verify(parsed.public_key, message, parsed.value):
        return TrustError(
            f"the signature by {parsed.fingerprint} is not over these bytes: they were changed after signing",
            remedy="do not use this bundle; ask its sender for a fresh copy",
        )
    return None


def listed_signers(allowed_signers: bytes) -> tuple[Signer, ...]:
    """Whom an allowed-signers file lets sign bundles."""
    return tuple(Signer(principal, _fingerprint(key)) for key, principal in _allowed(allowed_signers).items())


def _allowed(allowed_signers: bytes) -> dict[bytes, str]:
    """Keys that may sign in our namespace, each with the principal of the first line that says so."""
    found: dict[bytes, str] = {}
    for line in allowed_signers.decode("utf-8-sig", "replace").splitlines():
        words = _OPTIONS.findall(line.strip())
        if not words or words[0].startswith("#"):
            continue
        principal, *rest = words
        kinds = (_KEY_TYPE.decode(), _TOKEN_TYPE.decode())
        at = next((index for index, word in enumerate(rest) if word in kinds), None)
        if at is None or at + 1 >= len(rest) or not _BASE64_KEY.fullmatch(rest[at + 1]):
            continue
        key = _decoded(rest[at + 1])
        if key is not None and key.startswith(_string(rest[at].encode())) and _options_allow(rest[:at]):
            found.setdefault(key, str(principal).strip('"'))
    return found


def _decoded(text: str) -> Optional[bytes]:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


def _options_allow(options: list[str]) -> bool:
    """Whether a line's options let it vouch for our namespace; an option not understood never does."""
    for option in (item for word in options for item in re.findall(r'(?:[^,"]|"[^"]*")+', word)):
        name, _, value = option.partition("=")
        if name.lower() != "namespaces" or NAMESPACE not in value.strip('"').split(","):
            return False
    return True


def _malformed(reason: str) -> TrustError:
    return TrustError(
        f"the signature cannot be read: {reason}",
        remedy=f"sign with an ed25519 key: ssh-keygen -Y sign -n {NAMESPACE} -f KEY bundle.json",
    )


def _string(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


class _Reader:
    """Takes fields off the front of SSH wire data. Raises ValueError when there is too little or too much."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take(self, size: int) -> bytes:
        if len(self._data) < size:
            raise ValueError("it is cut short")
        head, self._data = self._data[:size], self._data[size:]
        return head

    def string(self) -> bytes:
        return self.take(int(struct.unpack(">I", self.take(4))[0]))

    def end(self) -> None:
        if self._data:
            raise ValueError("it has surplus bytes")
