"""Orchestrates a build: fetched files → payload → manifest → checksums; the bundle appears whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airbundle import __version__, engines
from airbundle.assemble import PayloadPlan, plan_payload, write_payload
from airbundle.bundledir import claimed, counter, outer_entries, publish, require_space, write_manifest, write_synced
from airbundle.cache import Cache
from airbundle.compress.members import Compression, compress_members
from airbundle.contents import Contents, collect, lock_document
from airbundle.contract.lock import BundleLock, LockedImage
from airbundle.delta.thin import Difference, leave_out
from airbundle.modelproof import prove_models
from airbundle.outer import onsite_pyz, render_outer
from airbundle.rehearse.report import REPORT_FILE, RehearsalReport
from airbundle.review.page import render_contents, review_files
from airbundle.sbom.inventory import Inventory, take_inventory
from airbundle.signing import SigningKey, sign_all
from airbundle.smoketests import smoke_tests
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.base import Rollback
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.manifest import SCHEMA_VERSION, BundleManifest, HostNeeds, Serving, features_of
from airbundle_onsite.contract.payload import OuterFile, Payload
from airbundle_onsite.contract.record import decode_json, record
from airbundle_onsite.errors import FetchError, UsageError
from airbundle_onsite.system import Talk

_LATEST = 4_354_819_198  # the last moment of 2107, which a zip archive can name; tar could go on a little
LOCK_FILE = "bundle.lock.json"
PROOF_FILE = "closure-proof.json"


@record
class Built:
    """A finished bundle: its directory, its manifest, bytes of everything in it, and what compression did, if asked."""

    directory: Path
    manifest: BundleManifest
    size: int
    compression: Compression | None = None


def bundle_time(lock: BundleLock, environ: Mapping[str, str]) -> int:
    """SOURCE_DATE_EPOCH when set, else the lock's time: seconds since the epoch.

    Raises:
        UsageError: SOURCE_DATE_EPOCH is not a whole number.
    """
    text = environ.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return lock.created
    if not text.isdecimal() or int(text) > _LATEST:
        raise UsageError(
            f"SOURCE_DATE_EPOCH is {text!r}, needed a number of seconds up to {_LATEST}",
            remedy="unset it, or set a number",
        )
    return int(text)


def build(
    lock: BundleLock,
    cache: Cache,
    output: Path,
    *,
    part_size: int,
    environ: Mapping[str, str],
    talk: Talk,
    replace: bool = False,
    config: Mapping[str, bytes] | None = None,
    examine: Callable[[Path], Mapping[str, bytes]] | None = None,
    keys: Sequence[SigningKey] = (),
    difference: Difference | None = None,
    compress: bool = False,
) -> Built:
    """Assemble a bundle from a lock whose files are all in the cache.

    Args:
        lock: what to pack.
        cache: where the files are.
        output: directory that will hold ``<name>-<version>/``.
        part_size: bytes per part; 0 for a single one.
        environ: for SOURCE_DATE_EPOCH.
        talk: progress.
        replace: whether a bundle of that name may be replaced (once the new one is whole).
        config: further files for config/, by name.
        examine: called with the directory of the whole bundle before that gets its name; the files it returns, by
            name, go beside the parts. What it raises keeps the bundle from appearing.
        keys: sign it, last of all.
        difference: what the site has, and so is left out.
        compress: compress weights that shrink.

    Raises:
        UsageError: the bundle exists, or the output is too small.
        FetchError: a file is missing from the cache, or a model is not whole.
    """
    _require_cached(lock, cache)
    lock = prove_models(lock, cache, talk)
    final = _place(output, lock, difference, replace=replace)
    draft = _draft(lock, cache, talk, environ, config=config or {}, difference=difference, compress=compress)
    output.mkdir(parents=True, exist_ok=True)
    require_space(output, draft.payload_plan.size)
    partial = output / f".{final.name}.partial"
    with claimed(partial):
        signer = ", ".join(key.fingerprint for key in keys)
        manifest = _write(partial, draft, part_size, talk, signer)
        if examine is not None:
            found = dict(examine(partial))
            found |= _reviewed(draft, manifest, found, signer)
            manifest = _add_beside(partial, manifest, found)
        if keys:
            write_synced(partial / layout.SIGNATURE, sign_all((partial / layout.MANIFEST).read_bytes(), keys), 0o644)
        publish(partial, final)
    return Built(final, manifest, sum(path.stat().st_size for path in final.iterdir()), draft.compression)


@record
class _Draft:
    """Everything that is decided before a byte is written."""

    lock: BundleLock
    contents: Contents
    compression: Compression | None
    inventory: Inventory
    payload_plan: PayloadPlan
    plans: tuple[LaunchPlan, ...]
    created: int


def _place(output: Path, lock: BundleLock, difference: Difference | None, *, replace: bool) -> Path:
    """The directory that the bundle will have. Raises UsageError when it is there and may not be replaced."""
    name, version = lock.spec.bundle.name, lock.spec.bundle.version
    final = output / directory_name(name, version, difference.rollback if difference else None)
    if final.exists() and not replace:
        raise UsageError(
            f"{final} exists already",
            remedy=f"give the bundle a new version with --set bundle.version={next_version(version)}, "
            "or replace it with --force",
        )
    return final


def _draft(
    lock: BundleLock,
    cache: Cache,
    talk: Talk,
    environ: Mapping[str, str],
    *,
    config: Mapping[str, bytes],
    difference: Difference | None,
    compress: bool,
) -> _Draft:
    engine = engines.create(lock.spec.engine.name)
    plans = tuple(engine.plans(lock))
    require_images(plans, lock.images)
    contents = collect(lock, cache, {LOCK_FILE: lock_document(lock), **engine.config_files(lock), **config})
    if difference is not None:
        contents = leave_out(contents, lock, cache, difference, talk)
    compression = compress_members(contents.members, cache, talk) if compress else None
    if compression is not None:
        contents = dataclasses.replace(contents, members=compression.members)
    created = bundle_time(lock, environ)
    payload_plan = plan_payload(contents.members, created)
    return _Draft(lock, contents, compression, take_inventory(lock, cache), payload_plan, plans, created)


def _require_cached(lock: BundleLock, cache: Cache) -> None:
    missing = [item for item in lock.items() if not cache.has(item.sha256, item.size)]
    if missing:
        raise FetchError(
            f"{len(missing)} file(s) of the lock are not in the cache {cache.root}",
            details=[f"{item.path} ({item.size} bytes)" for item in missing],
            remedy="run the build where the sources can be reached",
        )


def directory_name(name: str, version: str, rollback: Rollback | None = None) -> str:
    """What a bundle's directory is called; one that leads back says so, since the full one has the plain name."""
    return f"{name}-{version}" + (f"-from-{rollback.version}" if rollback else "")


