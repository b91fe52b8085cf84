"""Judging an engine that runs, and starting it afresh when it will not answer again by itself.

Containers lose their GPUs when systemd reloads its units, workers hang, processes are frozen: the engine's process is
there, nothing restarts it, and no request is ever answered. What is merely loading, or merely busy, is left alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Optional

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.record import record
from airbundle_onsite.deploy.guard import undoing
from airbundle_onsite.deploy.ports import connections
from airbundle_onsite.deploy.redact import redact
from airbundle_onsite.deploy.transaction import Before, await_service, begin_service, files_of, stop_old
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import AirbundleError, DeployError
from airbundle_onsite.runtimes.base import Instance, InstanceState
from airbundle_onsite.smoke.patterns import scan_log
from airbundle_onsite.smoke.ready import wait_ready
from airbundle_onsite.smoke.run import LOST_GPU
from airbundle_onsite.store.disk import SECRET_MODE, make_directory, write_atomic
from airbundle_onsite.store.releases import StagedRelease
from airbundle_onsite.units import human_seconds

_PATIENCE = 20  # seconds in which an engine that has answered before must say that it is well
_BUSY = 5  # times the usual deadline for one token, while others wait for their answers too
_LOG_LINES = 2000


@record
class Fault:
    """Why an engine that runs has to be started afresh.

    Attributes:
        reason: for people, e.g. ``the engine is up, but does not generate: no whole answer within 60 s``.
        evidence: lines of its log that its launch plan knows the meaning of, or that tell of a lost GPU.
    """

    reason: str
    evidence: tuple[str, ...] = ()

    def text(self) -> str:
        """In one line."""
        return self.reason + (f" (its log: {self.evidence[-1]})" if self.evidence else "")


@record
class Started:
    """What starting came to: the release, and why it was restarted although it ran; empty when it was not."""

    release: StagedRelease
    restarted: str = ""


def see_that_it_answers(site: Site, release: StagedRelease, instance: Instance, *, afresh: bool = False) -> Started:
    """Wait for a token of a service that is up, and restart it when none will come. The lock must be held.

    Args:
        site: where.
        release: what is active; instance: its service.
        afresh: restart it also when it answers.

    Raises:
        DeployError: it does not come up again.
    """
    fault = Fault("asked for") if afresh else find_fault(site, release, instance)
    if fault is None:
        return Started(_noted(site, release, instance))
    site.talk.say(f"Restarting {release.record.name} {release.record.version}: {fault.text()}")
    return Started(answering(site, release, lambda: restart(site, release)), fault.text())


def answering(site: Site, release: StagedRelease, begin: Callable[[], Instance]) -> StagedRelease:
    """Begin a service, and wait until it answers. Raises DeployError when it does not."""
    try:
        return await_service(site, release, begin())
    except DeployError:
        raise
    except AirbundleError as error:
        raise DeployError(error.summary, restored=None, remedy=error.remedy, details=error.details) from error


def _noted(site: Site, release: StagedRelease, instance: Instance) -> StagedRelease:
    """The record of a release that has just answered, in a life that it may not know yet."""
    life, details = site.runtime(release.record.runtime).state(instance).life, release.record.instance
    if not life or life == details.get("life"):
        return release
    return site.store.save(release, instance={**details, "life": life})


def loading_left(release: StagedRelease, plan: LaunchPlan, seen: InstanceState) -> float:
    """Seconds for which an engine may still be loading; 0 when it answered in this life, or should have long ago."""
    if seen.life and seen.life == release.record.instance.get("life"):
        return 0.0
    limit = float(plan.readiness.load_seconds)
    return limit if seen.age is None else max(0.0, limit - seen.age)


def find_fault(site: Site, release: StagedRelease, instance: Instance) -> Optional[Fault]:
    """What is wrong with a service that is up; None when it generated a token, for which it is waited.

    One that never answered in this life gets the rest of its time to load. One that answered before is asked at once;
    while others are connected to its port the token may take longer, since their requests come first.
    """
    plan, runtime = files_of(release).plan, site.runtime(release.record.runtime)
    seen = runtime.state(instance)
    if seen.status == "paused":
        return Fault("it is paused")
    left = loading_left(release, plan, seen)
    if left and seen.age is not None:
        limit = human_seconds(plan.readiness.load_seconds)
        site.talk.say(f"{instance.version} may still be loading: up for {human_seconds(seen.age)} of at most {limit}")
    token = plan.readiness.request_seconds
    others = connections(instance.port)
    if others:
        token *= _BUSY
        site.talk.say(
            f"{others} connection{'s' if others > 1 else ''} to its port: it may be busy, and gets up to "
            f"{human_seconds(token)} for a token"
        )
    readiness = dataclasses.replace(
        plan.readiness, load_seconds=max(_PATIENCE, int(left) + 1 if left else 0), request_seconds=token
    )
    asked = dataclasses.replace(plan, readiness=readiness)
    checks = wait_ready(instance, asked, runtime, site.world.clock, site.talk)
    failed = [check for check in checks if check.status == "fail"]
    if not failed:
        return None
    reason = "; ".join(f"{check.summary}: {check.actual}" if check.actual else check.summary for check in failed)
    return Fault(reason, known_lines(plan, runtime.logs(instance, _LOG_LINES)))


def known_lines(plan: LaunchPlan, log: str) -> tuple[str, ...]:
    """Lines of a log that mean a failure, by the plan's patterns or because they tell of a lost GPU; the last ones."""
    lines = [line for check in scan_log(plan, log) if check.status == "fail" for line in check.evidence]
    lines += [line.strip() for line in log.splitlines() if LOST_GPU.search(line.lower())][-3:]
    return tuple(dict.fromkeys(redact(line) for line in lines))[-3:]


