"""Images on a real docker engine: building, loading, and an upgrade that shares layers with what is there."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import MIB, Aim, Bench, Row, best, gib, payload_bytes
from benchmarks.inputs import weight_bytes, write_gguf
from benchmarks.usual import image_row
from parts import docker, images, registry

_CONFIG = images.Config(entrypoint=("/usr/bin/llama-server",))
_NAME = "bench/image:1"
_SMALL = 16  # the layer that an upgrade changes is this part of the large one


def image_rows(bench: Bench, size: int, *, usual: bool = True) -> None:
    """Rows for an image with one layer of `size` bytes and a small one on top, and for the next version of it."""
    with docker.running() as engine, registry.running(bench.work / "registry") as server:
        bench.env["DOCKER_HOST"] = engine.host
        large = bench.work / "large.layer"
        _write_layer(large, "opt/large", size, seed=0)
        base = bench.baseline(large)
        model = bench.work / "small.gguf"
        write_gguf(model, MIB)
        bundles = {}
        subject = f"{gib(size)} image, docker runtime"
        for version, seed in (("v1", 1), ("v2", 2)):
            reference = _push(bench, server, version, large, size // _SMALL, seed)
            more = f'[runtime]\nkind = "docker"\n[image]\nsource = "registry:{reference}"\nname = "{_NAME}"\n'
            spec = bench.spec("bench-image", model, more, version)
            bench.build(spec)
            bundles[version] = bench.dist / f"bench-image-{version}"
            if version == "v1":
                built = best(lambda: bench.build(spec))  # noqa: B023
        large.unlink()
        ratio, to = built.seconds / base.longer, "max(cp, hash)"
        bench.add(Row(subject, "airbundle build", built.seconds, figure=ratio, to=to, memory=built.memory))
        root = bench.work / "site"
        first = bench.stage(bundles["v1"], root)
        ratio = first.seconds / base.longer
        bench.add(Row(subject, "install.sh --stage", first.seconds, figure=ratio, to=to, memory=first.memory))
        extra = (first.disk - payload_bytes(bundles["v1"])) / MIB
        bench.add(Row(subject, "  disk beyond the payload's bytes: docker's own", figure=extra, to="MiB"))
        _upgrade_rows(bench, subject, bundles, root, first.seconds)
        if usual:
            bench.add(image_row(bench, subject, engine, _NAME, first.seconds + built.seconds))
        shutil.rmtree(root)
        for bundle in bundles.values():
            shutil.rmtree(bundle)


def _upgrade_rows(bench: Bench, subject: str, bundles: dict[str, Path], root: Path, first: float) -> None:
    """The next version, whole and by difference; its large layer is in the engine already."""
    to = "installing v1"
    whole = bench.stage(bundles["v2"], root)
    ratio = whole.seconds / first
    bench.add(Row(subject, "upgrade from the full v2, layers shared", whole.seconds, figure=ratio, to=to))
    full = payload_bytes(bundles["v2"])
    spec, base = bench.work / "bench-image-v2.toml", ("--base", bundles["v1"])
    bench.build(spec, *base)
    thin = payload_bytes(bundles["v2"])
    wanted = Aim("≤", 1.2 / (_SMALL + 1))
    bench.add(Row(subject, "v2 by difference: size", size=thin, figure=thin / full, to="full v2", aim=wanted))
    by_difference = best(lambda: bench.install_sh(bundles["v2"], "--stage", "--yes", "--reinstall", "--root", root))
    ratio = by_difference.seconds / first
    bench.add(Row(subject, "upgrade from v2 by difference", by_difference.seconds, figure=ratio, to=to))


def _push(bench: Bench, server: registry.Registry, version: str, large: Path, small_size: int, seed: int) -> str:
    """An image of the large layer and a small one of its own; returns its reference by digest."""
    small, archive = bench.work / "small.layer", bench.work / f"{version}.image.tar"
    _write_layer(small, f"opt/{version}", small_size, seed=seed)
    reference = f"airbundle-bench/image:{version}"
    with large.open("rb") as first, small.open("rb") as second:
        facts = images.write_archive(archive, reference, [first, second], _CONFIG)
    pushed = server.push(images.ImageArchive(archive, reference, facts["manifest"], facts["config"]), reference)
    archive.unlink()
    small.unlink()
    return pushed


def _write_layer(path: Path, name: str, size: int, *, seed: int) -> None:
    """A layer's tar with one file of `size` bytes."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = size, 0o755
        tar.addfile(entry, _Blocks(weight_bytes(size, seed=seed)))


class _Blocks(io.RawIOBase):
    """Blocks of bytes, read as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size:
            block = next(self._blocks, b"")
            if not block:
                break
            self._rest += block
        head, self._rest = self._rest[:size], self._rest[size:]
        return head
