"""Installing a bundle: trust, lock, recover, examine, confirm, stage, prepare, prove, switch."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Optional

from airbundle_onsite.capacity import disk_needs
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.payload import FileEntry
from airbundle_onsite.contract.record import record
from airbundle_onsite.contract.release import ReleaseRecord
from airbundle_onsite.deploy import control
from airbundle_onsite.deploy.activate import (
    Declined,
    Outcome,
    answers,
    bring_up,
    facts_of,
    outcome,
    require_complete,
    still_running,
)
from airbundle_onsite.deploy.guard import undoing
from airbundle_onsite.deploy.preflight import HostRefused, HostWarned, Verdict, examine
from airbundle_onsite.deploy.signers import Signers, TrustOptions
from airbundle_onsite.deploy.transaction import (
    Before,
    BringUp,
    before,
    files_of,
    plan_of,
    recover,
    running_instance,
    stop_old,
)
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import IntegrityError, PreflightError, TrustError
from airbundle_onsite.plan import fits_beside
from airbundle_onsite.runtimes.base import Blob, Runtime
from airbundle_onsite.store.journal import Transaction
from airbundle_onsite.store.rebuild import rebuilt
from airbundle_onsite.store.releases import StagedRelease, Staging
from airbundle_onsite.transport import received
from airbundle_onsite.units import human_bytes
from airbundle_onsite.verify.bundle import TrustedManifest
from airbundle_onsite.verify.source import PartSource
from airbundle_onsite.verify.stream import PayloadReader


@record
class InstallOptions:
    """How to install.

    Attributes:
        port: port of the service; None keeps the active release's, else takes the bundle's.
        trust: whose bundles are accepted.
        stage_only: install without activating.
        reinstall: replace the same version, whatever it holds.
        allow_older: accept a sequence older than one installed before.
        strict: refuse a host that gives warnings.
        paranoid: hash what is here already and would be taken on trust.
        source: where the parts are, when they are not all in the bundle's directory.
    """

    port: Optional[int] = None
    trust: TrustOptions = TrustOptions()
    stage_only: bool = False
    reinstall: bool = False
    allow_older: bool = False
    strict: bool = False
    paranoid: bool = False
    source: Optional[PartSource] = None


def install(site: Site, bundle: Path, options: InstallOptions) -> Outcome:
    """Install a bundle and make it the active release.

    Raises:
        TrustError, IntegrityError: the bundle is not what its sender made.
        BusyError: another process works on this root.
        PreflightError: the host cannot take it; nothing was changed.
        DeployError: it did not come up; `restored` says what answers now.
    """
    began = site.world.clock.monotonic()
    signers = Signers(site, options.trust)
    trusted = signers.trust(bundle, options.source)
    manifest = trusted.manifest
    site.talk.say(f"{manifest.name} {manifest.version}, {_signed(trusted)}")
    with site.exclusive():
        recover(site)
        here = _installed(site, trusted, options)
        if here is not None:
            done = _install_again(site, trusted, here, options, signers, began)
            _free_received(site, trusted)
            return done
        old = before(site, manifest.name)
        verdict = _examined(site, trusted, old, options)
        if not site.confirm(_question(site, manifest, old, verdict, options)):
            raise Declined
        signers.remember(trusted)
        done = _install_new(site, trusted, old, verdict, options, began)
        _free_received(site, trusted)
        return done


def survey(site: Site, trusted: TrustedManifest, options: InstallOptions) -> Verdict:
    """Preflight alone: every check of an installation, without taking the lock or changing anything."""
    old, bundle = before(site, trusted.manifest.name), trusted.directory
    return examine(site, trusted.manifest, old, bundle=bundle, port=options.port, paranoid=options.paranoid)


def disk_text(site: Site, manifest: BundleManifest, verdict: Verdict) -> list[str]:
    """Sentences about the highest use of disk while installing, and what is free, by filesystem."""
    lines = []
    for need in disk_needs(manifest, verdict.fingerprint, present=site.store.bytes_present(manifest)):
        shares = ", ".join(f"{share.what} {human_bytes(share.size)}" for share in need.shares)
        lines.append(f"{need.mount}: up to {human_bytes(need.needed)} ({shares}); {human_bytes(need.free)} are free")
    return lines


def _signed(trusted: TrustedManifest) -> str:
    return f"signed by {trusted.signer}" if trusted.signer else "not signed"


def _installed(site: Site, trusted: TrustedManifest, options: InstallOptions) -> Optional[StagedRelease]:
    """The release, when this very manifest is installed and stays.

    Raises:
        PreflightError: the version is here with other content.
        TrustError: a newer bundle was installed before.
    """
    name, version = trusted.manifest.name, trusted.manifest.version
    here = {each.version: each for each in site.store.versions(name)}.get(version)
    if here is not None and not options.reinstall:
        if here.manifest_sha256 != trusted.sha256 and trusted.manifest.rollback:
            raise PreflightError(
                f"{name} {version} is still installed here: going back to it needs no bundle",
                remedy=f"airbundlectl --activate {version} --name {name}",
            )
        if here.manifest_sha256 != trusted.sha256:
            raise PreflightError(
                f"{name} {version} is installed with other content: its bundle.json has SHA-256 "
                f"{here.manifest_sha256[:16]}…, this one {trusted.sha256[:16]}…",
                remedy="give the new bundle another version, or replace what is installed with --reinstall",
            )
        return site.store.load(name, version)
    if here is not None and here.manifest_sha256 == trusted.sha256:
        return None  # written anew from the very bundle it was made from: nothing older comes in
    _refuse_older(trusted.manifest, site.store.highest_sequence(name), options)
    return None


def _refuse_older(manifest: BundleManifest, highest: int, options: InstallOptions) -> None:
    """Raise TrustError for a bundle older than the highest sequence seen, unless going back is what it was made for."""
    if manifest.taken_after >= highest or options.allow_older:
        return
    back = manifest.rollback
    what = f"{manifest.name} {manifest.version} has sequence {manifest.sequence}"
    if back is not None:
        raise TrustError(
            f"{what} and leads back from {back.version}, sequence {back.sequence}; sequence {highest} was installed "
            "here since",
            remedy="ask the sender for a bundle that leads back from what is installed, or add --allow-older",
        )
    raise TrustError(
        f"{what}, and sequence {highest} was installed here: it is older",
        remedy="if going back is meant: --rollback or --activate V for an installed version, else --allow-older",
    )


def _examined(site: Site, trusted: TrustedManifest, old: Before, options: InstallOptions) -> Verdict:
    verdict = examine(
        site,
        trusted.manifest,
        old,
        bundle=trusted.directory,
        port=options.port,
        starts=not options.stage_only,
        paranoid=options.paranoid,
    )
    for check in verdict.checks:
        if check.status == "warn":
            site.talk.say(f"Warning: {check.summary}" + (f" ({check.remedy})" if check.remedy else ""))
    if verdict.failed or verdict.plan is None:
        raise HostRefused(trusted.manifest, verdict.checks)
    if options.strict and any(check.status == "warn" for check in verdict.checks):
        raise HostWarned(trusted.manifest, verdict.checks)
    for line in disk_text(site, trusted.manifest, verdict):
        site.talk.say(f"Disk  {line}")
    kept = received.kept_bytes(site.layout, trusted)
    if kept:
        site.talk.say(f"Disk  the parts received take {human_bytes(kept)} until it is installed, and are removed then")
    return verdict


def _free_received(site: Site, trusted: TrustedManifest) -> None:
    """What was received part by part is in the release now."""
    freed = received.free(site.layout, trusted)
    if freed:
        site.talk.say(f"The parts received were removed: {human_bytes(freed)} freed")


def _question(site: Site, manifest: BundleManifest, old: Before, verdict: Verdict, options: InstallOptions) -> str:
    what = f"Install {manifest.name} {manifest.version} under {site.layout.root}"
    if options.stage_only:
        return f"{what}, without starting it?"
    instead = f", in place of {old.version}, which is running" if old.running else ""
    return f"{what} and start it on {verdict.host}:{verdict.port}{instead}?"


def _install_again(
    site: Site, trusted: TrustedManifest, here: StagedRelease, options: InstallOptions, signers: Signers, began: float
) -> Outcome:
    """The same manifest is installed: nothing to copy, perhaps something to start."""
    made, old = here.record, before(site, here.record.name)
    is_active = site.store.active(made.name) == made.version
    if is_active and old.running and options.port in (None, made.port):
        signers.remember(trusted)
        text = f"{made.name} {made.version} is installed and running already"
        instance = None if options.stage_only else running_instance(site, here)
        if instance is not None:
            return still_running(site, here, instance, began, text)
        return outcome(site, "unchanged", here, began, text)
    require_complete(site, here)
    if options.stage_only:
        signers.remember(trusted)
        return outcome(site, "staged", here, began, f"{made.name} {made.version} is installed already")
    verdict = examine(site, here.manifest, old, bundle=None, port=options.port)
    if verdict.failed or verdict.plan is None:
        raise HostRefused(here.manifest, verdict.checks)
    if not site.confirm(_question(site, here.manifest, old, verdict, options)):
        raise Declined
    signers.remember(trusted)
    release = site.store.save(plan_of(here, verdict.plan), host=verdict.host, port=verdict.port)
    facts = facts_of(release.record, old, was_staged=True)
    tx = site.journal.begin("activate", made.name, made.version, old.version, facts)
    saved = bring_up(site, tx, release, old, verdict.fingerprint)
    control.install_tool(site, trusted)
    return outcome(site, "activated", saved, began, answers(saved))


def _install_new(
    site: Site, trusted: TrustedManifest, old: Before, verdict: Verdict, options: InstallOptions, began: float
) -> Outcome:
    manifest, plan = trusted.manifest, verdict.plan
    assert plan is not None
    replaced = site.store.has(manifest.name, manifest.version)
    made = ReleaseRecord(
        name=manifest.name,
        version=manifest.version,
        sequence=manifest.sequence,
        manifest_sha256=trusted.sha256,
        installed=site.now(),
        plan=plan.id,
        runtime=plan.runtime,
        host=verdict.host,
        port=verdict.port,
        previous=old.release.record.previous if old.release and old.version == manifest.version else old.version,
    )
    op = "reinstall" if replaced else "install"
    facts = facts_of(made, old, was_staged=False)
    tx = site.journal.begin(op, made.name, made.version, old.version, facts)
    with undoing(site, tx, old, needed=manifest.needs.disk):
        staging = site.store.stage(
            trusted, rewrite=options.reinstall, rebuild=lambda entry, packed: rebuilt(entry, packed, verdict.base)
        )
        tx.step("staging")
        _stream(site, trusted, staging, site.runtime(plan.runtime))
        if replaced and old.version == made.version:
            stop_old(site, tx, old)
            release = staging.commit(made, aside=True)
            saved = BringUp(site, tx, release, old, verdict.fingerprint).run_stopped()
        else:
            release = staging.commit(made, aside=replaced)
            tx.step("staged")
            if options.stage_only:
                saved = _stop_staged(site, tx, release)
            else:
                saved = BringUp(site, tx, release, old, verdict.fingerprint).run()
    control.install_tool(site, trusted)
    if options.stage_only and saved.record.version != old.version:
        text = f"{made.name} {made.version} is installed; --activate {made.version} starts it"
        return outcome(site, "staged", saved, began, text)
    return outcome(site, "installed", saved, began, answers(saved))


def _stop_staged(site: Site, tx: Transaction, release: StagedRelease) -> StagedRelease:
    site.runtime(release.record.runtime).prepare(files_of(release))
    tx.step("prepared")
    site.store.drop_aside(release.record.name, release.record.version)
    tx.step("done")
    return release


def _stream(site: Site, trusted: TrustedManifest, staging: Staging, runtime: Runtime) -> None:
    """Every file from the parts to its place: images to the runtime, the rest into the store."""
    with contextlib.closing(_Payload(PayloadReader(trusted, site.talk).files())) as payload:
        runtime.load_images(trusted.manifest, payload.blobs())
        for entry, chunks in payload.others():
            staging.add(entry, chunks)


class _Payload:
    """The payload's files, images first; either half is taken by someone else."""

    def __init__(self, files: Iterator[tuple[FileEntry, Iterable[bytes]]]) -> None:
        self._files = files
        self._ahead: list[tuple[FileEntry, Iterable[bytes]]] = []

    def blobs(self) -> Iterator[Blob]:
        for entry, chunks in self._files:
            if entry.role != "image":
                self._ahead.append((entry, chunks))
                return
            yield Blob(entry.path, entry.size, chunks)

    def others(self) -> Iterator[tuple[FileEntry, Iterable[bytes]]]:
        for entry, chunks in itertools.chain(self._ahead, self._files):
            if entry.role == "image":
                raise IntegrityError(f"{entry.path}: an image stands behind other files of the payload")
            yield entry, chunks

    def close(self) -> None:
        close = getattr(self._files, "close", None)
        if close is not None:
            close()


