"""Verifies ed25519 signatures, RFC 8032 section 5.1. Public values only, so nothing needs to run in constant time."""

from __future__ import annotations

import hashlib
from typing import Optional

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT_OF_MINUS_ONE = pow(2, (_P - 1) // 4, _P)
_Point = tuple[int, int, int, int]
"""Extended homogeneous coordinates X, Y, Z, T: x = X/Z, y = Y/Z, xy = T/Z."""

_NOTHING: _Point = (0, 1, 1, 0)


def ed25519_verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` (64 bytes) over `message` is by `public_key` (32 bytes)."""
    key, commitment = _decompress(public_key), _decompress(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or commitment is None or scalar >= _ORDER or len(signature) != 64:
        return False
    if _equal(_multiply(8, key), _NOTHING):  # a key of small order, under which anything verifies
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
    result = _NOTHING
    while scalar:
        if scalar & 1:
            result = _add(result, point)
        point = _add(point, point)
        scalar >>= 1
    return result


def _equal(p: _Point, q: _Point) -> bool:
    return (p[0] * q[2] - q[0] * p[2]) % _P == 0 and (p[1] * q[2] - q[1] * p[2]) % _P == 0


_BASE_Y = 4 * pow(5, _P - 2, _P) % _P
_BASE = _decompress(_BASE_Y.to_bytes(32, "little")) or _NOTHING
