"""`make bench`: builds, verifies and installs synthetic bundles and prints ratios, all taken in one run.

Absolute times of a shared machine say little; a ratio to `cp` and to one hash pass over the same bytes does.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.inputs import weight_bytes, write_gguf
from benchmarks.measure import Run, measure
from parts import docker, images, registry

MIB, GIB = 1024**2, 1024**3
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One figure: what was done, its seconds, the ratio and what it is a ratio to, memory and disk in bytes."""

    what: str
    seconds: float
    ratio: float | None = None
    to: str = ""
    aim: str = ""
    memory: int = 0
    disk: int = 0


@dataclass(frozen=True)
class Baseline:
    """What the machine can do with the same bytes at the same moment: seconds of `cp`, and of one hash pass."""

    copy: float
    hash: float

    @property
    def longer(self) -> float:
        return max(self.copy, self.hash)


class Bench:
    """A working directory with a cache, and the rows found so far."""

    def __init__(self, work: Path) -> None:
        self.work, self.rows = work, list[Row]()
        self.env = {"AIRBUNDLE_CACHE": str(work / "cache")}

    def airbundle(self, *words: str | Path) -> Run:
        return measure([sys.executable, "-m", "airbundle", *words], watch=self.work, env=self.env)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        sys.stdout.write(_text(row) + "\n")
        sys.stdout.flush()

    def baseline(self, path: Path) -> Baseline:
        """The best of three rounds each, with the file warm in the page cache, as it is for us."""
        copies, hashes = [], []
        for _ in range(3):
            target = self.work / "copy"
            copies.append(_timed(lambda: subprocess.run(["cp", str(path), str(target)], check=True)))  # noqa: B023
            target.unlink()
            hashes.append(_timed(lambda: _hash(path)))
        return Baseline(min(copies), min(hashes))

    def spec(self, name: str, model: Path, more: str) -> Path:
        """A spec around a local GGUF file."""
        path = self.work / f"{name}.toml"
        path.write_text(
            f'[bundle]\nname = "{name}"\nversion = "v1"\n[target]\nprofile = "cpu-x86_64"\n'
            f'[model]\nsource = "local:{model}"\nserved_name = "synthetic"\n[engine]\nname = "llama.cpp"\n{more}'
        )
        return path

    def build(self, name: str, spec: Path, part_size: str) -> tuple[Path, Run]:
        """Lock, fill the cache, and measure builds that find everything there; returns the best of three."""
        output = self.work / "dist"
        words = ["build", spec, "--output", output, "--part-size", part_size, "--force", "--quiet"]
        self.airbundle(*words)
        return output / f"{name}-v1", self.best(lambda: self.airbundle(*words))

    def best(self, action: Callable[[], Run]) -> Run:
        """The quickest of three runs, with the memory and disk of the largest: noise only ever adds time."""
        runs = [action() for _ in range(3)]
        return Run(min(run.seconds for run in runs), max(run.memory for run in runs), max(run.disk for run in runs))


