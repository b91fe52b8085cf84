"""The usual script for the same job: tar, gzip and sha256sum; docker save and load."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.bench import Bench, Row
from parts import docker


def model_row(bench: Bench, subject: str, model: Path, ours: float) -> Row:
    """Packing a model and unpacking it again, against the seconds that we take for both."""
    archive, out = bench.work / "usual.tar.gz", bench.work / "usual"
    pack = 'tar -C "$1" -cf - "$2" | gzip -1 > "$3" && sha256sum "$3" > "$3.sum"'
    office = bench.measured(["sh", "-c", pack, "sh", model.parent, model.name, archive])
    out.mkdir()
    site = bench.measured(["sh", "-c", 'sha256sum -c "$1.sum" && tar -C "$2" -xzf "$1"', "sh", archive, out])
    archive.unlink()
    shutil.rmtree(out)
    total = office.seconds + site.seconds
    return Row(subject, "tar | gzip -1, sha256sum, and back", total, figure=total / ours, to="our build + stage")


def image_row(bench: Bench, subject: str, engine: docker.DockerEngine, name: str, ours: float) -> Row:
    """Saving an image that the engine has and loading it again, against the seconds that we take for both."""
    saved = bench.work / "usual-image.tar.gz"
    pack = 'docker save "$2" | gzip -1 > "$1" && sha256sum "$1" > "$1.sum"'
    office = bench.measured(["sh", "-c", pack, "sh", saved, name])
    engine.run("rmi", "-f", name)
    site = bench.measured(["sh", "-c", 'sha256sum -c "$1.sum" && gunzip -c "$1" | docker load', "sh", saved])
    saved.unlink()
    total = office.seconds + site.seconds
    return Row(subject, "docker save | gzip -1, and docker load", total, figure=total / ours, to="our build + stage")
