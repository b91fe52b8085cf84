"""The reviewer's view of a bundle: contents.html, a page that needs nothing but itself, and the SBOM beside it.

Facts are gathered here as lists and tables of text; the template only sets them. Everything is escaped there.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

import jinja2

from airbundle.contract.lock import BundleLock, LockedImage, LockedModel, LockedWheel
from airbundle.data import data_dir
from airbundle.sbom.inventory import ImageInventory, Inventory, Package
from airbundle.sbom.purl import distribution_of
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.artifacts import ModelEntry
from airbundle_onsite.contract.launch import LaunchPlan, SmokeTest
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.payload import OuterFile
from airbundle_onsite.contract.profile import GpuProfile
from airbundle_onsite.contract.record import record
from airbundle_onsite.render import human_bytes, human_seconds

PLACEHOLDERS = {
    "config": "the release's config directory",
    "host": "address to listen on",
    "model": "the model's directory",
    "models": "directory of all models, by name",
    "port": "port to listen on",
    "python": "the Python that runs the engine",
    "served_name": "the model's name in the API",
    "site": "directory of the installed wheels",
    "state": "a directory the engine may write to",
    "threads": "physical cores of the host",
}
"""What the site puts in for each name in braces."""

_NAME = re.compile(r"(?<!{){(\w+)}(?!})")
_UNKNOWN = "not declared"
_KINDS = {"deb": "Debian packages", "rpm": "RPM packages", "apk": "Alpine packages", "python": "Python projects"}
_GENERATED = (layout.MANIFEST, layout.CHECKSUMS, layout.SIGNATURE, layout.CONTENTS)

Fact = tuple[str, str]
"""A term and what is so."""


@record
class Column:
    """A table's column.

    Attributes:
        kind: ``number`` is set to the right; ``word``, ``code`` and ``hash`` in a fixed width: one that is never
            broken, one that is broken where it must be, and one that is broken anywhere.
    """

    title: str
    kind: Literal["text", "number", "word", "code", "hash"] = "text"


@record
class Table:
    """A table whose first column names the row. A line break inside a cell is kept."""

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@record
class PlanView:
    """One way to start the engine."""

    plan: LaunchPlan
    facts: tuple[Fact, ...]
    command: str
    tables: tuple[Table, ...]


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


def render_contents(lock: BundleLock, manifest: BundleManifest, inventory: Inventory, *, signer: str = "") -> bytes:
    """The page alone; arguments as for `review_files`."""
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
        plans=[_plan_view(plan, number) for number, plan in enumerate(manifest.launch, 1)],
        contents=list(_content_tables(lock, manifest, inventory)),
        smoke=_smoke_table(manifest.smoke),
        files=list(_file_tables(manifest)),
        licenses=_count(sum(entry.role == "license" for entry in manifest.files), "file"),
        provenance=_provenance(lock, manifest),
        payload_bytes=_bytes(manifest.payload.size),
        many_parts=len(manifest.payload.parts) > 1000,
        unread=[(image.name, reason) for image in lock.images for reason in _found(inventory, image).unread],
        appendix=list(_package_tables(lock, inventory)),
    )
    return text.encode()


# --- what a reader sees first -----------------------------------------------------------------------------


def _summary(lock: BundleLock, manifest: BundleManifest, signer: str) -> list[Fact]:
    needs, payload = manifest.needs, manifest.payload
    parts = _count(len(payload.parts), "part")
    disk = f"{human_bytes(needs.disk)} under the installation root"
    if needs.image_disk:
        disk += f", {human_bytes(needs.image_disk)} in the container engine's store"
    facts = [
        ("Built", f"{_moment(manifest.created)} by {manifest.tool}"),
        ("Signed by", signer or f"not known when this page was written; see {layout.SIGNATURE}"),
        ("For", f"{needs.profile.title} ({needs.profile.id}, {needs.profile.arch})"),
        *_hardware(lock),
        ("Runs as", "a container" if needs.runtime == "docker" else "a process of the user who installs it"),
        ("Engine", ", ".join(dict.fromkeys(f"{plan.engine} {plan.engine_version}" for plan in manifest.launch))),
        ("Answers at", f"http://{manifest.serving.host}:{manifest.serving.port}/v1"),
        ("Payload", f"{human_bytes(payload.size)}, {parts}, {_count(len(manifest.files), 'file')}"),
        ("Disk needed", disk),
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


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- how it is started ------------------------------------------------------------------------------------


def _plan_view(plan: LaunchPlan, number: int) -> PlanView:
    flags = tuple((flag.name, _plain(flag.value), flag.reason, flag.source) for flag in plan.flags)
    env = tuple((name, _plain(value)) for name, value in sorted(plan.env.items()))
    used = sorted({name for text in (*plan.argv, *plan.env.values()) for name in _NAME.findall(text)})
    mounts = tuple((m.target, m.source, "read-only" if m.read_only else "may be written to") for m in plan.mounts)
    tables = (
        Table(
            f"flags-{number}",
            "Flags and why they are set so",
            (Column("Flag", "word"), Column("Value", "code"), Column("Reason"), Column("Known from")),
            flags,
        ),
        Table(f"env-{number}", "Environment", (Column("Variable", "word"), Column("Value", "code")), env),
        Table(
            f"mounts-{number}",
            "Further directories it sees",
            (Column("In the container", "word"), Column("In the release", "code"), Column("Access")),
            mounts,
        ),
        Table(
            f"names-{number}",
            "What the site puts in for names in braces",
            (Column("Name", "word"), Column("Stands for")),
            tuple((f"{{{name}}}", PLACEHOLDERS[name]) for name in used),
        ),
    )
    return PlanView(plan, tuple(_plan_facts(plan)), _command(plan.argv), tuple(table for table in tables if table.rows))


def _plan_facts(plan: LaunchPlan) -> Iterable[Fact]:
    yield "Engine", f"{plan.engine} {plan.engine_version}".strip()
    if plan.image:
        yield "Image", plan.image
    yield "Model", plan.model
    yield "GPUs", {"none": "none", "all": "all of the host"}.get(plan.gpus, plan.gpus)
    needs = plan.needs
    least = [f"{human_bytes(needs.memory)} of host memory"] if needs.memory else []
    least += [f"{human_bytes(needs.gpu_memory)} on each GPU"] if needs.gpu_memory else []
    least += [f"compute capability {needs.capability}"] if needs.capability else []
    least += [f"Python {needs.python}"] if needs.python else []
    least += [f"CPU flags {' '.join(needs.cpu_flags)}"] if needs.cpu_flags else []
    if least:
        yield "Needs", ", ".join(least)
    if plan.ipc_host:
        yield "Shared memory", "the host's own (IPC namespace of the host)"
    elif plan.shm_bytes:
        yield "Shared memory", f"{human_bytes(plan.shm_bytes)}, its own"
    yield "Time to load", f"at most {human_seconds(plan.readiness.load_seconds)}, then it counts as failed"


def _plain(text: str) -> str:
    """A template's text with its literal braces as the engine gets them."""
    return text.replace("{{", "{").replace("}}", "}")


