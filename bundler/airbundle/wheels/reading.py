"""Reads METADATA out of a wheel."""

from __future__ import annotations

import zipfile
from pathlib import Path

from airbundle_onsite.errors import FetchError


def metadata_of(path: Path, name: str) -> bytes:
    """The METADATA of a wheel; `name` is its own file name. Raises FetchError when it has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith(".dist-info/METADATA") and member.count("/") == 1:
                    return archive.read(member)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{name}: the wheel is damaged ({error})", remedy="see what the index serves") from error
    raise FetchError(f"{name}: has no METADATA", remedy="see what the index serves, or rebuild it with a current tool")
