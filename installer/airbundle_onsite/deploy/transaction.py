"""Bringing a whole release up in place of another, and putting everything back when that fails.

A deployment writes a line into the journal before each step:

    begin -> staging -> staged -> prepared -> proving -> switching -> started -> activated -> done

`undo` needs nothing but the last line and what is on disk, so the same function serves a failure noticed by this
process and a crash noticed by the next one. `current` is flipped after the release has answered: that flip is the
moment from which a deployment is finished instead of undone.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Optional

from airbundle_onsite import plan as planning
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.record import record
from airbundle_onsite.deploy.ports import free_port
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import AirbundleError, DeployError
from airbundle_onsite.runtimes.base import Instance, ReleaseFiles
from airbundle_onsite.smoke.latency import latency_check, measure_latency
from airbundle_onsite.smoke.patterns import scan_log
from airbundle_onsite.smoke.ready import wait_ready
from airbundle_onsite.smoke.run import run_smoke
from airbundle_onsite.store.journal import JournalEntry, Transaction
from airbundle_onsite.store.releases import StagedRelease
from airbundle_onsite.system import Talk

LOOPBACK = "127.0.0.1"
_STOPPED_OLD = ("switching", "started", "activated")
_UNPREPARED = ("begin", "staging", "staged")
_LOG_LINES = 20


@record
class Before:
    """What was active before a deployment.

    Attributes:
        release: it, or None when nothing was.
        running: whether it was running.
    """

    release: Optional[StagedRelease] = None
    running: bool = False

    @property
    def version(self) -> Optional[str]:
        return self.release.record.version if self.release else None


class ChecksFailed(AirbundleError):
    """A release was started, but does not do what it must. `checks` holds every result."""

    def __init__(self, what: str, checks: Sequence[CheckResult], log: str = "") -> None:
        failed = [check for check in checks if check.status == "fail"]
        details = [_described(check) for check in failed]
        details += [f"log | {line}" for line in log.splitlines()[-_LOG_LINES:]]
        remedy = "; ".join(dict.fromkeys(check.remedy for check in failed if check.remedy))
        super().__init__(f"{what}: {len(failed)} of {len(checks)} checks failed", details=details, remedy=remedy)
        self.checks = tuple(checks)


def _described(check: CheckResult) -> str:
    wanted = f" (needed {check.expected}, found {check.actual})" if check.expected or check.actual else ""
    return check.summary + wanted


def files_of(release: StagedRelease) -> ReleaseFiles:
    """A release as a runtime sees it, with the launch plan it was installed with.

    Raises:
        DeployError: the manifest has no such plan.
    """
    for plan in release.manifest.launch:
        if plan.id == release.record.plan:
            return ReleaseFiles(release.directory, release.manifest, plan)
    raise DeployError(
        f"{release.record.name} {release.record.version} has no launch plan {release.record.plan!r}", restored=None
    )


def running_instance(site: Site, release: StagedRelease) -> Optional[Instance]:
    """The release's service, when it is up: running, or paused, which holds its port and memory, too."""
    runtime = site.runtime(release.record.runtime)
    instance = runtime.find(release.record.name, release.record.version, "service")
    return instance if instance is not None and runtime.state(instance).up else None


def before(site: Site, name: str) -> Before:
    """What is active under that name now; when `current` is lost, what is found running."""
    version = site.store.active(name) or _stray(site, name)
    if version is None:
        return Before()
    release = site.store.load(name, version)
    return Before(release, running_instance(site, release) is not None)


def _stray(site: Site, name: str) -> Optional[str]:
    """The newest version that runs."""
    for made in reversed(site.store.versions(name)):
        with contextlib.suppress(AirbundleError):
            if running_instance(site, site.store.load(name, made.version)) is not None:
                return made.version
    return None


def begin_service(site: Site, release: StagedRelease) -> Instance:
    """Start a release on its service port, without waiting; its details tell this life of it from others."""
    made, runtime = release.record, site.runtime(release.record.runtime)
    instance = runtime.start(files_of(release), slot="service", host=made.host, port=made.port)
    return dataclasses.replace(instance, details={**instance.details, "life": runtime.state(instance).life})


def await_service(site: Site, release: StagedRelease, instance: Instance) -> StagedRelease:
    """Wait until a service generates, and note in its record that it did.

    Raises:
        ChecksFailed: it does not come up.
    """
    _must_answer(site, files_of(release), instance, smoke=False)
    return site.store.save(release, instance={**instance.details, "active_since": site.now()})


def start_service(site: Site, release: StagedRelease) -> StagedRelease:
    """Start a release on its service port, and wait until it generates.

    Raises:
        ChecksFailed: it does not come up.
    """
    return await_service(site, release, begin_service(site, release))


