"""`airbundle plan` of the manifests that come with the project, from locks that are there already."""

from __future__ import annotations

from benchmarks.bench import Aim, Bench, Row, best
from parts.manifests import MANIFESTS, StandIns


def plan_rows(bench: Bench) -> None:
    """A row for each manifest; where a hub or a registry would be asked, a small model or image stands in."""
    folder = bench.work / "stand-ins"
    folder.mkdir()
    stand_ins = StandIns(folder)
    for spec in MANIFESTS:
        words = ["--lock", bench.work / f"{spec.stem}.lock.json", *stand_ins.words(spec)]
        bench.airbundle("lock", spec, *words, "--quiet")
        run = best(lambda: bench.airbundle("plan", spec, *words))  # noqa: B023
        subject, what = "airbundle plan, from a lock", f"manifests/{spec.name}"
        bench.add(Row(subject, what, run.seconds, figure=run.seconds, to="s", aim=Aim("≤", 2)))