def next_version(version: str) -> str:
    """A version that could follow: the last number in it, plus one; with ``-v2`` when there is none."""
    found = re.search(r"(\d+)(\D*)$", version)
    if found is None:
        return f"{version}-v2"
    return f"{version[: found.start()]}{int(found[1]) + 1:0{len(found[1])}}{found[2]}"


def require_images(plans: Sequence[LaunchPlan], images: Sequence[LockedImage]) -> None:
    """What will run decides which images a bundle needs: each plan's must be packed, under the very name it starts.

    Raises:
        UsageError: naming every plan and the image that it would look for in vain, or names that are given twice.
    """
    packed = [image.name for image in images]
    absent = [f"launch plan {plan.id} starts {plan.image}" for plan in plans if plan.image and plan.image not in packed]
    absent += [f"two images are called {name}" for name in sorted({name for name in packed if packed.count(name) > 1})]
    if absent:
        raise UsageError(
            f"the images that will run are not the images that are packed ({', '.join(packed) or 'none'})",
            details=absent,
            remedy="add the image to the spec, or correct its name; nothing can be pulled at the site",
        )


def _write(directory: Path, draft: _Draft, part_size: int, talk: Talk, signer: str) -> BundleManifest:
    lock, created = draft.lock, draft.created
    advance = counter(talk, "assembling", draft.payload_plan.size)
    payload = write_payload(draft.payload_plan, directory, part_size=part_size, advance=advance)
    bare = _manifest(draft, payload, ())
    outer = {**render_outer(bare), layout.ONSITE: onsite_pyz(created)}
    outer |= review_files(lock, dataclasses.replace(bare, outer=outer_entries(outer)), draft.inventory, signer=signer)
    manifest = _manifest(draft, payload, outer_entries(outer))
    for name, data in sorted(outer.items()):
        write_synced(directory / name, data, 0o755 if name == layout.INSTALLER else 0o644)
    write_manifest(directory, manifest)
    return manifest