def _must_answer(site: Site, files: ReleaseFiles, instance: Instance, *, smoke: bool) -> list[CheckResult]:
    """Wait until it generates; with `smoke`, run the smoke tests and look for silent downgrades in the log."""
    plan, clock, talk = files.plan, site.world.clock, site.talk
    runtime = site.runtime(plan.runtime)
    what = f"{instance.name} {instance.version}"
    checks = list(wait_ready(instance, plan, runtime, clock, talk))
    ready = all(check.status != "fail" for check in checks)
    if ready and smoke:
        checks += run_smoke(files.manifest, plan, instance, clock, talk)
        if all(check.status != "fail" for check in checks):
            checks += latency_check(measure_latency(files.manifest, plan, instance, talk))
    if smoke or not ready:  # an engine that gave up has mostly said why, and the patterns know the cure
        checks += scan_log(plan, runtime.logs(instance, 2000))
    if any(check.status == "fail" for check in checks):
        raise ChecksFailed(f"{what} does not answer as it must", checks, runtime.logs(instance, _LOG_LINES))
    if smoke:
        _tell(checks, talk)
    return checks


def _tell(checks: Sequence[CheckResult], talk: Talk) -> None:
    """Say what the engine chose, and where that is less than was planned."""
    facts = [check.summary for check in checks if check.id.startswith("log.") and check.status == "pass"]
    if facts:
        talk.say("What the engine says of itself:")
    for fact in facts:
        talk.say(f"  {fact}")
    for check in checks:
        if check.status == "warn":
            talk.say(f"Warning: {check.summary}" + (f". What to do: {check.remedy}" if check.remedy else ""))


def stop_old(site: Site, tx: Transaction, old: Before) -> None:
    """Note the switch, and stop what is up of what was active; it can be started again."""
    tx.step("switching")
    if old.release is None:
        return
    instance = running_instance(site, old.release)
    if instance is not None:
        site.talk.say(f"Stopping {old.version}")
        site.runtime(old.release.record.runtime).stop(instance)


class BringUp:
    """One deployment from ``prepared`` on.

    Args:
        site: where.
        tx: its journal.
        release: what comes up.
        old: what was active.
        fingerprint: of this host, to see whether both fit at once.
    """

    def __init__(
        self, site: Site, tx: Transaction, release: StagedRelease, old: Before, fingerprint: Fingerprint
    ) -> None:
        self._site, self._tx, self._release, self._old = site, tx, release, old
        self._fingerprint = fingerprint
        self._files = files_of(release)
        self._runtime = site.runtime(release.record.runtime)
        self._proof: list[CheckResult] = []

    def run(self) -> StagedRelease:
        """All steps to the end. On an exception, the caller undoes."""
        self._prepare()
        self._tx.step("prepared")
        self._prove_beside()
        stop_old(self._site, self._tx, self._old)
        return self._take_over()

    def run_stopped(self) -> StagedRelease:
        """The steps after ``switching``, for a release that replaces files of the one that was active."""
        self._prepare()
        return self._take_over()

    def _prepare(self) -> None:
        self._site.talk.say("Preparing the runtime")
        self._runtime.prepare(self._files)

    def _prove_beside(self) -> None:
        """Start a candidate on a spare port while the old release still answers, if both fit, and test it."""
        if not self._old.running:
            return
        version = self._old.version
        if not planning.fits_beside(self._files.plan, self._fingerprint):
            self._site.talk.say(
                f"There is no room for both: {version} stops first, and comes back if the new one fails"
            )
            return
        self._tx.step("proving")
        self._site.talk.say(f"Proving {self._release.record.version} beside {version}, which goes on answering")
        candidate = self._runtime.start(self._files, slot="candidate", host=LOOPBACK, port=free_port())
        self._proof = _must_answer(self._site, self._files, candidate, smoke=True)
        self._runtime.remove(candidate)

    def _take_over(self) -> StagedRelease:
        """Start on the service port, see it answer, and make it current.

        This is the place where a gateway would point at the proven candidate instead of the old release being
        stopped before: `stop_old` and this method together are the switch.
        """
        made = self._release.record
        self._site.talk.say(f"Starting {made.name} {made.version} on {made.host}:{made.port}")
        instance = begin_service(self._site, self._release)
        self._tx.step("started")
        checks = _must_answer(self._site, self._files, instance, smoke=not self._proof)
        now = self._site.now()
        with self._site.shield():
            saved = self._site.store.save(
                self._release,
                proven=now,
                smoke=tuple(self._proof or checks),
                instance={**instance.details, "active_since": now},
                previous=made.previous if self._old.version == made.version else self._old.version,
            )
            self._site.store.activate(made.name, made.version)
            self._tx.step("activated")
            self._site.store.drop_aside(made.name, made.version)
            self._tx.step("done")
        return saved


