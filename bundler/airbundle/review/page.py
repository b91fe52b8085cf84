"""The page and the SBOM beside it.

Facts are gathered as lists and tables of text; the template only sets them. Everything is escaped there.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import replace

import jinja2

from airbundle.contract.lock import BundleLock
from airbundle.data import data_dir
from airbundle.rehearse.report import RehearsalReport
from airbundle.review.contents import content_tables, found_in, package_tables
from airbundle.review.launch import plan_view, smoke_table
from airbundle.review.rehearsed import rehearsal_view
from airbundle.review.tables import Column, Fact, Table, count, exact_bytes, moment
from airbundle.sbom.inventory import Inventory
from airbundle_onsite.capacity import peak_of
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.payload import OuterFile
from airbundle_onsite.contract.profile import GpuProfile
from airbundle_onsite.units import human_bytes

_GENERATED = (layout.MANIFEST, layout.CHECKSUMS, layout.SIGNATURE, layout.CONTENTS)


def review_files(
    lock: BundleLock, manifest: BundleManifest, inventory: Inventory, *, signer: str = ""
) -> dict[str, bytes]:
    """The SBOM and the page, by name.

    Args:
        lock: what is in the bundle.
        manifest: as it will be, with every outer file but these two.
        inventory: of the lock.
        signer: whose signature the bundle will get, when that is known now.
    """
    from airbundle.sbom.document import render_sbom  # a tenth of a second that only builds should pay

    sbom = render_sbom(lock, manifest, inventory)
    entry = OuterFile(layout.SBOM, len(sbom), hashlib.sha256(sbom).hexdigest())
    listed = replace(manifest, outer=(*manifest.outer, entry))
    return {layout.SBOM: sbom, layout.CONTENTS: render_contents(lock, listed, inventory, signer=signer)}


def render_contents(
    lock: BundleLock,
    manifest: BundleManifest,
    inventory: Inventory,
    *,
    signer: str = "",
    rehearsal: RehearsalReport | None = None,
) -> bytes:
    """The page alone; arguments as for `review_files`, and what a rehearsal showed when there was one."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_dir("templates")),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template(f"{layout.CONTENTS}.j2").render(
        name=manifest.name,
        version=manifest.version,
        description=lock.spec.bundle.description,
        summary=_summary(lock, manifest, signer),
        signer=signer,
        runtime=manifest.needs.runtime,
        loopback=_is_loopback(manifest.serving.host),
        address=f"{manifest.serving.host}:{manifest.serving.port}",
        models=manifest.models,
        wheels=manifest.wheels,
        images=manifest.images,
        custom_code=any(entry.custom_code for entry in manifest.models),
        gateway=bool(lock.spec.gateway),
        gpus=any(plan.gpus != "none" for plan in manifest.launch),
        default_root=layout.DEFAULT_ROOT,
        plans=[plan_view(plan, number) for number, plan in enumerate(manifest.launch, 1)],
        contents=list(content_tables(lock, manifest, inventory)),
        smoke=smoke_table(manifest.smoke),
        files=list(_file_tables(manifest)),
        licenses=count(sum(entry.role == "license" for entry in manifest.files), "file"),
        provenance=_provenance(lock, manifest),
        payload_bytes=exact_bytes(manifest.payload.size),
        many_parts=len(manifest.payload.parts) > 1000,
        unread=[(image.name, reason) for image in lock.images for reason in found_in(inventory, image).unread],
        appendix=list(package_tables(lock, inventory)),
        rehearsal=rehearsal_view(rehearsal) if rehearsal else None,
    )
    return text.encode()


# --- what a reader sees first -----------------------------------------------------------------------------


def _summary(lock: BundleLock, manifest: BundleManifest, signer: str) -> list[Fact]:
    needs, payload = manifest.needs, manifest.payload
    parts = count(len(payload.parts), "part")
    disk = "; ".join(f"{human_bytes(size)} {place}" for place, size in peak_of(manifest).places())
    facts = [
        ("Built", f"{moment(manifest.created)} by {manifest.tool}"),
        ("Signed by", signer or f"not known when this page was written; see {layout.SIGNATURE}"),
        ("For", f"{needs.profile.title} ({needs.profile.id}, {needs.profile.arch})"),
        *_hardware(lock),
        ("Runs as", "a container" if needs.runtime == "docker" else "a process of the user who installs it"),
        ("Engine", ", ".join(dict.fromkeys(f"{plan.engine} {plan.engine_version}" for plan in manifest.launch))),
        ("Answers at", f"http://{manifest.serving.host}:{manifest.serving.port}/v1"),
        ("Payload", f"{human_bytes(payload.size)}, {parts}, {count(len(manifest.files), 'file')}"),
        ("Peak disk", disk),
    ]
    return [(term, value) for term, value in facts if value]


def _hardware(lock: BundleLock) -> Iterable[Fact]:
    profile = lock.profile
    if profile.gpu is not None:
        yield "GPU", _gpu(profile.gpu)
    least = [human_bytes(profile.min_memory) + " of memory"] if profile.min_memory else []
    least += [f"glibc {profile.min_glibc}"] if profile.min_glibc else []
    least += [f"CPU flags {' '.join(profile.cpu_flags)}"] if profile.cpu_flags else []
    if least:
        yield "Host has at least", ", ".join(least)


def _gpu(gpu: GpuProfile) -> str:
    text = f"{gpu.count} × compute capability {gpu.capability}, {human_bytes(gpu.memory)} each"
    return f"{text}, driver {gpu.min_driver} or newer" if gpu.min_driver else text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- files and where they came from -----------------------------------------------------------------------


def _file_tables(manifest: BundleManifest) -> Iterable[Table]:
    columns = (Column("File", "code"), Column("Bytes", "number"), Column("SHA-256", "hash"))
    parts = tuple((part.name, exact_bytes(part.size), part.sha256) for part in manifest.payload.parts)
    yield Table("parts", "Parts of the payload", columns, parts)
    outer = sorted(manifest.outer, key=lambda each: each.name)
    rows = tuple((each.name, exact_bytes(each.size), each.sha256) for each in outer if each.name not in _GENERATED)
    yield Table("outer", "Beside the payload", columns, rows)
    config = [entry for entry in manifest.files if entry.role == "config"]
    if config:
        rows = tuple((entry.path, exact_bytes(entry.size), entry.sha256) for entry in config)
        yield Table("config", "Configuration and launchers in the payload", columns, rows)


def _provenance(lock: BundleLock, manifest: BundleManifest) -> list[Fact]:
    facts = [(name.replace("_", " ").capitalize(), value) for name, value in sorted(manifest.provenance.items())]
    facts.append(("Locked", moment(lock.created)))
    facts.append(("SHA-256 of the spec", lock.spec_sha256))
    for model in lock.models:
        skipped = ", ".join(f"{human_bytes(size)} ({reason})" for reason, size in sorted(model.skipped.items()))
        if skipped:
            facts.append((f"Left out of model {model.served_name}", skipped))
    return facts