def known_faults(plan: LaunchPlan, log: str) -> Sequence[CheckResult]:
    """The plan's patterns of failures that a log shows."""
    return [check for check in scan_log(plan, log) if check.status == "fail"]


def restart(site: Site, release: StagedRelease) -> Instance:
    """Stop the service and start it afresh, without waiting for an answer.

    Ctrl-C waits until it runs again; after a crash in between, the next changing command starts it. The end of the log
    of what is stopped is kept among the logs of the root.

    Raises:
        DeployError: it could not be stopped or started; the journal says so until it can.
    """
    made = release.record
    keep_log(site, release)
    facts = {
        "runtime": made.runtime,
        "was_running": True,
        "was_staged": True,
        "manifest_sha256": made.manifest_sha256,
        "old_port": made.port,
    }
    # What does not answer is not claimed to run when putting things back fails, too.
    nothing = Before(release, running=False)
    with site.shield():
        tx = site.journal.begin("restart", made.name, made.version, made.version, facts)
        with undoing(site, tx, nothing):
            stop_old(site, tx, nothing)
            instance = begin_service(site, release)
            tx.step("started")
            tx.step("done")
    return instance


def keep_log(site: Site, release: StagedRelease) -> None:
    """Put the end of the engine's log beside the logs of this program: a start begins a new one."""
    made, runtime = release.record, site.runtime(release.record.runtime)
    instance = runtime.find(made.name, made.version, "service")
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(site.world.clock.now()))
    path = site.layout.logs / f"{stamp}-engine-{made.name}-{made.version}.log"
    try:
        text = runtime.logs(instance, _LOG_LINES) if instance is not None else ""
        if text:
            make_directory(path.parent, site.layout.base)
            write_atomic(path, redact(text).encode("utf-8", "replace"), SECRET_MODE)
            site.talk.say(f"The end of its log is kept in {path}")
    except (AirbundleError, OSError) as error:  # a log that cannot be kept must not keep the engine from coming back
        site.talk.say(f"Its log could not be kept: {error}")
