"""The probe that is carried to a site before anything is built."""

from __future__ import annotations

import sys

from benchmarks.bench import Aim, Bench, Row, best


def fingerprint_row(bench: Bench) -> None:
    """From the shell script to the written file."""
    kit = bench.work / "kit"
    bench.airbundle("kit", "-o", kit, "--quiet")
    bench.env["AIRBUNDLE_PYTHON"] = sys.executable
    taken = best(lambda: bench.measured(["sh", kit / "probe.sh"]))
    del bench.env["AIRBUNDLE_PYTHON"]
    what, seconds = "probe.sh: a whole fingerprint", taken.seconds
    bench.add(Row("The kit", what, seconds, figure=seconds, to="s", aim=Aim("≤", 1), memory=taken.memory))
