"""What a build will do, computed from a lock: bytes to fetch, parts, peak disk on both sides, flags and reasons."""

from __future__ import annotations

import dataclasses

from airbundle import engines
from airbundle.cache import Cache
from airbundle.choose import EnginePlan
from airbundle.choose.view import choice_lines
from airbundle.compress.members import Foreseen, foresee
from airbundle.contract.lock import BundleLock, LockedFile, LockedModel
from airbundle.delta.thin import Difference, preview
from airbundle.engines.base import Chooses
from airbundle.partwriter import part_sizes
from airbundle_onsite.capacity import PeakDisk, peak_disk
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.record import record
from airbundle_onsite.system import Silent, Talk
from airbundle_onsite.units import human_bytes

_SILENT = Silent()
_TAR_OVERHEAD = 2048
"""Bytes of headers and padding per file: a header, a PAX header for long names, and up to a block of zeros."""
_OWN = 256 * 1024
"""Bytes for what the build adds of its own, such as the closure proof: 20 kB for a few wheels, more for many."""
_UNPACKED = 4
"""Wheels unpack to about this multiple; the build states the exact figure."""


@record
class Row:
    """One thing the bundle holds: what it is, where it comes from, bytes, how many of them the cache has, remarks."""

    kind: str
    name: str
    source: str
    size: int
    cached: int
    notes: tuple[str, ...] = ()


@record
class BuildPlan:
    """The answer of `airbundle plan`. All sizes in bytes; those ahead of the build are estimates from above.

    Attributes:
        fetch, cached: of the files of the lock.
        payload, parts: of the payload, and of each part of it.
        office_peak: of fetched files and the bundle, and of compressed weights in the cache.
        peak: on the medium and at the site.
        bases: titles of releases that the site must have; empty for a full bundle.
        full: of the payload if nothing were left out.
        compared: whether files that differ from a base's were compared by tensor.
        compression: what is known of it beforehand; None when none is wanted.
        Others: see their classes.
    """

    name: str
    version: str
    profile: str
    runtime: str
    rows: tuple[Row, ...]
    fetch: int
    cached: int
    payload: int
    parts: tuple[int, ...]
    office_peak: int
    peak: PeakDisk
    launch: tuple[LaunchPlan, ...]
    choice: EnginePlan | None = None
    bases: tuple[str, ...] = ()
    full: int = 0
    compared: bool = True
    compression: Foreseen | None = None


def plan_build(
    lock: BundleLock,
    cache: Cache,
    part_size: int,
    difference: Difference | None = None,
    talk: Talk = _SILENT,
    *,
    compress: bool = False,
) -> BuildPlan:
    """Compute the plan. Without a difference nothing is read but the cache's index; with one, see `preview`.

    Args:
        lock: what to pack.
        cache: what need not be fetched.
        part_size: bytes per part; 0 for a single one.
        difference: what the site has, and so is left out.
        talk: progress while tensors are compared.
        compress: whether weights are to be compressed.

    Raises:
        UsageError: the engine cannot do what the spec asks.
    """
    rows = tuple(_rows(lock, cache))
    items = lock.items()
    packed = preview(lock, cache, difference, talk)
    compression = foresee(packed.members, cache) if compress else None
    payload = packed.size + len(packed.members) * _TAR_OVERHEAD + _OWN - (compression.saved if compression else 0)
    cached = sum(item.size for item in items if cache.has(item.sha256, item.size))
    fetch = sum(item.size for item in items) - cached
    wheels = sum(wheel.file.size for wheel in lock.wheels)
    models = sum(file.size for model in lock.models for file in model.files)
    blobs = {blob.sha256: blob.size for image in lock.images for blob in image.blobs}
    layers = sum(size for sha256, size in blobs.items() if f"sha256:{sha256}" not in packed.layers)
    engine = engines.create(lock.spec.engine.name)
    return BuildPlan(
        name=lock.spec.bundle.name,
        version=lock.spec.bundle.version,
        profile=lock.profile.id,
        runtime=lock.spec.runtime.kind,
        rows=rows,
        fetch=fetch,
        cached=cached,
        payload=payload,
        parts=tuple(part_sizes(payload, part_size)),
        office_peak=fetch + payload + (compression.untried if compression else 0),
        peak=peak_disk(bundle=payload, release=models + wheels * (1 + _UNPACKED), packed=layers),
        launch=engine.plans(lock),
        choice=engine.choice(lock) if isinstance(engine, Chooses) else None,
        bases=packed.bases,
        full=sum(item.size + _TAR_OVERHEAD for item in items) + _OWN,
        compared=packed.exact,
        compression=compression,
    )


