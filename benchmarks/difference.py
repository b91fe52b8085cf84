"""Sizes: what one flipped byte costs to repair, and what a fine-tune ships; and the time of that upgrade."""

from __future__ import annotations

import shutil
from pathlib import Path

from airbundle_onsite.contract import layout
from benchmarks.bench import Aim, Bench, Row, best, gib, payload_bytes
from benchmarks.inputs import write_gguf
from benchmarks.throughput import VENV

_TENSORS, _CHANGED = 200, 10  # 5 %


def difference_rows(bench: Bench, size: int) -> None:
    """Rows for a model of `size` bytes in 200 tensors, and its fine-tune that changes ten of them."""
    models = {"v1": bench.work / "base.gguf", "v2": bench.work / "tuned.gguf"}
    write_gguf(models["v1"], size, tensors=_TENSORS)
    write_gguf(models["v2"], size, tensors=_TENSORS, changed=_CHANGED)
    specs = {version: bench.spec("bench-tune", model, VENV, version) for version, model in models.items()}
    bundles = {version: bench.dist / f"bench-tune-{version}" for version in models}
    for spec in specs.values():
        bench.build(spec, part_size="1GB")
    _repair_rows(bench, bundles["v1"])
    root, subject = (
        bench.work / "site",
        f"{gib(size)} model and its fine-tune, {_CHANGED} of {_TENSORS} tensors changed",
    )
    first = bench.fresh(bundles["v1"], root)
    bench.add(Row(subject, "install.sh --stage of v1", first.seconds))
    whole = bench.stage(bundles["v2"], root)
    ratio, to = whole.seconds / first.seconds, "installing v1"
    bench.add(Row(subject, "upgrade from the full v2", whole.seconds, figure=ratio, to=to, memory=whole.memory))
    full = payload_bytes(bundles["v2"])
    built = best(lambda: bench.build(specs["v2"], "--base", bundles["v1"], part_size="1GB"))
    thin = payload_bytes(bundles["v2"])
    ratio, to = thin / full, "the full bytes"
    bench.add(Row(subject, "v2 by difference: size", built.seconds, thin, ratio, to, Aim("≤", 0.06), built.memory))
    bench.fresh(bundles["v1"], root)
    upgraded = bench.stage(bundles["v2"], root)
    ratio, to = upgraded.seconds / first.seconds, "installing v1"
    bench.add(Row(subject, "upgrade from v2 by difference", upgraded.seconds, None, ratio, to, None, upgraded.memory))
    for model in models.values():
        bench.forget(model)
    for path in (root, *bundles.values()):
        shutil.rmtree(path)


def _repair_rows(bench: Bench, bundle: Path) -> None:
    """One byte of the first part is wrong at the site; the office sends what is needed."""
    request, answer, root = bench.work / "request.json", bench.work / "repair", bench.work / "site"
    part = bundle / layout.part_name(0)
    _flip(part)
    asked = bench.install_sh(bundle, "--repair-request", request, "--root", root)
    _flip(part)
    made = bench.airbundle("repair", bundle, "--request", request, "-o", answer, "--quiet")
    (directory,) = (path for path in answer.iterdir() if path.is_dir())
    size, piece = payload_bytes(directory), min(layout.PIECE_SIZE, part.stat().st_size)
    everything = sum(path.stat().st_size for path in directory.iterdir())
    subject = "Repair of one flipped byte"
    bench.add(Row(subject, "install.sh --repair-request", asked.seconds))
    bench.add(Row(subject, "airbundle repair", made.seconds))
    bench.add(Row(subject, "bytes of parts sent", None, size, size / piece, "one piece", Aim("≤", 1)))
    bench.add(Row(subject, "all files sent", None, everything, everything / piece, "one piece"))
    shutil.rmtree(answer)


def _flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