def model_rows(bench: Bench, size: int, *, usual: bool = True) -> None:
    """Build, verify and stage a bundle around a model of `size` bytes in the venv runtime."""
    model = bench.work / "model.gguf"
    write_gguf(model, size)
    base = bench.baseline(model)
    bench.add(Row(f"cp of the {_gib(size)} model", base.copy))
    bench.add(Row("one hashlib SHA-256 pass over it", base.hash))
    more = '[runtime]\nkind = "venv"\n[wheels]\nrequirements = ["xllamacpp"]\n'
    spec = bench.spec("bench-model", model, more)
    bundle, built = bench.build("bench-model", spec, "1GB")
    payload = sum(part.stat().st_size for part in bundle.glob("payload.tar.*"))
    bench.add(_ratio("airbundle build, warm cache", built, base.longer, "max(cp, hash)", "≤ 1.3"))

    verified = bench.best(lambda: bench.airbundle("verify", bundle, "--quiet"))
    rate, possible = payload / verified.seconds, (os.cpu_count() or 1) * size / base.hash
    bench.add(Row("airbundle verify", verified.seconds, rate / possible, "cores × hashlib", "≥ 0.8", verified.memory))

    root = bench.work / "site"
    staged = bench.best(lambda: _fresh_install(bench, bundle, root))
    bench.add(_ratio("install.sh --stage (venv)", staged, base.longer, "max(cp, hash)", "≤ 1.5"))
    fixed = _fixed_cost(bench, more)
    rest = staged.seconds - fixed.seconds
    bench.add(Row("  of that, whatever the size: start, venv, pip", fixed.seconds))
    bench.add(Row("  of that, for the bytes", rest, rest / base.longer, "max(cp, hash)", "≤ 1.5"))
    extra = staged.disk - payload
    bench.add(Row("  extra disk beyond the payload", 0, extra / MIB, "MiB", "≤ 64 + unpacked wheels", disk=extra))
    shutil.rmtree(root)
    if usual:
        _usual_model(bench, model, staged.seconds + built.seconds)
    model.unlink()
    shutil.rmtree(bundle)


def fingerprint_row(bench: Bench) -> None:
    """The probe that is carried to a site, from the shell script to the written file."""
    kit = bench.work / "kit"
    bench.airbundle("kit", "-o", kit, "--quiet")
    taken = bench.best(
        lambda: measure(["sh", kit / "probe.sh"], watch=bench.work, env={"AIRBUNDLE_PYTHON": sys.executable})
    )
    bench.add(Row("the kit's probe.sh: a whole fingerprint", taken.seconds, taken.seconds, "1 s", "≤ 1", taken.memory))


def _fresh_install(bench: Bench, bundle: Path, root: Path) -> Run:
    shutil.rmtree(root, ignore_errors=True)
    return _install(bench, bundle, root)


def _fixed_cost(bench: Bench, more: str) -> Run:
    """The same installation around a model of 1 MiB."""
    model = bench.work / "small.gguf"
    write_gguf(model, MIB)
    bundle, _ = bench.build("bench-small", bench.spec("bench-small", model, more), "4GB")
    return bench.best(lambda: _fresh_install(bench, bundle, bench.work / "small-site"))


def _usual_model(bench: Bench, model: Path, ours: float) -> None:
    archive = bench.work / "usual.tar.gz"
    office = measure(
        [
            "sh",
            "-c",
            'tar -C "$1" -cf - "$2" | gzip -1 > "$3" && sha256sum "$3" > "$3.sum"',
            "sh",
            str(model.parent),
            model.name,
            str(archive),
        ],
        watch=bench.work,
    )
    out = bench.work / "usual"
    out.mkdir()
    site = measure(
        ["sh", "-c", 'sha256sum -c "$1.sum" && tar -C "$2" -xzf "$1"', "sh", str(archive), str(out)], watch=bench.work
    )
    total = office.seconds + site.seconds
    bench.add(Row("tar | gzip -1 + sha256sum, then back", total, total / ours, "our build + stage"))
    archive.unlink()
    shutil.rmtree(out)


