"""Building, verifying and installing bundles of growing size, against `cp` and one hash pass over the same bytes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import MIB, Aim, Baseline, Bench, Row, best, cores, gib, payload_bytes
from benchmarks.inputs import write_gguf
from benchmarks.measure import Run
from benchmarks.usual import model_row

VENV = '[runtime]\nkind = "venv"\n[wheels]\nrequirements = ["xllamacpp"]\n'
FLAT = Aim("≥", 0.9)
MEMORY = Aim("≤", 200)


@dataclass(frozen=True)
class Rates:
    """Bytes a second beyond what every run costs."""

    build: float
    verify: float
    install: float


@dataclass(frozen=True)
class Fixed:
    """What the smallest bundle costs, whatever the bytes."""

    build: Run
    verify: Run
    install: Run


def throughput_rows(bench: Bench, sizes: Sequence[int], *, usual: bool = True) -> None:
    """Rows for a model of each size (bytes, smallest first), and whether the rates stay.

    Args:
        usual: also do the smallest with the usual script, which takes a minute for a gibibyte.
    """
    fixed = _fixed_rows(bench)
    rates = [_size_rows(bench, size, fixed, usual=usual and size == sizes[0]) for size in sizes]
    if len(rates) > 1:
        for what in ("build", "verify", "install"):
            first, last = getattr(rates[0], what), getattr(rates[-1], what)
            to = f"its rate at {gib(sizes[0])}"
            bench.add(Row("Flat", f"{what}: rate at {gib(sizes[-1])}", figure=last / first, to=to, aim=FLAT))


def _fixed_rows(bench: Bench) -> Fixed:
    """The same work around a model of 1 MiB: starting, reading what libraries need, the environment, pip."""
    model = bench.work / "small.gguf"
    write_gguf(model, MIB)
    spec = bench.spec("bench-small", model, VENV)
    bench.build(spec)
    bundle, root = bench.dist / "bench-small-v1", bench.work / "site"
    fixed = Fixed(
        best(lambda: bench.build(spec)),
        best(lambda: bench.airbundle("verify", bundle, "--quiet")),
        best(lambda: bench.fresh(bundle, root)),
    )
    again = best(lambda: bench.stage(bundle, root))
    subject = "Whatever the size (a model of 1 MiB and one wheel of 38 MB)"
    bench.add(Row(subject, "airbundle build", fixed.build.seconds, memory=fixed.build.memory))
    bench.add(Row(subject, "airbundle verify", fixed.verify.seconds, memory=fixed.verify.memory))
    bench.add(Row(subject, "install.sh --stage: start, venv, pip", fixed.install.seconds, memory=fixed.install.memory))
    bench.add(Row(subject, "install.sh --stage of what is installed", again.seconds, memory=again.memory))
    shutil.rmtree(root)
    shutil.rmtree(bundle)
    return fixed


def _size_rows(bench: Bench, size: int, fixed: Fixed, *, usual: bool) -> Rates:
    subject, model = f"{gib(size)} model, venv runtime", bench.work / "model.gguf"
    write_gguf(model, size)
    base = bench.baseline(model)
    bench.add(Row(subject, "cp", base.copy))
    bench.add(Row(subject, "one hashlib SHA-256 pass", base.hash))
    what, note = "two of them beside a cp that is synced", "what any build does: its floor here"
    bench.add(Row(subject, what, base.floor, figure=base.floor / base.longer, to="max(cp, hash)", note=note))
    spec = bench.spec("bench-model", model, VENV)
    bench.build(spec, part_size="1GB")
    built = best(lambda: bench.build(spec, part_size="1GB"))
    bundle = bench.dist / "bench-model-v1"
    _timed_rows(bench, subject, "airbundle build, warm cache", built, fixed.build, base, Aim("≤", 1.3))
    verified = _verify_rows(bench, subject, bundle, size, fixed.verify, base)
    installed = _install_rows(bench, subject, bundle, fixed.install, base)
    if usual:
        bench.add(model_row(bench, subject, model, built.seconds + installed.seconds))
    bench.forget(model)
    shutil.rmtree(bundle)
    runs = ((built, fixed.build), (verified, fixed.verify), (installed, fixed.install))
    return Rates(*(size / max(run.seconds - least.seconds, 0.001) for run, least in runs))


def _timed_rows(bench: Bench, subject: str, what: str, run: Run, least: Run, base: Baseline, aim: Aim) -> None:
    """The whole command, and what it takes for the bytes alone, against the longer of `cp` and one hash pass."""
    to, rest = "max(cp, hash)", run.seconds - least.seconds
    bench.add(Row(subject, what, run.seconds, figure=run.seconds / base.longer, to=to, aim=aim, memory=run.memory))
    bench.add(Row(subject, "  of that, for the bytes", rest, figure=rest / base.longer, to=to, aim=aim))
    bench.add(Row(subject, "  peak memory", figure=run.memory / MIB, to="MiB", aim=MEMORY))


def _verify_rows(bench: Bench, subject: str, bundle: Path, size: int, least: Run, base: Baseline) -> Run:
    run = best(lambda: bench.airbundle("verify", bundle, "--quiet"))
    possible, to, aim = cores() * size / base.hash, "cores × hashlib", Aim("≥", 0.8)
    rate, rest = payload_bytes(bundle) / run.seconds, run.seconds - least.seconds
    bench.add(Row(subject, "airbundle verify", run.seconds, figure=rate / possible, to=to, aim=aim, memory=run.memory))
    bench.add(Row(subject, "  of that, for the bytes", rest, figure=size / rest / possible, to=to, aim=aim))
    return run


def _install_rows(bench: Bench, subject: str, bundle: Path, least: Run, base: Baseline) -> Run:
    root = bench.work / "site"
    run = best(lambda: bench.fresh(bundle, root))
    _timed_rows(bench, subject, "install.sh --stage", run, least, base, Aim("≤", 1.5))
    extra = (run.disk - payload_bytes(bundle)) / MIB
    bench.add(Row(subject, "  peak disk beyond the payload", figure=extra, to="MiB", note="64 + unpacked wheels"))
    again = best(lambda: bench.stage(bundle, root))
    bench.add(
        Row(subject, "  the same once more, unchanged", again.seconds, figure=again.seconds, to="s", aim=Aim("≤", 5))
    )
    shutil.rmtree(root)
    return run