def _reviewed(draft: _Draft, manifest: BundleManifest, found: Mapping[str, bytes], signer: str) -> dict[str, bytes]:
    """The reviewer's page again, with what the rehearsal showed; nothing when there was none."""
    if REPORT_FILE not in found:
        return {}
    report = decode_json(RehearsalReport, found[REPORT_FILE], REPORT_FILE)
    kept = [item for item in manifest.outer if item.name != layout.CONTENTS]
    listed = dataclasses.replace(manifest, outer=(*kept, *outer_entries(found)))
    page = render_contents(draft.lock, listed, draft.inventory, signer=signer, rehearsal=report)
    return {layout.CONTENTS: page}


def _add_beside(directory: Path, manifest: BundleManifest, files: Mapping[str, bytes]) -> BundleManifest:
    """Put more files beside the parts, which stay as they are, or others in the place of some."""
    for name, data in files.items():
        write_synced(directory / name, data, 0o644)
    kept = [item for item in manifest.outer if item.name not in files]
    outer = sorted((*kept, *outer_entries(files)), key=lambda item: item.name)
    manifest = dataclasses.replace(manifest, outer=tuple(outer))
    write_manifest(directory, manifest)
    return manifest


def _manifest(draft: _Draft, payload: Payload, outer: tuple[OuterFile, ...]) -> BundleManifest:
    lock, contents, created = draft.lock, draft.contents, draft.created
    spec, files = lock.spec, draft.payload_plan.entries()
    kept = sum(member.size for member in contents.members if member.role != "image")
    return BundleManifest(
        schema_version=SCHEMA_VERSION,
        name=spec.bundle.name,
        version=spec.bundle.version,
        sequence=created,
        created=created,
        tool=f"airbundle {__version__}",
        payload=payload,
        outer=outer,
        files=files,
        needs=HostNeeds(
            profile=lock.profile,
            runtime=spec.runtime.kind,
            disk=kept + contents.wheel_bytes,
            image_disk=contents.image_bytes,
            wheel_tags=contents.wheel_tags if spec.runtime.kind == "venv" else (),
        ),
        serving=Serving(spec.serving.host, spec.serving.port),
        images=contents.images,
        wheels=contents.wheels,
        models=contents.models,
        launch=draft.plans,
        smoke=smoke_tests(lock),
        provenance=_provenance(lock),
        bases=contents.bases,
        rollback=contents.rollback,
        features=features_of(files),
    )


def _provenance(lock: BundleLock) -> dict[str, str]:
    facts = {"locked_with": lock.tool}
    for image in lock.images:
        if image.dockerfile:
            digest = hashlib.sha256(image.dockerfile.encode()).hexdigest()
            facts[f"image_built_here.{image.name}"] = (
                f"on {image.source.partition(':')[2]}, by the Dockerfile in the lock (sha256:{digest}); "
                "a build elsewhere may come out different"
            )
    if lock.wheel_settings:
        facts["wheels_resolved_with"] = lock.wheel_settings.resolver
        facts["wheels_resolved_for"] = f"Python {lock.wheel_settings.python}, {lock.wheel_settings.platform}"
    return facts
