"""What a build will do, computed from a lock: bytes to fetch, parts, peak disk on both sides, flags and reasons."""

from __future__ import annotations

import dataclasses

from airbundle import engines
from airbundle.cache import Cache
from airbundle.choose import EnginePlan
from airbundle.choose.view import choice_lines
from airbundle.contract.lock import BundleLock, LockedFile, LockedModel
from airbundle.engines.base import Chooses
from airbundle.partwriter import part_sizes
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.record import record
from airbundle_onsite.units import human_bytes

_TAR_OVERHEAD = 2048
"""Bytes of headers and padding per file: a header, a PAX header for long names, and up to a block of zeros."""
_UNPACKED = 4
"""Wheels and gzip layers unpack to about this multiple; the build states the exact figure."""


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
    """The answer of `airbundle plan`. All sizes in bytes; those ahead of the build are estimates from above."""

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
    site_root: int
    site_images: int
    launch: tuple[LaunchPlan, ...]
    choice: EnginePlan | None = None


def plan_build(lock: BundleLock, cache: Cache, part_size: int) -> BuildPlan:
    """Compute the plan; reads nothing but the cache's index.

    Raises:
        UsageError: the engine cannot do what the spec asks.
    """
    rows = tuple(_rows(lock, cache))
    items = lock.items()
    payload = sum(item.size + _TAR_OVERHEAD for item in items)
    cached = sum(item.size for item in items if cache.has(item.sha256, item.size))
    fetch = sum(item.size for item in items) - cached
    wheels = sum(wheel.file.size for wheel in lock.wheels)
    models = sum(file.size for model in lock.models for file in model.files)
    images = sum(blob.size for image in lock.images for blob in image.blobs)
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
        office_peak=fetch + payload,
        site_root=models + wheels * (1 + _UNPACKED),
        site_images=images * (1 + _UNPACKED),
        launch=engine.plans(lock),
        choice=engine.choice(lock) if isinstance(engine, Chooses) else None,
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
        f"Peak disk here    about {human_bytes(plan.office_peak)} (fetched files and the bundle)",
        f"Peak disk on site about {human_bytes(plan.site_root)} under the installation root",
    ]
    if plan.site_images:
        lines.append(f"                  about {human_bytes(plan.site_images)} in the container engine's store")
    if plan.choice is not None:
        lines += ["", *choice_lines(plan.choice)]
    for launch in plan.launch:
        lines += ["", f"Launch plan {launch.id!r}: {launch.engine} {launch.engine_version} ({launch.runtime})"]
        lines.append(f"  {' '.join(launch.argv)}")
        for flag in launch.flags:
            source = f" [{flag.source}]" if flag.source else ""
            lines.append(f"  {flag.name} {flag.value}: {flag.reason}{source}".rstrip())
    return "\n".join(lines)


def _parts(sizes: tuple[int, ...]) -> str:
    if len(sizes) == 1:
        return "1 part"
    return f"{len(sizes)} parts of {human_bytes(sizes[0])}"
