"""A bundle made of a finished one, leaving out what the site has: for a way back to a release, above all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from airbundle.assemble import Member, plan_payload, write_payload
from airbundle.build import Built, directory_name
from airbundle.bundledir import claimed, counter, outer_entries, publish, require_space, write_manifest, write_synced
from airbundle.cache import Cache
from airbundle.compress.members import compress_members
from airbundle.delta.content import Compressed, Extents, in_bundle, of_file, stream
from airbundle.delta.facts import TensorReader
from airbundle.delta.thin import Difference, Thinned, thin
from airbundle.outer import onsite_pyz, render_outer
from airbundle.signing import SigningKey, sign_all
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.manifest import BundleManifest, features_of
from airbundle_onsite.contract.payload import FileEntry
from airbundle_onsite.errors import IntegrityError, UsageError
from airbundle_onsite.system import Talk
from airbundle_onsite.verify.bundle import TrustedManifest, trust
from airbundle_onsite.verify.parts import check_parts


def rebase(
    bundle: Path,
    difference: Difference,
    cache: Cache,
    output: Path,
    *,
    part_size: int,
    talk: Talk,
    replace: bool = False,
    keys: Sequence[SigningKey] = (),
    compress: bool = False,
) -> Built:
    """Make the same release's bundle anew, without what the site has.

    What lies beside the parts of the finished one and describes the release stays as it is.

    Args:
        bundle: the finished one's directory; every byte of it is verified first.
        difference: what the site has.
        cache: looked into for what the finished one leaves out itself.
        output: directory that will hold the new one.
        part_size: bytes per part; 0 for a single one.
        talk: progress.
        replace: whether a bundle of that name may be replaced.
        keys: sign it.
        compress: compress weights that shrink, whether the finished one has them compressed or not.

    Raises:
        UsageError: it exists, or the output is too small.
        IntegrityError, TrustError: the finished one is damaged, or what it leaves out is nowhere at hand.
    """
    trusted = trust(bundle)
    manifest = trusted.manifest
    final = output / directory_name(manifest.name, manifest.version, difference.rollback)
    if final.exists() and not replace:
        raise UsageError(f"{final} exists already", remedy="replace it with --force, or choose another -o")
    _require_whole(trusted, talk)
    made = _thinned(trusted, difference, cache, talk)
    compression = compress_members(made.members, cache, talk) if compress else None
    plan = plan_payload(compression.members if compression else made.members, manifest.created)
    output.mkdir(parents=True, exist_ok=True)
    require_space(output, plan.size)
    partial = output / f".{final.name}.partial"
    with claimed(partial):
        payload = write_payload(plan, partial, part_size=part_size, advance=counter(talk, "assembling", plan.size))
        files = plan.entries()
        draft = dataclasses.replace(
            manifest,
            payload=payload,
            files=files,
            bases=made.bases,
            rollback=difference.rollback,
            features=features_of(files),
            outer=(),
        )
        written = _write_beside(trusted, draft, partial)
        if keys:
            write_synced(partial / layout.SIGNATURE, sign_all((partial / layout.MANIFEST).read_bytes(), keys), 0o644)
        publish(partial, final)
    return Built(final, written, sum(path.stat().st_size for path in final.iterdir()), compression)


def _require_whole(trusted: TrustedManifest, talk: Talk) -> None:
    bad = [check for check in check_parts(trusted, talk) if check.status == "fail"]
    if bad:
        raise IntegrityError(
            f"{trusted.directory} is not whole",
            details=[line for check in bad for line in (check.summary, *check.evidence)],
            remedy="; ".join(dict.fromkeys(check.remedy for check in bad)),
        )


def _thinned(trusted: TrustedManifest, difference: Difference, cache: Cache, talk: Talk) -> Thinned:
    manifest, absent = trusted.manifest, set()
    members = []
    for entry in manifest.files:
        content = _content(trusted, entry, cache)
        if content is None:
            absent.add(entry.sha256)
        members.append(Member(entry.path, entry.role, entry.size, entry.sha256, content or ()))
    layers = [image.layers for image in manifest.images]
    made = thin(members, layers, difference.known, TensorReader(cache, talk), skip=difference.skip)
    lost = [m.path for m in made.members if m.sha256 in absent and any(each.base is None for each in m.runs)]
    lost += sorted(layout.blob_path(digest) for digest in manifest.absent_layers - made.layers)
    if lost:
        raise IntegrityError(
            f"{len(lost)} file(s) of {trusted.directory} are in the bundle it builds on, and not at hand",
            details=lost[:20],
            remedy="name a full bundle of that version, or its lock, with a cache that has its files",
        )
    return made


def _content(trusted: TrustedManifest, entry: FileEntry, cache: Cache) -> Extents | None:
    """Where a file is as it is; one that is compressed in the bundle is decompressed into the cache."""
    found = in_bundle(trusted.directory, trusted.manifest, entry)
    if found is not None and not isinstance(found, Compressed):
        return found
    if not cache.has(entry.sha256, entry.size):
        if found is None:
            return None
        cache.add_chunks(entry.sha256, entry.size, stream(found))
    return of_file(cache.path(entry.sha256), entry.size)


def _write_beside(trusted: TrustedManifest, draft: BundleManifest, directory: Path) -> BundleManifest:
    """Everything beside the parts: the program and the texts made anew, the rest as it was."""
    fresh = {**render_outer(draft), layout.ONSITE: onsite_pyz(draft.created)}
    kept = [outer.name for outer in trusted.manifest.outer if outer.name not in fresh]
    files = {**{name: (trusted.directory / name).read_bytes() for name in kept}, **fresh}
    for name, data in sorted(files.items()):
        write_synced(directory / name, data, 0o755 if name == layout.INSTALLER else 0o644)
    manifest = dataclasses.replace(draft, outer=outer_entries(files))
    write_manifest(directory, manifest)
    return manifest