@record
class Undone:
    """What is left after `undo`.

    Attributes:
        restored: the version that runs and answers, or None.
        stopped: whether it had been stopped in between.
        finished: the deployment had been so far that it was finished instead.
        problem: why nothing could be restored; empty when it was, or there was nothing to restore.
    """

    restored: Optional[str]
    stopped: bool = False
    finished: bool = False
    problem: str = ""


def undo(site: Site, tx: Transaction, *, drop: bool = False) -> Undone:
    """Put everything back as it was before the transaction began, or finish it when it had been activated.

    Can be repeated: it looks at what is there rather than at what should be. Closes the transaction.

    Args:
        site: where.
        tx: the transaction.
        drop: remove a release that this transaction published but did not prepare, e.g. when the disk is full;
            otherwise whole releases stay, staged.
    """
    entry = tx.last
    made_current = site.store.active(entry.name) == entry.version and entry.previous != entry.version
    if entry.step == "activated" or (entry.step == "started" and (made_current or entry.op == "restart")):
        site.store.drop_aside(entry.name, entry.version)
        tx.step("done")
        return Undone(entry.version, finished=True)
    site.store.discard_staging(entry.name, entry.version)
    _remove_new(site, entry)
    stopped = entry.step in _STOPPED_OLD
    put_back = site.store.restore_aside(entry.name, entry.version)
    if drop and entry.op == "install" and entry.step in _UNPREPARED and not entry.facts.get("was_staged"):
        _drop_unprepared(site, entry)
    restored, problem = _restore_old(site, entry, prepare=put_back)
    tx.step("undone")
    return Undone(restored, stopped=stopped, problem=problem)


def _drop_unprepared(site: Site, entry: JournalEntry) -> None:
    if site.store.has(entry.name, entry.version) and site.store.active(entry.name) != entry.version:
        site.store.remove(entry.name, entry.version)


def _remove_new(site: Site, entry: JournalEntry) -> None:
    """Remove the candidate, and the service of the new release once the old one may have been stopped."""
    runtime = site.runtime(str(entry.facts["runtime"]))
    candidate = runtime.find(entry.name, entry.version, "candidate")
    if candidate is not None:
        runtime.remove(candidate)
    if entry.step in _STOPPED_OLD:
        service = runtime.find(entry.name, entry.version, "service")
        if service is not None:
            runtime.remove(service)


def _restore_old(site: Site, entry: JournalEntry, *, prepare: bool) -> tuple[Optional[str], str]:
    """See to it that what ran before runs; the version and an empty text, or None and the reason."""
    if entry.previous is None or not entry.facts.get("was_running"):
        return None, ""
    try:
        release = site.store.load(entry.name, entry.previous)
        port = entry.facts.get("old_port")
        if isinstance(port, int) and port and port != release.record.port:
            release = site.store.save(release, port=port)  # the same version was to move to another port
        instance = running_instance(site, release)
        if instance is not None and entry.step in _STOPPED_OLD:
            # It may have been told to stop and only not be gone yet: it would end after we had said that it answers.
            site.runtime(release.record.runtime).stop(instance)
            instance = None
        if instance is None:
            site.talk.say(f"Starting {entry.previous} again")
            if prepare:
                site.runtime(release.record.runtime).prepare(files_of(release))
            start_service(site, release)
    except AirbundleError as error:
        return None, f"{entry.previous} could not be started again: {'; '.join(error.lines())}"
    return entry.previous, ""


def recover(site: Site) -> Optional[Undone]:
    """Finish or undo what a crashed run left; None when it left nothing. The lock must be held."""
    entry = site.journal.unfinished()
    if entry is None:
        site.store.sweep()
        return None
    what = f"{entry.op} of {entry.name} {entry.version}, interrupted after the step '{entry.step}'"
    site.talk.say(f"Found an unfinished {what}: putting things in order")
    with site.shield():
        result = undo(site, site.journal.resume(entry))
        site.store.sweep()
    if result.finished:
        site.talk.say(f"It had been activated: {entry.version} is current")
    elif result.problem:
        site.talk.say(f"It was undone, but {result.problem}")
    else:
        now = f"{result.restored} answers" if result.restored else "nothing was running before, and nothing is now"
        site.talk.say(f"It was undone; {now}")
    return result


def plan_of(release: StagedRelease, plan: LaunchPlan) -> StagedRelease:
    """The release with another of its plans, when the host's hardware has changed."""
    changed = dataclasses.replace(release.record, plan=plan.id, runtime=plan.runtime)
    return dataclasses.replace(release, record=changed)
