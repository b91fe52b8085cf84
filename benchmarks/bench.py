"""What every subject of the benchmark uses: a working directory, the two commands under test, and rows of figures."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.measure import Run, measure

MIB, GIB = 1024**2, 1024**3
ROUNDS = 3


@dataclass(frozen=True)
class Aim:
    """What a figure should be: at most (``≤``) or at least (``≥``) a value."""

    sign: Literal["≤", "≥"]
    value: float

    def met(self, figure: float) -> bool:
        return figure <= self.value if self.sign == "≤" else figure >= self.value


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        subject: the heading it stands under.
        what: was done.
        seconds: of wall time; None where time is not the point.
        size: bytes that came out; None where size is not the point.
        figure: the number that counts, and what it is measured in: a ratio to something, or a unit.
        to: what the figure is a ratio to, or its unit.
        aim: what the figure should be.
        memory: peak bytes of anonymous memory, 0 where it was not taken.
        note: what a reader must know to judge it.
    """

    subject: str
    what: str
    seconds: float | None = None
    size: int | None = None
    figure: float | None = None
    to: str = ""
    aim: Aim | None = None
    memory: int = 0
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the aim was reached; None without one."""
        return None if self.aim is None or self.figure is None else self.aim.met(self.figure)


@dataclass(frozen=True)
class Baseline:
    """What the machine can do with the same bytes at the same moment, in seconds.

    Attributes:
        copy: `cp`.
        hash: one hash pass.
        floor: two hash passes and a copy that is synced, side by side, nobody waiting for anybody. A build copies,
            syncs, and hashes parts and their pieces, so it can hardly take less.
    """

    copy: float
    hash: float
    floor: float

    @property
    def longer(self) -> float:
        return max(self.copy, self.hash)


class Bench:
    """A working directory with a cache of its own, and the rows found so far.

    Args:
        work: an empty directory.
        tell: shown each row as it is found.
        watch: a path on the filesystem whose growth is watched, where that is not `work`'s.
    """

    def __init__(self, work: Path, tell: Callable[[Row], None], watch: Path | None = None) -> None:
        self.work, self.rows, self._tell, self._watch = work, list[Row](), tell, watch or work
        self.env = {"AIRBUNDLE_CACHE": str(work / "cache")}

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._tell(row)

    # --- the commands under test --------------------------------------------------------------------------
    def airbundle(self, *words: str | Path) -> Run:
        return self.measured([sys.executable, "-m", "airbundle", *words])

    def install_sh(self, bundle: Path, *words: str | Path) -> Run:
        return self.measured(["bash", bundle / "install.sh", *words])

    def measured(self, argv: list[str | Path]) -> Run:
        return measure(argv, watch=self._watch, env=self.env)

    def build(self, spec: Path, *more: str | Path, part_size: str = "4GB") -> Run:
        """A build of a bundle that ``dist`` does not have, as far as `spec` made the spec; locks and fills the cache
        where that was not done before."""
        shutil.rmtree(self.dist / spec.stem, ignore_errors=True)
        return self.airbundle("build", spec, "--output", self.dist, "--part-size", part_size, "--quiet", *more)

    def stage(self, bundle: Path, root: Path) -> Run:
        """An installation that starts nothing."""
        return self.install_sh(bundle, "--stage", "--yes", "--root", root)

    def fresh(self, bundle: Path, root: Path) -> Run:
        """`stage` at a site that has nothing yet."""
        shutil.rmtree(root, ignore_errors=True)
        return self.stage(bundle, root)

    # --- inputs -------------------------------------------------------------------------------------------
    @property
    def dist(self) -> Path:
        return self.work / "dist"

    def spec(self, name: str, model: Path, more: str, version: str = "v1") -> Path:
        """A spec around a local GGUF file."""
        path = self.work / f"{name}-{version}.toml"
        path.write_text(
            f'[bundle]\nname = "{name}"\nversion = "{version}"\n[target]\nprofile = "cpu-x86_64"\n'
            f'[model]\nsource = "local:{model}"\nserved_name = "synthetic"\n[engine]\nname = "llama.cpp"\n{more}'
        )
        return path

    def forget(self, model: Path) -> None:
        """Remove a model, its name in the cache, and every lock, so that the next one may have its name."""
        for path in (self.work / "cache" / "blobs").rglob("*"):
            if path.is_file() and path.samefile(model):
                path.unlink()
        model.unlink()
        for lock in self.work.glob("*.lock.json"):
            lock.unlink()

    def baseline(self, path: Path) -> Baseline:
        """The best of three rounds each, with the file warm in the page cache, as it is for us."""
        target, copies, hashes, floors = self.work / "copy", [], [], []
        works = (lambda: hash_file(path), lambda: hash_file(path), lambda: copy_and_sync(path, target))
        with ThreadPoolExecutor(3) as pool:
            for _ in range(ROUNDS):
                copies.append(timed(lambda: subprocess.run(["cp", str(path), str(target)], check=True)))
                target.unlink()
                hashes.append(timed(lambda: hash_file(path)))
                floors.append(timed(lambda: list(pool.map(lambda work: work(), works))))
                target.unlink()
        return Baseline(min(copies), min(hashes), min(floors))


def best(action: Callable[[], Run]) -> Run:
    """The quickest of three runs, with the memory and disk of the largest: noise only ever adds time."""
    runs = [action() for _ in range(ROUNDS)]
    return Run(min(run.seconds for run in runs), max(run.memory for run in runs), max(run.disk for run in runs))


def timed(action: Callable[[], object]) -> float:
    """Seconds that it takes."""
    start = time.monotonic()
    action()
    return time.monotonic() - start


def copy_and_sync(path: Path, target: Path) -> None:
    subprocess.run(["cp", str(path), str(target)], check=True)
    with target.open("rb+") as handle:
        os.fsync(handle.fileno())


def hash_file(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def payload_bytes(bundle: Path) -> int:
    """Bytes of all parts of a bundle, or of a repair."""
    return sum(part.stat().st_size for part in bundle.glob("payload.tar.*"))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def gib(size: float) -> str:
    return f"{size / GIB:g} GiB"