def image_rows(bench: Bench, size: int) -> None:
    """Build and stage a bundle around an image of `size` bytes on a real docker engine."""
    with docker.running() as engine, registry.running(bench.work / "registry") as server:
        bench.env["DOCKER_HOST"] = engine.host
        layer = bench.work / "layer"
        with layer.open("wb") as handle:
            for block in weight_bytes(size):
                handle.write(block)
        base = bench.baseline(layer)
        config = images.Config(entrypoint=("/usr/bin/llama-server",))
        archive = images.small_image(bench.work, "bench", {"opt/blob": layer.read_bytes()}, config)
        layer.unlink()
        reference = server.push(archive, "airbundle-bench/image:1")
        model = bench.work / "small.gguf"
        write_gguf(model, MIB)
        more = f'[runtime]\nkind = "docker"\n[image]\nsource = "registry:{reference}"\nname = "bench/image:1"\n'
        bundle, built = bench.build("bench-image", bench.spec("bench-image", model, more), "4GB")
        payload = sum(part.stat().st_size for part in bundle.glob("payload.tar.*"))
        bench.add(_ratio(f"airbundle build, {_gib(size)} image", built, base.longer, "max(cp, hash)", "≤ 1.3"))
        staged = _install(bench, bundle, bench.work / "site")
        bench.add(_ratio("install.sh --stage (docker)", staged, base.longer, "max(cp, hash)"))
        extra = staged.disk - payload
        bench.add(Row("  disk beyond the payload's bytes (docker's own)", 0, extra / MIB, "MiB", disk=extra))
        _usual_image(bench, engine, staged.seconds + built.seconds)


def _usual_image(bench: Bench, engine: docker.DockerEngine, ours: float) -> None:
    saved = bench.work / "usual-image.tar.gz"
    env = {"DOCKER_HOST": engine.host}
    office = measure(
        ["sh", "-c", 'docker save bench/image:1 | gzip -1 > "$1" && sha256sum "$1" > "$1.sum"', "sh", str(saved)],
        watch=bench.work,
        env=env,
    )
    engine.run("rmi", "-f", "bench/image:1")
    site = measure(
        ["sh", "-c", 'sha256sum -c "$1.sum" && gunzip -c "$1" | docker load', "sh", str(saved)],
        watch=bench.work,
        env=env,
    )
    total = office.seconds + site.seconds
    bench.add(Row("docker save | gzip -1, then docker load", total, total / ours, "our build + stage", disk=site.disk))


def _install(bench: Bench, bundle: Path, root: Path) -> Run:
    argv = ["bash", str(bundle / "install.sh"), "--stage", "--yes", "--root", str(root)]
    return measure(argv, watch=bench.work, env=bench.env)


def _ratio(what: str, run: Run, base: float, to: str, aim: str = "") -> Row:
    return Row(what, run.seconds, run.seconds / base, to, aim, run.memory, run.disk)


def _timed(action: Callable[[], object]) -> float:
    start = time.monotonic()
    action()
    return time.monotonic() - start


def _hash(path: Path) -> None:
    with path.open("rb") as handle:
        hashlib.file_digest(handle, "sha256")


def _gib(size: int) -> str:
    return f"{size / GIB:g} GiB"


def _text(row: Row) -> str:
    seconds = f"{row.seconds:7.2f} s" if row.seconds else " " * 9
    ratio = f"{row.ratio:7.2f} {row.to}" if row.ratio is not None else ""
    aim = f"(aim {row.aim})" if row.aim else ""
    memory = f"memory {row.memory / MIB:.0f} MiB" if row.memory else ""
    return f"{row.what:48} {seconds}  {ratio:34} {aim:12} {memory}".rstrip()


def _machine() -> dict[str, object]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": model, "cores": os.cpu_count(), "memory": memory, "kernel": platform.release()}


def main() -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"), help="working directory (build/bench)")
    parser.add_argument("--model-gib", type=float, default=2.0)
    parser.add_argument("--image-gib", type=float, default=1.0)
    parser.add_argument("--no-image", action="store_true", help="leave out what needs docker and root")
    parser.add_argument("--no-usual", action="store_true", help="leave out the usual script, which takes minutes")
    options = parser.parse_args()
    work = options.dir.absolute()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    bench = Bench(work)
    try:
        fingerprint_row(bench)
        model_rows(bench, int(options.model_gib * GIB), usual=not options.no_usual)
        if not options.no_image:
            image_rows(bench, int(options.image_gib * GIB))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    RESULTS.mkdir(exist_ok=True)
    today = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d")
    result = {"machine": _machine(), "rows": [vars(row) for row in bench.rows]}
    (RESULTS / f"{today}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
