"""Checks SSH signatures (``ssh-keygen -Y sign``) with ed25519 keys, in pure Python.

A site need not have ssh-keygen. Formats: OpenSSH's PROTOCOL.sshsig for the signature, ssh-keygen(1) for allowed
signers, RFC 8032 for ed25519. Only public values are handled here, so nothing needs to run in constant time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from typing import Optional

from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import TrustError

NAMESPACE = "airbundle"
_KEY_TYPE = b"ssh-ed25519"
_ARMOR = re.compile(rb"\A-----BEGIN SSH SIGNATURE-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END SSH SIGNATURE-----\s*\Z")
_HASHES = {b"sha256": hashlib.sha256, b"sha512": hashlib.sha512}
_OPTIONS = re.compile(r'(?:[^\s"]|"[^"]*")+')
_BASE64_KEY = re.compile(r"AAAA[A-Za-z0-9+/]+={0,2}")


@record
class Signature:
    """A parsed SSH signature: the public key (32 bytes) it claims, and what it was made over."""

    public_key: bytes
    namespace: str
    reserved: bytes
    hash_name: bytes
    value: bytes

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint as ssh-keygen prints it: ``SHA256:…``."""
        return fingerprint(self.public_key)


def fingerprint(public_key: bytes) -> str:
    """``SHA256:…`` of an ed25519 public key of 32 bytes."""
    digest = hashlib.sha256(_string(_KEY_TYPE) + _string(public_key)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def verify_signature(data: bytes, signature: bytes, allowed_signers: bytes) -> str:
    """Check that an allowed signer signed `data`.

    Args:
        data: what was signed.
        signature: content of the ``.sig`` file.
        allowed_signers: content of an allowed-signers file, as for ``ssh-keygen -Y verify``.

    Returns:
        The signer: principal and fingerprint, as ``alice SHA256:…``.

    Raises:
        TrustError: the signature is malformed, not over these bytes, or by a key that is not allowed.
    """
    parsed = parse_signature(signature)
    principal = _allowed(parsed, allowed_signers)
    if principal is None:
        raise TrustError(
            f"signed with the key {parsed.fingerprint}, which is not among this site's allowed signers",
            remedy="compare the fingerprint with the sender over another channel; "
            "add the key to the allowed signers only when they agree",
        )
    _require_valid(parsed, data)
    return f"{principal} {parsed.fingerprint}"


def verify_unpinned(data: bytes, signature: bytes) -> str:
    """Check that the signature was made over `data` by the key it names; returns that key's fingerprint.

    Whether that key is to be trusted is for a person to say. Raises TrustError.
    """
    parsed = parse_signature(signature)
    _require_valid(parsed, data)
    return parsed.fingerprint


def parse_signature(signature: bytes) -> Signature:
    """Parse an armoured SSH signature. Raises TrustError when it is not one with an ed25519 key."""
    armor = _ARMOR.match(signature)
    if not armor:
        raise _malformed("it is not an SSH signature in armour")
    try:
        reader = _Reader(base64.b64decode(armor.group(1).replace(b"\r", b"").replace(b"\n", b""), validate=True))
        if reader.take(6) != b"SSHSIG":
            raise _malformed("the magic SSHSIG is missing")
        version = struct.unpack(">I", reader.take(4))[0]
        if version != 1:
            raise _malformed(f"version {version} found, 1 needed")
        key, namespace, reserved, hash_name, blob = (reader.string() for _ in range(5))
        reader.end()
        public_key = _typed(key, 32, "key")
        value = _typed(blob, 64, "signature")
        return Signature(public_key, namespace.decode("ascii"), reserved, hash_name, value)
    except (ValueError, binascii.Error) as error:
        raise _malformed(str(error)) from error


def _typed(blob: bytes, size: int, what: str) -> bytes:
    reader = _Reader(blob)
    kind = reader.string()
    if kind != _KEY_TYPE:
        raise ValueError(f"{what} of type {kind.decode('ascii', 'replace')[:40]!r} found, 'ssh-ed25519' needed")
    value = reader.string()
    reader.end()
    if len(value) != size:
        raise ValueError(f"{what} of {len(value)} bytes found, {size} needed")
    return value


def _require_valid(parsed: Signature, data: bytes) -> None:
    if parsed.namespace != NAMESPACE:
        raise TrustError(
            f"the signature is for the namespace {parsed.namespace!r}, needed {NAMESPACE!r}",
            remedy=f"sign again with ssh-keygen -Y sign -n {NAMESPACE}",
        )
    if parsed.hash_name not in _HASHES:
        raise _malformed(f"hash {parsed.hash_name.decode('ascii', 'replace')[:20]!r} found, sha256 or sha512 needed")
    message = b"SSHSIG" + b"".join(
        _string(field)
        for field in (
            parsed.namespace.encode(),
            parsed.reserved,
            parsed.hash_name,
            _HASHES[parsed.hash_name](data).digest(),
        )
    )
    if not ed25519_verify(parsed.public_key, message, parsed.value):
        raise TrustError(
            f"the signature by {parsed.fingerprint} is not over these bytes: they were changed after signing",
            remedy="do not use this bundle; ask its sender for a fresh copy",
        )


def _allowed(parsed: Signature, allowed_signers: bytes) -> Optional[str]:
    """The principal of the line that allows the key for our namespace, or None."""
    wanted = base64.b64encode(_string(_KEY_TYPE) + _string(parsed.public_key)).decode()
    for line in allowed_signers.decode("utf-8", "replace").splitlines():
        words = _OPTIONS.findall(line.strip())
        if not words or words[0].startswith("#"):
            continue
        principal, *rest = words
        at = next((index for index, word in enumerate(rest) if word == _KEY_TYPE.decode()), None)
        if at is None or at + 1 >= len(rest) or not _BASE64_KEY.fullmatch(rest[at + 1]):
            continue
        if rest[at + 1] == wanted and _options_allow(rest[:at]):
            return str(principal).strip('"')
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


# --- ed25519, RFC 8032 section 5.1 -------------------------------------------------------------------------
_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT_OF_MINUS_ONE = pow(2, (_P - 1) // 4, _P)
_Point = tuple[int, int, int, int]
"""Extended homogeneous coordinates X, Y, Z, T: x = X/Z, y = Y/Z, xy = T/Z."""


def ed25519_verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` (64 bytes) over `message` is by `public_key` (32 bytes)."""
    key, commitment = _decompress(public_key), _decompress(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or commitment is None or scalar >= _ORDER or len(signature) != 64:
        return False
    hashed = hashlib.sha512(signature[:32] + public_key + message).digest()
    challenge = int.from_bytes(hashed, "little") % _ORDER
    return _equal(_multiply(scalar, _BASE), _add(commitment, _multiply(challenge, key)))


def _decompress(data: bytes) -> Optional[_Point]:
    """The point with this encoding, or None when it is not the encoding of one."""
    value = int.from_bytes(data, "little")
    sign, y = value >> 255, value & ((1 << 255) - 1)
    if y >= _P or len(data) != 32:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT_OF_MINUS_ONE % _P
    if (x * x - square) % _P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _add(p: _Point, q: _Point) -> _Point:
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % _P, (p[1] + p[0]) * (q[1] + q[0]) % _P
    c, d = 2 * p[3] * q[3] * _D % _P, 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _multiply(scalar: int, point: _Point) -> _Point:
    result = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            result = _add(result, point)
        point = _add(point, point)
        scalar >>= 1
    return result


def _equal(p: _Point, q: _Point) -> bool:
    return (p[0] * q[2] - q[0] * p[2]) % _P == 0 and (p[1] * q[2] - q[1] * p[2]) % _P == 0


_BASE_Y = 4 * pow(5, _P - 2, _P) % _P
_BASE = _decompress(_BASE_Y.to_bytes(32, "little")) or (0, 1, 1, 0)
