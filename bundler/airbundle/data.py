"""Finds profiles/, templates/ and manifests/, in a checkout and in an installed wheel alike."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def data_dir(kind: str) -> Path:
    """Directory of that kind of data: ``profiles``, ``templates`` or ``manifests``.

    Raises:
        FileNotFoundError: the installation is incomplete.
    """
    return _find(kind)


def license_file() -> Path:
    """airbundle's own licence text."""
    return _find("LICENSE")


def _find(name: str) -> Path:
    package = Path(str(resources.files("airbundle")))
    for candidate in (package / "_data" / name, package.parent.parent / name):
        if candidate.exists():
            return candidate
    raise FileNotFoundError(f"{name} of airbundle is missing: reinstall the package")
