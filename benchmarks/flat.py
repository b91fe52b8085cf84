"""Memory at a size that fits no test machine: a file that is a hole, on a filesystem that packs zeros.

Every byte is read, hashed, written and counted as ever; only the disk under the filesystem holds little. The file
lies beside a small model, as one of those that are packed and not loaded: no plan for a model of that size would fit
the memory of this machine, and the installer would rightly refuse.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import GIB, MIB, Bench, Row, cores, gib
from benchmarks.inputs import write_gguf
from benchmarks.measure import Run
from benchmarks.throughput import MEMORY, VENV
from parts import need


def flat_rows(work: Path, tell: Callable[[Row], None], size: int) -> list[Row]:
    """Rows for a file of `size` bytes, all zeros; needs root, a loop device and btrfs."""
    with _packing_disk(work, 3 * size + 20 * GIB) as mount:
        directory = mount / "bench"
        directory.mkdir()
        bench = Bench(directory, tell)
        subject = f"{gib(size)} of zeros on a compressing filesystem"
        model = directory / "model.gguf"
        write_gguf(model, MIB)
        hole = directory / "hole.tiktoken"
        with hole.open("wb") as file:
            file.truncate(size)
        extra = f'[[model.extra]]\nrole = "vocabulary"\nsource = "local:{hole}"\nserved_name = "hole"\n'
        spec = bench.spec("bench-flat", model, VENV + extra)
        _add(bench, subject, "airbundle build: one hash pass for the cache, then the parts", bench.build(spec), size)
        bundle = bench.dist / "bench-flat-v1"
        _add(bench, subject, "airbundle verify", bench.airbundle("verify", bundle, "--quiet"), size)
        _add(bench, subject, "install.sh --stage", bench.stage(bundle, directory / "site"), size)
        return bench.rows


def _add(bench: Bench, subject: str, what: str, run: Run, size: int) -> None:
    note = f"{size / run.seconds / GIB:.2f} GiB/s on {cores()} cores"
    bench.add(Row(subject, what, run.seconds, note=note))
    bench.add(Row(subject, "  peak memory", figure=run.memory / MIB, to="MiB", aim=MEMORY))


@contextmanager
def _packing_disk(work: Path, size: int) -> Iterator[Path]:
    """Where a fresh btrfs with compression is mounted that says it has `size` bytes."""
    image, mount = work / "disk.img", work / "mnt"
    mount.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.btrfs", "-q", str(image))
    _run("mount", "-o", "loop,compress-force=zstd:1", str(image), str(mount))
    try:
        yield mount
    finally:
        _run("umount", str(mount))
        shutil.rmtree(work)


def _run(name: str, *words: str) -> None:
    subprocess.run([need.program(name), *words], check=True, timeout=600)
