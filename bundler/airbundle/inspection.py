"""`airbundle inspect`: what a bundle holds, as text."""

from __future__ import annotations

import datetime

from airbundle_onsite.capacity import peak_of
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.units import human_bytes


def manifest_text(manifest: BundleManifest, signer: str) -> str:
    """A page about a bundle whose small files have been checked."""
    made = datetime.datetime.fromtimestamp(manifest.created, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    payload, needs = manifest.payload, manifest.needs
    lines = [
        f"{manifest.name} {manifest.version}",
        f"  made      {made} by {manifest.tool}, {f'signed by {signer}' if signer else 'not signed'}",
        f"  for       {needs.profile.id} ({needs.profile.title}), runtime {needs.runtime}",
        f"  payload   {human_bytes(payload.size)} in {len(payload.parts)} part(s), {len(manifest.files)} files",
        *_compression_lines(manifest),
        *_peak_lines(manifest),
        f"  serves    http://{manifest.serving.host}:{manifest.serving.port}",
    ]
    for base in manifest.bases:
        taken = f"{len(base.files)} file(s), {human_bytes(sum(file.size for file in base.files))}"
        layers = f", {len(base.layers)} image layer(s)" if base.layers else ""
        lines.append(f"  builds on {base.title}, which the site must have: takes from {taken}{layers}")
    if manifest.rollback:
        lines.append(f"  leads     back from {manifest.rollback.version} (sequence {manifest.rollback.sequence})")
    for model in manifest.models:
        stored = model.quantization or model.format
        origin = f"{model.source} {model.revision}".rstrip()
        lines.append(f"  {model.role:9} {model.served_name}: {stored}, {human_bytes(model.size)}, from {origin}")
        lines += [f"            runs {code}" for code in model.custom_code]
    for image in manifest.images:
        lines.append(f"  image     {image.name}: {image.platform}, {human_bytes(image.size)}, {image.digest}")
    for wheel in manifest.wheels:
        asked = f", asked for by {', '.join(wheel.requested_by)}" if wheel.requested_by else ""
        lines.append(f"  wheel     {wheel.name} {wheel.version}{asked}")
    for launch in manifest.launch:
        lines.append(f"  launch    {launch.id}: {launch.engine} {launch.engine_version}: {' '.join(launch.argv)}")
    for test in manifest.smoke:
        lines.append(f"  smoke     {test.id}: expects {', '.join(test.expect) or 'any sensible text'}")
    return "\n".join(lines)


def _peak_lines(manifest: BundleManifest) -> list[str]:
    places = [f"{human_bytes(size)} {place}" for place, size in peak_of(manifest).places()]
    return [f"  {'peak disk' if number == 0 else '':9} {place}" for number, place in enumerate(places)]


def _compression_lines(manifest: BundleManifest) -> list[str]:
    segments = [each for entry in manifest.files for each in entry.segments if each.compressed is not None]
    if not segments:
        return []
    before, after = sum(each.size for each in segments), sum(each.packed for each in segments)
    text = f"{human_bytes(before)} take {human_bytes(after)} ({after / before:.0%})"
    return [f"            weights compressed: {text}; this needs {', '.join(manifest.features)} of its installer"]
