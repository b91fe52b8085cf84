"""Making a staged release the active one: by name, or the one before."""

from __future__ import annotations

from typing import Optional

from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.record import record
from airbundle_onsite.contract.release import ReleaseRecord
from airbundle_onsite.deploy.guard import undoing
from airbundle_onsite.deploy.preflight import HostRefused, examine
from airbundle_onsite.deploy.restart import see_that_it_answers
from airbundle_onsite.deploy.transaction import (
    Before,
    BringUp,
    before,
    plan_of,
    recover,
    running_instance,
)
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import AirbundleError, IntegrityError, UsageError
from airbundle_onsite.runtimes.base import Instance
from airbundle_onsite.store.journal import Transaction
from airbundle_onsite.store.releases import StagedRelease


class Declined(AirbundleError):
    """The person said no; nothing was changed."""

    def __init__(self) -> None:
        super().__init__("not confirmed: nothing was changed")


@record
class Outcome:
    """What a deployment came to.

    Attributes:
        action: ``installed``, ``staged``, ``activated``, ``unchanged``, or ``restarted`` for what was there and gave no
            token.
        name, version: the release.
        host, port: where it answers; port 0 when it is only staged.
        previous: what `--rollback` goes back to.
        seconds: how long it took.
        answer: one sentence for a person.
    """

    action: str
    name: str
    version: str
    host: str
    port: int
    previous: Optional[str]
    seconds: float
    answer: str


def activate(site: Site, name: str, version: str, *, port: Optional[int] = None, op: str = "activate") -> Outcome:
    """Make an installed version the active one.

    Raises:
        UsageError: it is not installed.
        IntegrityError: files or images of it are gone; what runs was not touched.
        PreflightError: the host cannot run it.
        DeployError: it did not come up.
    """
    began = site.world.clock.monotonic()
    with site.exclusive():
        recover(site)
        release, old = site.store.load(name, version), before(site, name)
        instance = running_instance(site, release) if site.store.active(name) == version else None
        if instance is not None:
            return still_running(site, release, instance, began, f"{name} {version} is active and running already")
        require_complete(site, release)
        verdict = examine(site, release.manifest, old, bundle=None, port=port or release.record.port)
        if verdict.failed or verdict.plan is None:
            raise HostRefused(release.manifest, verdict.checks)
        if not site.confirm(_question(old, release)):
            raise Declined
        release = site.store.save(plan_of(release, verdict.plan), host=verdict.host, port=verdict.port)
        tx = site.journal.begin(op, name, version, old.version, facts_of(release.record, old, was_staged=True))
        saved = bring_up(site, tx, release, old, verdict.fingerprint)
        return outcome(site, "activated", saved, began, answers(saved))


def rollback(site: Site, name: str, version: Optional[str] = None) -> Outcome:
    """Go back to `version`, or to the one that was active before the present one.

    Raises:
        UsageError: there is nothing to go back to. Others: see `activate`.
    """
    if version is None:
        current = site.store.active(name)
        if current is None:
            raise UsageError(f"no version of {name} is active", remedy="choose one with --activate VERSION")
        version = site.store.load(name, current).record.previous
        if version is None or not site.store.has(name, version):
            have = ", ".join(each.version for each in site.store.versions(name))
            raise UsageError(
                f"{name} {current} has no previous version to go back to", remedy=f"installed: {have}; use --activate V"
            )
    return activate(site, name, version, op="rollback")


def bring_up(
    site: Site, tx: Transaction, release: StagedRelease, old: Before, fingerprint: Fingerprint
) -> StagedRelease:
    """Prepare, prove and switch, or undo. See `BringUp` and `undoing`."""
    with undoing(site, tx, old, needed=release.manifest.needs.disk):
        return BringUp(site, tx, release, old, fingerprint).run()


def require_complete(site: Site, release: StagedRelease) -> None:
    """Raise IntegrityError when files or images of a staged release are gone, before anything is stopped."""
    missing = [f"file {path}" for path in site.store.missing_files(release)]
    missing += [f"image {image}" for image in site.runtime(release.record.runtime).has_images(release.manifest)]
    if missing:
        raise IntegrityError(
            f"{release.record.name} {release.record.version} is not complete any more; what runs was not touched",
            details=missing[:20],
            remedy="install it again from its bundle with --reinstall",
        )


def facts_of(made: ReleaseRecord, old: Before, *, was_staged: bool) -> dict[str, object]:
    """What `undo` needs besides names: see `JournalEntry.facts`.

    Args:
        made: the record of what comes up.
        old: what was active.
        was_staged: whether the release was in the store before.
    """
    return {
        "runtime": made.runtime,
        "was_running": old.running,
        "was_staged": was_staged,
        "manifest_sha256": made.manifest_sha256,
        "old_port": old.release.record.port if old.release else 0,
    }


def still_running(site: Site, release: StagedRelease, instance: Instance, began: float, text: str) -> Outcome:
    """The outcome for what is active and runs as it was wanted: nothing to do, unless it does not answer."""
    started = see_that_it_answers(site, release, instance)
    if started.restarted:
        return outcome(site, "restarted", started.release, began, f"{text}, and was restarted: {started.restarted}")
    return outcome(site, "unchanged", started.release, began, f"{text}: nothing was changed")


def outcome(site: Site, action: str, release: StagedRelease, began: float, answer: str) -> Outcome:
    """An `Outcome` for a release in the store."""
    made = release.record
    seconds = round(site.world.clock.monotonic() - began, 3)
    port = 0 if action == "staged" else made.port
    return Outcome(action, made.name, made.version, made.host, port, made.previous, seconds, answer)


def answers(release: StagedRelease) -> str:
    """Where a release answers, and the way back."""
    made = release.record
    back = f"; --rollback goes back to {made.previous}" if made.previous else ""
    return f"{made.name} {made.version} answers at http://{made.host}:{made.port}{back}"


def _question(old: Before, release: StagedRelease) -> str:
    version = release.record.version
    if old.running:
        return f"Replace {old.version}, which is running, by {version}?"
    return f"Start {release.record.name} {version}?"
