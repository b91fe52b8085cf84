"""The host's files below one root, so that a probe can be shown a host that is not this one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional


class HostFiles:
    """Reads files of a host by their absolute names; what cannot be read is None or empty, never an error.

    Args:
        root: where the host's own ``/`` is seen; another path than ``/`` when a container inspects its host.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    @property
    def here(self) -> bool:
        """Whether these are the files of the running system, so that system calls speak of the same host."""
        return self.root == Path("/")

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def text(self, name: str) -> Optional[str]:
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def value(self, name: str) -> Optional[str]:
        """A one-line file, without surrounding blanks; None also when it is empty."""
        text = self.text(name)
        return (text.strip() or None) if text is not None else None

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.path(name))

    def names(self, name: str) -> list[str]:
        """Names in a directory, sorted."""
        try:
            return sorted(entry.name for entry in self.path(name).iterdir())
        except OSError:
            return []


def integer(text: Optional[str]) -> Optional[int]:
    """The text as a decimal integer, or None."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def id_list(text: str) -> set[int]:
    """The kernel's list format: ``0-3,8`` is {0, 1, 2, 3, 8}. Raises ValueError."""
    ids: set[int] = set()
    for piece in text.strip().split(","):
        if piece:
            first, _, last = piece.partition("-")
            ids.update(range(int(first), int(last or first) + 1))
    return ids
