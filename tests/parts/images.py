"""Real container images without a container engine: a Debian root filesystem in an archive that every tool reads.

The archive is an OCI image layout and a docker archive at once (``oci-layout`` and ``index.json`` beside
``manifest.json``), so skopeo reads it as either and any ``docker load`` takes it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parts import need, store

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
EPOCH = "2024-01-01T00:00:00Z"
RECIPE = 1
"""Raised when images made by an older version of this module must not be used any more."""


@dataclass(frozen=True)
class ImageArchive:
    """An image in a tar file.

    Attributes:
        path: the archive.
        reference: name and tag in it, e.g. ``airbundle-test/base:1``.
        manifest_digest: ``sha256:…`` of the OCI manifest.
        config_digest: ``sha256:…`` of its configuration.
    """

    path: Path
    reference: str
    manifest_digest: str
    config_digest: str


@dataclass(frozen=True)
class Rootfs:
    """What goes into a Debian root filesystem."""

    suite: str
    packages: tuple[str, ...]


@dataclass(frozen=True)
class Config:
    """How a container of the image starts."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)


BASE = (Rootfs("bookworm", ("python3", "libgomp1", "ca-certificates")), Config(command=("/bin/sh",)))
LLAMA = (Rootfs("sid", ("llama.cpp", "curl", "ca-certificates")), Config(entrypoint=("/usr/bin/llama-server",)))


def debian_image(name: str, rootfs: Rootfs, config: Config) -> ImageArchive:
    """The image, from the parts cache or made now (half a minute to a minute, needs Debian's archive)."""
    need.need("images")
    reference = f"airbundle-test/{name}:1"
    recipe = hashlib.sha256(repr((RECIPE, rootfs, config, platform.machine())).encode()).hexdigest()[:12]

    def make(directory: Path) -> None:
        rootfs_tar = directory / "rootfs.tar"
        _bootstrap(rootfs, rootfs_tar)
        with rootfs_tar.open("rb") as layer:
            facts = write_archive(directory / "image.tar", reference, [layer], config)
        rootfs_tar.unlink()
        (directory / "facts.json").write_text(json.dumps(facts))

    directory = store.once(f"image-{name}-{recipe}", make)
    facts = json.loads((directory / "facts.json").read_text())
    return ImageArchive(directory / "image.tar", reference, facts["manifest"], facts["config"])


def debian_tree(name: str, rootfs: Rootfs, target: Path) -> None:
    """Unpack a Debian root filesystem into a directory; from the parts cache, or made now."""
    need.need("images")
    recipe = hashlib.sha256(repr((RECIPE, rootfs, platform.machine())).encode()).hexdigest()[:12]
    kept = store.once(f"tree-{name}-{recipe}", lambda directory: _bootstrap(rootfs, directory / "rootfs.tar"))
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-xf", str(kept / "rootfs.tar"), "-C", str(target)], check=True, timeout=120)


def small_image(directory: Path, name: str, files: Mapping[str, bytes], config: Config = Config()) -> ImageArchive:
    """A tiny image holding just these files (mode 0755), for tests that never start it."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, data in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    layer.seek(0)
    reference = f"airbundle-test/{name}:1"
    path = directory / f"{name}.image.tar"
    facts = write_archive(path, reference, [layer], config)
    return ImageArchive(path, reference, facts["manifest"], facts["config"])


def write_archive(path: Path, reference: str, layers: Sequence[io.IOBase], config: Config) -> dict[str, str]:
    """Write the archive from uncompressed layer tars; returns the manifest's and the configuration's digest."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        entries = [_add_layer(tar, layer, path.parent) for layer in layers]
        config_descriptor = _add_blob(tar, "application/vnd.oci.image.config.v1+json", _config_json(config, entries))
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config_descriptor,
            "layers": [descriptor for descriptor, _ in entries],
        }
        manifest_descriptor = _add_blob(tar, manifest["mediaType"], _json(manifest))
        named = {**manifest_descriptor, "annotations": {"org.opencontainers.image.ref.name": reference}}
        docker = {
            "Config": _blob_path(config_descriptor["digest"]),
            "RepoTags": [reference],
            "Layers": [_blob_path(descriptor["digest"]) for descriptor, _ in entries],
        }
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [named]}))
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "manifest.json", _json([docker]))
    return {"manifest": manifest_descriptor["digest"], "config": config_descriptor["digest"]}


def _bootstrap(rootfs: Rootfs, target: Path) -> None:
    argv = [
        need.program("mmdebstrap"),
        "--quiet",
        "--variant=minbase",
        # An archive served from a snapshot or a mirror that lags is as good as today's for an image of tests.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        "--aptopt=Acquire::Retries 3",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        f"--include={','.join(rootfs.packages)}",
        rootfs.suite,
        str(target),
    ]
    for _ in range(2):  # once more, because an archive may change while it is read
        done = subprocess.run(argv, capture_output=True, text=True, timeout=900)
        if done.returncode == 0:
            return
        target.unlink(missing_ok=True)
    raise RuntimeError(f"mmdebstrap {rootfs.suite} failed ({done.returncode}):\n{done.stderr[-3000:]}")


def _config_json(config: Config, layers: Sequence[tuple[dict[str, object], str]]) -> bytes:
    return _json(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": EPOCH,
            "config": {
                "Entrypoint": list(config.entrypoint) or None,
                "Cmd": list(config.command) or None,
                "Env": list(config.env),
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [diff_id for _, diff_id in layers]},
            "history": [{"created": EPOCH, "created_by": "airbundle tests"} for _ in layers],
        }
    )


def _add_layer(tar: tarfile.TarFile, layer: io.IOBase, scratch: Path) -> tuple[dict[str, object], str]:
    """Compress a layer, add it as a blob; returns its descriptor and diff id."""
    plain = hashlib.sha256()
    compressed = scratch / ".layer.gz"
    with compressed.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as packed:
        for chunk in iter(lambda: layer.read(1 << 20), b""):  # type: ignore[attr-defined]
            plain.update(chunk)
            packed.write(chunk)
    with compressed.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
        handle.seek(0)
        entry = tarfile.TarInfo(_blob_path(f"sha256:{digest}"))
        entry.size = compressed.stat().st_size
        tar.addfile(entry, handle)
    compressed.unlink()
    descriptor = {
        "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
        "digest": f"sha256:{digest}",
        "size": entry.size,
    }
    return descriptor, f"sha256:{plain.hexdigest()}"


def _add_blob(tar: tarfile.TarFile, media_type: str, data: bytes) -> dict[str, object]:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    _add(tar, _blob_path(digest), data)
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def _blob_path(digest: object) -> str:
    return f"blobs/sha256/{str(digest).removeprefix('sha256:')}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
