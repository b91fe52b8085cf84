"""Reads single files of a bundle where they lie in its parts, without unpacking the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.payload import FileEntry, Part
from airbundle_onsite.errors import IntegrityError

_CHUNK = 1 << 20


def chunks(bundle: Path, manifest: BundleManifest, entry: FileEntry) -> Iterator[bytes]:
    """The content of a file of the payload.

    Raises:
        IntegrityError: part of it is in another bundle, which this one builds on.
    """
    for segment in entry.segments:
        if segment.base is not None:
            raise IntegrityError(f"{entry.path} is in the bundle that this one builds on, not in this one")
        yield from _span(bundle, manifest.payload.parts, segment.offset, segment.size)


def content(bundle: Path, manifest: BundleManifest, entry: FileEntry) -> bytes:
    """The same, at once; for small files."""
    return b"".join(chunks(bundle, manifest, entry))


def find(manifest: BundleManifest, path: str) -> FileEntry | None:
    """The entry of a file of the payload."""
    return next((entry for entry in manifest.files if entry.path == path), None)


def extract(bundle: Path, manifest: BundleManifest, target: Path, roles: frozenset[str]) -> None:
    """Write the files with these roles into a directory, as in the payload."""
    for entry in manifest.files:
        if entry.role in roles:
            path = target / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as handle:
                for chunk in chunks(bundle, manifest, entry):
                    handle.write(chunk)


def _span(bundle: Path, parts: tuple[Part, ...], offset: int, size: int) -> Iterator[bytes]:
    begin = 0
    for part in parts:
        end = begin + part.size
        low, high = max(offset, begin), min(offset + size, end)
        if low < high:
            with (bundle / part.name).open("rb") as handle:
                handle.seek(low - begin)
                left = high - low
                while left:
                    data = handle.read(min(_CHUNK, left))
                    if not data:
                        raise IntegrityError(f"{part.name} is shorter than bundle.json says")
                    left -= len(data)
                    yield data
        begin = end
