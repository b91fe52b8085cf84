"""`make bench`: builds, verifies and installs synthetic bundles and prints ratios, all taken in one run.

Absolute times of a shared machine say little; a ratio to `cp` and to one hash pass over the same bytes does.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bench import GIB, MIB, Bench, Row
from benchmarks.compress_rows import CompressRow, compress_rows
from benchmarks.difference import difference_rows
from benchmarks.flat import flat_rows
from benchmarks.images import image_rows
from benchmarks.kit import fingerprint_row
from benchmarks.machine import describe, load
from benchmarks.plans import plan_rows
from benchmarks.report import row_text, write_results
from benchmarks.throughput import throughput_rows

RESULTS = Path(__file__).parent / "results"
SUBJECTS = ("kit", "plans", "throughput", "difference", "images", "compress")
SMALL = 20  # a small run does everything with this part of the bytes


def main(words: Sequence[str]) -> int:
    """Run the benchmark; returns the exit code."""
    options = _options(words)
    work = options.dir.absolute()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    machine, share = describe(work), SMALL if options.small else 1
    bench = Bench(work, _Terminal())
    try:
        _run(bench, options, share)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        machine = dataclasses.replace(machine, load_at_end=load())
        if bench.rows:
            name = time.strftime("%Y%m%d", time.gmtime()) + options.suffix
            command = shlex.join(["python", "-m", "benchmarks", *words])
            page = write_results(options.results, name, machine, bench.rows, command)
            sys.stdout.write(f"written to {page}\n")
    return 0


def _run(bench: Bench, options: argparse.Namespace, share: int) -> None:
    usual = not options.no_usual
    if "kit" in options.subjects:
        fingerprint_row(bench)
    if "plans" in options.subjects:
        plan_rows(bench)
    if "throughput" in options.subjects:
        throughput_rows(bench, [int(size * GIB) // share for size in sorted(options.sizes)], usual=usual)
    if "difference" in options.subjects:
        difference_rows(bench, int(options.tune_gib * GIB) // share)
    if "images" in options.subjects:
        image_rows(bench, int(options.image_gib * GIB) // share, usual=usual)
    if "compress" in options.subjects:
        compress_rows(bench.work, size=max(256 * MIB // share, 16 * MIB), tell=lambda row: bench.add(_compressed(row)))
    if "flat" in options.subjects:
        bench.rows += flat_rows(bench.work / "flat", _Terminal(), int(options.flat_gib * GIB) // share)


def _compressed(row: CompressRow) -> Row:
    rates = {"compressed at": row.encode, "decoded at": row.decode, "installed at": row.install}
    note = ", ".join(f"{what} {rate:.0f} MB/s" for what, rate in rates.items() if rate is not None)
    subject, to = "Weights compressed without loss; rates of what they are uncompressed", "their bytes"
    return Row(subject, row.name, size=row.bytes_out, figure=row.ratio, to=to, note=note)


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"), help="working directory (build/bench)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the figures go (benchmarks/results)")
    parser.add_argument("--suffix", default="", help="what follows the date in their names")
    parser.add_argument(
        "--subjects",
        type=lambda text: text.split(","),
        default=SUBJECTS,
        help=f"which, with commas ({','.join(SUBJECTS)}; images needs docker and root; and: flat, which needs root)",
    )
    parser.add_argument("--sizes", type=lambda text: [float(word) for word in text.split(",")], default=[1, 2, 8])
    parser.add_argument("--tune-gib", type=float, default=2.0, help="size of the model that is fine-tuned (2)")
    parser.add_argument("--image-gib", type=float, default=1.0, help="size of the image's large layer (1)")
    parser.add_argument("--flat-gib", type=float, default=100.0, help="size of the model of zeros (100)")
    parser.add_argument("--small", action="store_true", help=f"all sizes divided by {SMALL}: does it run?")
    parser.add_argument("--no-usual", action="store_true", help="leave out the usual script, which takes minutes")
    return parser.parse_args(words)


class _Terminal:
    """Shows rows as they come, each subject under its heading."""

    def __init__(self) -> None:
        self._subject = ""

    def __call__(self, row: Row) -> None:
        if row.subject != self._subject:
            self._subject = row.subject
            sys.stdout.write(f"\n{row.subject}\n")
        sys.stdout.write(row_text(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
