"""The forms of names, versions and digests, which every document of the contract shares."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HEX = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


def check_name(name: str) -> None:
    """Raise ValueError unless `name` can be a bundle's name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"name {name!r}: 1 to 64 of a-z 0-9 . _ -, beginning and ending with a letter or digit")


def check_version(version: str) -> None:
    """Raise ValueError unless `version` can be a bundle's version."""
    if not _VERSION.fullmatch(version) or version in ("current", "seen.json"):
        raise ValueError(
            f"version {version!r}: 1 to 64 of A-Z a-z 0-9 . _ -, beginning and ending with a letter or digit"
        )


def check_sha256(value: str) -> None:
    """Raise ValueError unless `value` is a SHA-256 in 64 lower-case hexadecimal digits."""
    if not _HEX.fullmatch(value):
        raise ValueError(f"{value!r:.80} is not a SHA-256 in 64 lower-case hexadecimal digits")


def check_digest(value: str) -> None:
    """Raise ValueError unless `value` is ``sha256:`` and 64 hexadecimal digits."""
    if not _DIGEST.fullmatch(value):
        raise ValueError(f"{value!r:.80} is not a digest like sha256:<64 hexadecimal digits>")


def check_unique(what: str, names: Iterable[str]) -> None:
    """Raise ValueError when two of `names` differ at most in case; `what` says what they are names of."""
    seen: set[str] = set()
    for name in names:
        folded = name.casefold()
        if folded in seen:
            raise ValueError(f"{what} {name!r:.120} is listed twice (case does not distinguish)")
        seen.add(folded)