def _rows(lock: BundleLock, cache: Cache) -> list[Row]:
    rows = [
        dataclasses.replace(
            _row(model.role, model.served_name, model.source, model.files, cache), notes=_model_notes(model)
        )
        for model in lock.models
    ]
    rows += [
        _row("image", image.name, image.source, (image.manifest, image.config, *image.blobs), cache)
        for image in lock.images
    ]
    rows += [_row("wheel", f"{wheel.name} {wheel.version}", wheel.index, (wheel.file,), cache) for wheel in lock.wheels]
    return rows


def _row(kind: str, name: str, source: str, files: tuple[LockedFile, ...], cache: Cache) -> Row:
    size = sum(file.size for file in files)
    cached = sum(file.size for file in files if cache.has(file.sha256, file.size))
    return Row(kind, name, source, size, cached)


def _model_notes(model: LockedModel) -> tuple[str, ...]:
    """What is known of a model, and what of its source is left out."""
    notes = [f"weights: {model.quantization}"] if model.quantization else []
    if model.custom_code:
        notes.append(f"Python code that the engine runs: {', '.join(model.custom_code)}")
    notes += [f"left out: {human_bytes(size)}, {why}" for why, size in model.skipped.items()]
    return tuple(notes)


def plan_text(plan: BuildPlan) -> str:
    """The plan for a person."""
    lines = [f"{plan.name} {plan.version} for {plan.profile}, runtime {plan.runtime}", "", "Contents"]
    width = max((len(row.name) for row in plan.rows), default=0)
    for row in plan.rows:
        state = "in the cache" if row.cached == row.size else f"to fetch: {human_bytes(row.size - row.cached)}"
        lines.append(f"  {row.kind:5}  {row.name:{width}}  {human_bytes(row.size):>9}  {state:22}  {row.source}")
        lines += [f"         {note}" for note in row.notes]
    lines += [
        "",
        f"To fetch          {human_bytes(plan.fetch)} ({human_bytes(plan.cached)} in the cache)",
        f"Payload           about {human_bytes(plan.payload)} in {_parts(plan.parts)}",
        *_compression_lines(plan.compression),
        *_difference_lines(plan),
        f"Peak disk         about {human_bytes(plan.office_peak)} here (fetched files and the bundle)",
        *(f"                  about {human_bytes(count)} {place}" for place, count in plan.peak.places()),
    ]
    if plan.choice is not None:
        lines += ["", *choice_lines(plan.choice)]
    for launch in plan.launch:
        lines += ["", f"Launch plan {launch.id!r}: {launch.engine} {launch.engine_version} ({launch.runtime})"]
        lines.append(f"  {' '.join(launch.argv)}")
        for flag in launch.flags:
            source = f" [{flag.source}]" if flag.source else ""
            lines.append(f"  {flag.name} {flag.value}: {flag.reason}{source}".rstrip())
    return "\n".join(lines)


def _compression_lines(found: Foreseen | None) -> list[str]:
    if found is None:
        return []
    lines = []
    if found.saved:
        lines.append(f"Compression       {human_bytes(found.saved)} of {human_bytes(found.weights)} need not travel")
    if found.untried:
        lines.append(
            f"To compress       {human_bytes(found.untried)} of weights, counted in full here: what shrinks, and how "
            "far, shows when it is done"
        )
    return lines or [f"Compression       nothing: {human_bytes(found.weights)} of weights do not shrink"]


def _difference_lines(plan: BuildPlan) -> list[str]:
    if not plan.bases:
        return []
    lines = [
        f"                  of about {human_bytes(plan.full)} in full: "
        f"it builds on {', '.join(plan.bases)}, which the site must have"
    ]
    if not plan.compared:
        lines.append("                  less when built: weights still to fetch were not compared by tensor")
    return lines


def _parts(sizes: tuple[int, ...]) -> str:
    if len(sizes) == 1:
        return "1 part"
    return f"{len(sizes)} parts of {human_bytes(sizes[0])}"
