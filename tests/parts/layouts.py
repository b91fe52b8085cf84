"""OCI image layouts written by hand, blob by blob, so that a test can leave out or damage what it likes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

OCI = "application/vnd.oci.image"
INDEX, MANIFEST, CONFIG = f"{OCI}.index.v1+json", f"{OCI}.manifest.v1+json", f"{OCI}.config.v1+json"
LAYER = f"{OCI}.layer.v1.tar"
SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18" + (8).to_bytes(4, "little") + b"contents"
"""What estargz's sibling zstd:chunked puts behind the frames of a layer."""

Descriptor = dict[str, object]


def digest_of(data: bytes) -> str:
    """``sha256:…``."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer_tar(files: Mapping[str, bytes]) -> bytes:
    """A layer holding these files (mode 0755)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, data in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def zstd(data: bytes) -> bytes:
    """Packed in two frames and one to be skipped, as tools that seek in layers write it."""
    half = len(data) // 2
    packer = zstandard.ZstdCompressor(level=3)
    return packer.compress(data[:half]) + packer.compress(data[half:]) + SKIPPABLE_FRAME


PACKERS = {"": bytes, "+gzip": lambda data: gzip.compress(data, 1, mtime=0), "+zstd": zstd}


@dataclass
class Layout:
    """An image layout in memory: blobs by digest, and what index.json lists."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    listed: list[Descriptor] = field(default_factory=list)

    def add(self, media_type: str, document: object) -> Descriptor:
        """Keep a document or blob; returns its descriptor."""
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.blobs[digest_of(data)] = data
        return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}

    def image(
        self,
        layers: Sequence[tuple[bytes, str]] = (),
        *,
        architecture: str = "amd64",
        settings: Mapping[str, object] | None = None,
        diff_ids: Sequence[str] | None = None,
    ) -> Descriptor:
        """An image of layers, each a tar and its packing (a key of `PACKERS`); returns its manifest's descriptor."""
        layers = layers or [(layer_tar({"arch": architecture.encode()}), "+gzip")]
        config = {
            "os": "linux",
            "architecture": architecture,
            "config": settings or {},
            "rootfs": {"type": "layers", "diff_ids": diff_ids or [digest_of(tar) for tar, _ in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.add(CONFIG, config),
            "layers": [self.add(f"{LAYER}{packing}", PACKERS[packing](tar)) for tar, packing in layers],
        }
        platform = {"os": "linux", "architecture": architecture}
        return self.add(MANIFEST, manifest) | {"platform": platform}

    def attestation(self) -> Descriptor:
        """What docker buildx puts beside an image."""
        manifest = {"schemaVersion": 2, "config": self.add(CONFIG, {}), "layers": []}
        return self.add(MANIFEST, manifest) | {
            "platform": {"os": "unknown", "architecture": "unknown"},
            "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
        }

    def index(self, *entries: Descriptor) -> Descriptor:
        """An index of images for several platforms."""
        return self.add(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(entries)})

    def list(self, entry: Descriptor, name: str = "", *, platform: bool = True) -> Descriptor:
        """Put an entry into index.json."""
        shown = {key: value for key, value in entry.items() if platform or key != "platform"}
        if name:
            shown["annotations"] = {"org.opencontainers.image.ref.name": name}
        self.listed.append(shown)
        return entry

    def forget(self, entry: Descriptor) -> None:
        """Leave out an image's blobs, as a client does that fetched one platform only."""
        document = json.loads(self.blobs.pop(str(entry["digest"])))
        for blob in (document["config"], *document["layers"]):
            self.blobs.pop(blob["digest"], None)

    def layers_of(self, entry: Descriptor) -> list[str]:
        """Digests of an image's layers."""
        return [str(layer["digest"]) for layer in json.loads(self.blobs[str(entry["digest"])])["layers"]]

    def files(self) -> dict[str, bytes]:
        """All of it, by path."""
        index = {"schemaVersion": 2, "manifests": self.listed}
        blobs = {f"blobs/{digest.replace(':', '/')}": data for digest, data in self.blobs.items()}
        return {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}

    def write(self, directory: Path) -> Path:
        """As a directory."""
        for path, data in self.files().items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(data)
        return directory

    def write_tar(self, path: Path) -> Path:
        """As a tar, with the ``./`` before each name that tar itself writes."""
        with tarfile.open(path, "w") as tar:
            for name, data in self.files().items():
                entry = tarfile.TarInfo(f"./{name}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        return path