def _command(argv: Sequence[str]) -> str:
    """The command, an option a line."""
    lines = [""]
    for word in map(_plain, argv):
        shown = shlex.quote(word) if not word or re.search(r"[\s'\"\\]", word) else word
        if word.startswith("-") and lines[-1]:
            lines.append(f"    {shown}")
        else:
            lines[-1] = f"{lines[-1]} {shown}" if lines[-1] else shown
    return " \\\n".join(lines)


def _smoke_table(tests: Sequence[SmokeTest]) -> Table:
    return Table(
        "smoke",
        "Questions that must be answered before this version takes over",
        (Column("Test"), Column("Asks"), Column("Must contain", "code"), Column("Must not contain", "code")),
        tuple((test.id, _question(test.body), "\n".join(test.expect), "\n".join(test.reject)) for test in tests),
    )


def _question(body: Mapping[str, object]) -> str:
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, (list, tuple)) and messages else None
    if isinstance(last, Mapping) and isinstance(last.get("content"), str):
        return str(last["content"])
    return json.dumps(dict(body), ensure_ascii=False, sort_keys=True, default=str)


# --- what is inside ---------------------------------------------------------------------------------------


def _content_tables(lock: BundleLock, manifest: BundleManifest, inventory: Inventory) -> Iterable[Table]:
    read = {entry.served_name: entry for entry in manifest.models}
    if lock.models:
        yield Table(
            "models",
            "Models",
            (Column("Model"), Column("Format"), Column("From"), Column("Size", "number"), Column("Licence")),
            tuple(_model_row(model, read.get(model.served_name, model)) for model in lock.models),
        )
        code = tuple((path, model.served_name) for model in lock.models for path in _code(model, read))
        if code:
            columns = (Column("File and origin", "code"), Column("Model"))
            yield Table("code", "Python code that comes with models and is run by the engine", columns, code)
    for number, model in enumerate(lock.models, 1):
        yield Table(
            f"model-files-{number}",
            f"Files of model {model.served_name}",
            (Column("File", "code"), Column("Size", "number"), Column("SHA-256", "hash")),
            tuple((file.path, _bytes(file.size), file.sha256) for file in model.files),
        )
    if lock.images:
        yield Table(
            "images",
            "Container images",
            (Column("Image"), Column("System"), Column("Size", "number"), Column("Source and digests", "hash")),
            tuple(_image_row(image, inventory) for image in lock.images),
        )
    if lock.wheels:
        yield Table(
            "wheels",
            "Python packages (wheels)",
            (
                Column("Package"),
                Column("Version"),
                Column("Licence"),
                Column("Asked for by"),
                Column("Size", "number"),
                Column("File and SHA-256", "hash"),
            ),
            tuple(_wheel_row(wheel, inventory) for wheel in lock.wheels),
        )


