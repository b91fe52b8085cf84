"""Orchestrates a build: fetched files → payload → manifest → checksums; the bundle appears whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from airbundle import __version__, engines
from airbundle.assemble import PayloadPlan, plan_payload, write_payload
from airbundle.cache import Cache
from airbundle.contents import Contents, collect, lock_document
from airbundle.contract.lock import BundleLock, LockedImage
from airbundle.modelproof import prove_models
from airbundle.outer import onsite_pyz, render_outer
from airbundle.reviewer import review_files
from airbundle.sbom.inventory import Inventory, take_inventory
from airbundle.signing import SigningKey, sign_all
from airbundle.smoketests import smoke_tests
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.manifest import (
    SCHEMA_VERSION,
    BundleManifest,
    HostNeeds,
    OuterFile,
    Payload,
    Serving,
)
from airbundle_onsite.contract.record import encode, record
from airbundle_onsite.errors import BusyError, FetchError, UsageError
from airbundle_onsite.system import Talk

_LATEST = 4_354_819_198  # the last moment of 2107, which a zip archive can name; tar could go on a little
LOCK_FILE = "bundle.lock.json"
PROOF_FILE = "closure-proof.json"


@record
class Built:
    """A finished bundle: its directory, its manifest, and bytes of everything in it."""

    directory: Path
    manifest: BundleManifest
    size: int


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

    Raises:
        UsageError: the bundle exists, or the output is too small.
        FetchError: a file is missing from the cache, or a model is not whole.
    """
    _require_cached(lock, cache)
    lock = prove_models(lock, cache, talk)
    final = output / f"{lock.spec.bundle.name}-{lock.spec.bundle.version}"
    if final.exists() and not replace:
        raise UsageError(f"{final} exists already", remedy="give the bundle a new version, or replace it with --force")
    engine = engines.create(lock.spec.engine.name)
    plans = engine.plans(lock)
    require_images(plans, lock.images)
    own = {LOCK_FILE: lock_document(lock), **engine.config_files(lock), **(config or {})}
    contents = collect(lock, cache, own)
    inventory = take_inventory(lock, cache)
    created = bundle_time(lock, environ)
    payload_plan = plan_payload(contents.members, created)
    output.mkdir(parents=True, exist_ok=True)
    _require_space(output, payload_plan.size)
    partial = output / f".{final.name}.partial"
    with _claimed(partial):
        manifest = _write(partial, lock, contents, inventory, payload_plan, plans, created, part_size, talk, keys)
        if examine is not None:
            manifest = _add_beside(partial, manifest, examine(partial))
        if keys:
            _write_synced(partial / layout.SIGNATURE, sign_all((partial / layout.MANIFEST).read_bytes(), keys), 0o644)
        _publish(partial, final)
    return Built(final, manifest, sum(path.stat().st_size for path in final.iterdir()))


def _require_cached(lock: BundleLock, cache: Cache) -> None:
    missing = [item for item in lock.items() if not cache.has(item.sha256, item.size)]
    if missing:
        raise FetchError(
            f"{len(missing)} file(s) of the lock are not in the cache {cache.root}",
            details=[f"{item.path} ({item.size} bytes)" for item in missing],
            remedy="run the build where the sources can be reached",
        )


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


def _require_space(output: Path, needed: int) -> None:
    free = shutil.disk_usage(output).free
    if free < needed:
        raise UsageError(
            f"{output} has {free} bytes free; the bundle needs {needed}",
            remedy="free some space or choose another directory with -o; what was fetched stays in the cache",
        )


def _write(
    directory: Path,
    lock: BundleLock,
    contents: Contents,
    inventory: Inventory,
    payload_plan: PayloadPlan,
    plans: Sequence[LaunchPlan],
    created: int,
    part_size: int,
    talk: Talk,
    keys: Sequence[SigningKey],
) -> BundleManifest:
    advance = _counter(talk, "assembling", payload_plan.size)
    payload = write_payload(payload_plan, directory, part_size=part_size, advance=advance)
    draft = _manifest(lock, contents, payload_plan, payload, plans, created, ())
    outer = {**render_outer(draft), layout.ONSITE: onsite_pyz(created)}
    signer = ", ".join(key.fingerprint for key in keys)
    outer |= review_files(lock, dataclasses.replace(draft, outer=_outer_entries(outer)), inventory, signer=signer)
    manifest = _manifest(lock, contents, payload_plan, payload, plans, created, _outer_entries(outer))
    for name, data in sorted(outer.items()):
        _write_synced(directory / name, data, 0o755 if name == layout.INSTALLER else 0o644)
    _write_manifest(directory, manifest)
    return manifest


def _write_manifest(directory: Path, manifest: BundleManifest) -> None:
    data = encode(manifest)
    _write_synced(directory / layout.MANIFEST, data, 0o644)
    _write_synced(directory / layout.CHECKSUMS, checksums(manifest, data), 0o644)


def _add_beside(directory: Path, manifest: BundleManifest, files: Mapping[str, bytes]) -> BundleManifest:
    """Put more files beside the parts, which stay as they are."""
    for name, data in files.items():
        _write_synced(directory / name, data, 0o644)
    outer = sorted((*manifest.outer, *_outer_entries(files)), key=lambda item: item.name)
    manifest = dataclasses.replace(manifest, outer=tuple(outer))
    _write_manifest(directory, manifest)
    return manifest


def checksums(manifest: BundleManifest, manifest_bytes: bytes) -> bytes:
    """SHA256SUMS as ``sha256sum -c`` reads it: every file of the bundle but itself and the signature."""
    sums = {part.name: part.sha256 for part in manifest.payload.parts}
    sums.update((item.name, item.sha256) for item in manifest.outer)
    sums[layout.MANIFEST] = hashlib.sha256(manifest_bytes).hexdigest()
    return "".join(f"{value}  {name}\n" for name, value in sorted(sums.items())).encode()


def _manifest(
    lock: BundleLock,
    contents: Contents,
    payload_plan: PayloadPlan,
    payload: Payload,
    plans: Sequence[LaunchPlan],
    created: int,
    outer: tuple[OuterFile, ...],
) -> BundleManifest:
    spec = lock.spec
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
        files=payload_plan.entries(),
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
        launch=tuple(plans),
        smoke=smoke_tests(lock),
        provenance=_provenance(lock),
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


def _outer_entries(outer: Mapping[str, bytes]) -> tuple[OuterFile, ...]:
    return tuple(OuterFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in sorted(outer.items()))


def _write_synced(path: Path, data: bytes, mode: int) -> None:
    with path.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    path.chmod(mode)


@contextlib.contextmanager
def _claimed(partial: Path) -> Iterator[None]:
    """An empty directory that no other build writes into; it is gone when the body fails.

    Raises:
        BusyError: another build is at work in it.
    """
    with _locked_directory(partial) if partial.exists() else contextlib.nullcontext():
        shutil.rmtree(partial, ignore_errors=True)  # what a build that was killed has left
    partial.mkdir()
    with _locked_directory(partial):
        try:
            yield
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextlib.contextmanager
def _locked_directory(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(str(path), None) from None
        except OSError:  # a network filesystem that cannot lock: nothing keeps a second build away there
            pass
        yield
    finally:
        os.close(descriptor)


def _publish(partial: Path, final: Path) -> None:
    """Give the whole directory its final name; an older bundle of that name goes only after that."""
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    partial.chmod(0o755)
    if final.exists():
        final.rename(old)
    partial.rename(final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    shutil.rmtree(old, ignore_errors=True)


def _counter(talk: Talk, what: str, total: int) -> Callable[[int], None]:
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        talk.progress(what, done, total)

    return advance
