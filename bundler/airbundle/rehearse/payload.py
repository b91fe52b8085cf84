"""Reads single files of a bundle where they lie in its parts, without unpacking the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from airbundle.delta.content import in_bundle, stream
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.payload import FileEntry
from airbundle_onsite.errors import IntegrityError

_TENSORS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".npz", ".h5", ".msgpack")
_LENGTH = 8


def chunks(bundle: Path, manifest: BundleManifest, entry: FileEntry) -> Iterator[bytes]:
    """The content of a file of the payload.

    Raises:
        IntegrityError: part of it is in another bundle, which this one builds on.
    """
    found = in_bundle(bundle, manifest, entry)
    if found is None:
        raise IntegrityError(f"{entry.path} is in the bundle that this one builds on, not in this one")
    yield from stream(found)


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


def write_texts(directory: Path, texts: Mapping[str, str]) -> None:
    """Small files by name, readable by everyone."""
    directory.mkdir(exist_ok=True)
    directory.chmod(0o755)
    for name, text in texts.items():
        path = directory / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)


def extract_models(bundle: Path, manifest: BundleManifest, target: Path, *, whole: bool) -> None:
    """Write the models' files into a directory, as in the payload.

    Args:
        whole: else tensors become holes: the files have their headers and lengths, and take no room.
    """
    for entry in manifest.files:
        if entry.role != "model":
            continue
        path = target / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as handle:
            if whole or path.suffix not in _TENSORS:
                handle.writelines(chunks(bundle, manifest, entry))
            else:
                if path.suffix == ".safetensors":
                    handle.write(_safetensors_header(bundle, manifest, entry))
                handle.truncate(entry.size)


def _safetensors_header(bundle: Path, manifest: BundleManifest, entry: FileEntry) -> bytes:
    """Its length in eight bytes, then JSON."""
    data, wanted = b"", _LENGTH
    for chunk in chunks(bundle, manifest, entry):
        data += chunk
        if len(data) >= _LENGTH:
            wanted = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        if len(data) >= wanted:
            break
    return data[:wanted]