def _model_row(model: LockedModel, read: LockedModel | ModelEntry) -> tuple[str, ...]:
    role = "" if model.role == "model" else f"\n({model.role})"
    source = f"{model.source}\nrevision {model.revision}" if model.revision else model.source
    size = human_bytes(sum(file.size for file in model.files))
    # A GGUF file's own word for how it is stored begins with the format.
    stored = read.quantization.removeprefix(model.format).strip() or model.facts.get("dtype", "")
    return (f"{model.served_name}{role}", f"{model.format} {stored}".strip(), source, size, model.license or _UNKNOWN)


def _code(model: LockedModel, read: Mapping[str, ModelEntry]) -> tuple[str, ...]:
    return read[model.served_name].custom_code if model.served_name in read else model.custom_code


def _image_row(image: LockedImage, inventory: Inventory) -> tuple[str, ...]:
    found = _found(inventory, image)
    size = sum({blob.sha256: blob.size for blob in (*image.blobs, image.config, image.manifest)}.values())
    user = f"user {image.user}" if image.user else "user root, as the image names none"
    system = " ".join(filter(None, distribution_of(found.packages)))
    counts = f"{_count(len(found.of_system()), 'system package')}, {_count(len(found.of_python()), 'Python project')}"
    described = "\n".join(filter(None, (system, image.platform, user, counts)))
    digests = f"there {image.source_digest}\nhere  sha256:{image.manifest.sha256}"
    return (image.name, described, human_bytes(size), f"{image.source}\n{digests}")


def _wheel_row(wheel: LockedWheel, inventory: Inventory) -> tuple[str, ...]:
    licenses = "\n".join(inventory.licenses.get(wheel.file.path, ())) or _UNKNOWN
    asked = ", ".join("the spec" if name == "spec" else name for name in wheel.requested_by) or "the spec"
    index = "" if wheel.index == "pypi" else f"\nfrom {wheel.index}"
    if wheel.built_from:
        index += (
            f"\nbuilt from {wheel.built_from.get('sdist', 'its source')} {wheel.built_from.get('place', '')}".rstrip()
        )
    return (
        wheel.name,
        wheel.version,
        licenses,
        asked,
        human_bytes(wheel.file.size),
        f"{wheel.file.path}\n{wheel.file.sha256}{index}",
    )


def _found(inventory: Inventory, image: LockedImage) -> ImageInventory:
    return inventory.images.get(image.name, ImageInventory())


def _package_tables(lock: BundleLock, inventory: Inventory) -> Iterable[Table]:
    for number, image in enumerate(lock.images, 1):
        kinds: dict[str, list[Package]] = {}
        for package in _found(inventory, image).packages:
            kinds.setdefault(package.kind, []).append(package)
        for kind, packages in sorted(kinds.items()):
            yield Table(
                f"packages-{number}-{kind}",
                f"{_KINDS[kind]} in image {image.name}: {len(packages)}",
                (Column("Package"), Column("Version")),
                tuple((package.name, package.version) for package in packages),
            )


# --- files and where they came from -----------------------------------------------------------------------


def _file_tables(manifest: BundleManifest) -> Iterable[Table]:
    columns = (Column("File", "code"), Column("Bytes", "number"), Column("SHA-256", "hash"))
    parts = tuple((part.name, _bytes(part.size), part.sha256) for part in manifest.payload.parts)
    yield Table("parts", "Parts of the payload", columns, parts)
    outer = sorted(manifest.outer, key=lambda each: each.name)
    rows = tuple((each.name, _bytes(each.size), each.sha256) for each in outer if each.name not in _GENERATED)
    yield Table("outer", "Beside the payload", columns, rows)
    config = [entry for entry in manifest.files if entry.role == "config"]
    if config:
        rows = tuple((entry.path, _bytes(entry.size), entry.sha256) for entry in config)
        yield Table("config", "Configuration and launchers in the payload", columns, rows)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _bytes(size: int) -> str:
    return f"{size:,}".replace(",", "\N{NO-BREAK SPACE}")


def _provenance(lock: BundleLock, manifest: BundleManifest) -> list[Fact]:
    facts = [(name.replace("_", " ").capitalize(), value) for name, value in sorted(manifest.provenance.items())]
    facts.append(("Locked", _moment(lock.created)))
    facts.append(("SHA-256 of the spec", lock.spec_sha256))
    for model in lock.models:
        skipped = ", ".join(f"{human_bytes(size)} ({reason})" for reason, size in sorted(model.skipped.items()))
        if skipped:
            facts.append((f"Left out of model {model.served_name}", skipped))
    return facts