def rehearse(site: Site, bundle: Path, options: InstallOptions) -> tuple[Verdict, list[str]]:
    """What `install` would do, in sentences, after every check that changes nothing."""
    trusted = Signers(site, options.trust).look(bundle, options.source)
    manifest, old = trusted.manifest, before(site, trusted.manifest.name)
    unfinished = site.journal.unfinished()
    steps = []
    if unfinished is not None:
        steps.append(f"first finish or undo the interrupted {unfinished.op} of {unfinished.version}")
    here = _installed(site, trusted, options)
    verdict = examine(
        site, manifest, old, bundle=bundle if here is None else None, port=options.port, paranoid=options.paranoid
    )
    size = sum(entry.packed for entry in manifest.files)
    if here is None:
        steps.append(f"copy {len(manifest.files)} files, {human_bytes(size)}, checking each byte on the way")
        if manifest.bases:
            rest = human_bytes(sum(entry.size for entry in manifest.files) - size)
            steps.append(f"take {rest} more from {', '.join(base.title for base in manifest.bases)}, which is here")
        steps += [f"use disk  {line}" for line in disk_text(site, manifest, verdict)]
    else:
        steps.append(f"copy nothing: {manifest.version} is installed already")
    if verdict.plan is not None:
        steps.append(f"take the launch plan {verdict.plan.id} ({verdict.plan.engine}, {verdict.plan.runtime})")
        if old.running and fits_beside(verdict.plan, verdict.fingerprint):
            steps.append(f"prove the new release beside {old.version}, which goes on answering")
        elif old.running:
            steps.append(f"stop {old.version} before the new release starts, and bring it back if that fails")
    steps.append(f"answer at http://{verdict.host}:{verdict.port}")
    return verdict, steps
