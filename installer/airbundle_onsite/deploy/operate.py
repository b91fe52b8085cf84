"""Everyday work on what is installed: start, stop, smoke, prune, uninstall."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Optional

from airbundle_onsite import runtimes
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import record
from airbundle_onsite.contract.release import ReleaseRecord
from airbundle_onsite.deploy import boot
from airbundle_onsite.deploy.activate import Declined
from airbundle_onsite.deploy.ports import in_use, owner
from airbundle_onsite.deploy.restart import Started, answering, see_that_it_answers
from airbundle_onsite.deploy.transaction import begin_service, files_of, recover, running_instance
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import AirbundleError, DeployError, PreflightError, UsageError
from airbundle_onsite.runtimes.base import Runtime
from airbundle_onsite.smoke.latency import Latency, latency_check, measure_latency
from airbundle_onsite.smoke.run import run_smoke
from airbundle_onsite.store.releases import StagedRelease


@record
class Removed:
    """What `prune` or `uninstall` removed.

    Attributes:
        releases: ``name version`` each.
        freed: bytes under the root.
        outside: what else went, as ``image engine:1``.
    """

    releases: tuple[str, ...]
    freed: int
    outside: tuple[str, ...] = ()


def active_release(site: Site, name: str) -> StagedRelease:
    """The active release. Raises UsageError when there is none."""
    version = site.store.active(name)
    if version is None:
        have = ", ".join(each.version for each in site.store.versions(name)) or "none"
        raise UsageError(f"no version of {name} is active", remedy=f"installed: {have}; --activate VERSION starts one")
    return site.store.load(name, version)


def start(site: Site, name: str, *, afresh: bool = False) -> Started:
    """See to it that the active release answers: start it, wait while it loads, restart it when it never will.

    Args:
        site: where.
        name: of the bundle.
        afresh: restart it also when it answers.

    Raises:
        PreflightError: another process has its port.
        DeployError: it does not come up.
    """
    with site.exclusive():
        recover(site)
        release = active_release(site, name)
        instance = running_instance(site, release)
        if instance is None:
            _require_port(release.record)
            return Started(answering(site, release, lambda: begin_service(site, release)))
        return see_that_it_answers(site, release, instance, afresh=afresh)


def _require_port(made: ReleaseRecord) -> None:
    if in_use(made.host, made.port):
        holder = owner(made.port) or "a process that this user may not see"
        raise PreflightError(f"port {made.port} on {made.host} is in use by {holder}", remedy="stop that process")


def stop(site: Site, name: str) -> StagedRelease:
    """Stop the active release, if it runs; `start` brings it back."""
    with site.exclusive():
        recover(site)
        release = active_release(site, name)
        instance, made = running_instance(site, release), release.record
        if instance is not None:
            site.runtime(made.runtime).stop(instance)
        elif in_use(made.host, made.port):
            holder = owner(made.port) or "a process that this user may not see"
            site.talk.say(f"Port {made.port} on {made.host} is in use by {holder}, which was not started from here")
        return release


@record
class Smoked:
    """The results of the smoke tests, and what a streamed answer took; None when none was to be had."""

    checks: tuple[CheckResult, ...]
    latency: Optional[Latency] = None


def smoke(site: Site, name: str) -> Smoked:
    """Run the active release's smoke tests against what runs; changes nothing.

    Raises:
        DeployError: it is not running.
    """
    release = active_release(site, name)
    instance = running_instance(site, release)
    made = release.record
    if instance is None:
        raise DeployError(f"{made.name} {made.version} is not running", restored=None, remedy="--start starts it")
    if site.runtime(made.runtime).state(instance).status == "paused":
        raise DeployError(f"{made.name} {made.version} is paused", restored=None, remedy="--start restarts it")
    files = files_of(release)
    checks = run_smoke(files.manifest, files.plan, instance, site.world.clock, site.talk)
    if any(check.status == "fail" for check in checks):
        return Smoked(tuple(checks))
    found = measure_latency(files.manifest, files.plan, instance, site.talk)
    return Smoked((*checks, *latency_check(found)), found if isinstance(found, Latency) else None)


def prune(site: Site, name: str, keep: int) -> Removed:
    """Remove releases other than the active one, the one before it, and the `keep` newest of the rest."""
    with site.exclusive():
        recover(site)
        current = site.store.active(name)
        kept = {current}
        if current is not None:
            kept.add(site.store.load(name, current).record.previous)
        rest = [each.version for each in site.store.versions(name) if each.version not in kept]
        doomed = rest[: max(0, len(rest) - keep)]
        if doomed and not site.confirm(f"Remove {', '.join(f'{name} {version}' for version in doomed)}?"):
            raise Declined
        kinds = {each.runtime for each in site.store.versions(name)}
        for version in doomed:
            _remove_instances(site, name, version)
        outside = _sweep_outside(site, kinds, name, doomed)
        freed = sum(site.store.remove(name, version) for version in doomed) + site.store.sweep()
        return Removed(tuple(f"{name} {version}" for version in doomed), freed, outside)


def uninstall(site: Site, name: str, version: Optional[str]) -> Removed:
    """Remove one version, or all of that name; what runs of them is stopped.

    Raises:
        UsageError: it is not installed.
    """
    with site.exclusive():
        recover(site)
        damaged = site.store.damaged(name)
        versions = [*(each.version for each in site.store.versions(name)), *damaged] if version is None else [version]
        if version is not None:
            site.store.require(name, version)
        current = site.store.active(name)
        running = f" {current} is active and will be stopped." if current in versions else ""
        if not site.confirm(f"Remove {', '.join(f'{name} {each}' for each in versions)}?{running}"):
            raise Declined
        kinds = {each.runtime for each in site.store.versions(name) if each.version in versions}
        for each in versions:
            _remove_instances(site, name, each)
            if each == current:
                site.store.deactivate(name)
        # Before the last release goes: after a crash in between, the same command can still be given.
        outside = _sweep_outside(site, kinds, name, versions)
        if set(versions) >= {each.version for each in site.store.versions(name)}:
            outside += _forget_boot(site, name)
        freed = sum(site.store.remove(name, each) for each in versions)
        site.store.forget(name)
        return Removed(tuple(f"{name} {each}" for each in versions), freed, outside)


def enable_boot(site: Site, name: str) -> boot.Boot:
    """Have the active release started at boot. Raises PreflightError."""
    with site.exclusive():
        recover(site)
        return boot.enable(site, active_release(site, name))


def disable_boot(site: Site, name: str) -> boot.Boot:
    """No longer start it at boot; what runs goes on. Raises PreflightError."""
    with site.exclusive():
        return boot.disable(site, name)


def _forget_boot(site: Site, name: str) -> tuple[str, ...]:
    """Remove the unit of a bundle whose releases all go; a unit that cannot be removed must not keep them here."""
    try:
        gone = boot.disable(site, name)
    except PreflightError as error:
        site.talk.say("; ".join(error.lines()))
        return ()
    return (f"unit {gone.unit}",) if gone.changed else ()


def _sweep_outside(site: Site, kinds: Iterable[str], name: str, doomed: Sequence[str]) -> tuple[str, ...]:
    """Remove what runtimes keep outside the root for releases that go; what cannot go is said."""
    gone: list[str] = []
    try:
        kept = [site.store.load(*each).manifest for each in _releases(site) if each[0] != name or each[1] not in doomed]
        for kind in sorted(set(kinds)):
            gone += site.runtime(kind).sweep(kept)
    except AirbundleError as error:  # a damaged release may need any image; an engine may be down
        site.talk.say(f"Images were left where they are; --prune tries again: {error.summary}")
    return tuple(gone)


def _releases(site: Site) -> list[tuple[str, str]]:
    """Name and version of every release under the root, damaged ones too."""
    store = site.store
    return [
        (name, version)
        for name in store.bundles()
        for version in (*(each.version for each in store.versions(name)), *store.damaged(name))
    ]


def _remove_instances(site: Site, name: str, version: str) -> None:
    kinds = {each.runtime for each in site.store.versions(name) if each.version == version}
    for known in kinds:
        _remove_from(site.runtime(known), name, version)
    if not kinds:  # its record is damaged: it may run under any of them, and not all of them are on this host
        for kind in runtimes.discover():
            with contextlib.suppress(AirbundleError):
                _remove_from(site.runtime(kind), name, version)


def _remove_from(runtime: Runtime, name: str, version: str) -> None:
    for instance in (runtime.find(name, version, "candidate"), runtime.find(name, version, "service")):
        if instance is not None:
            runtime.remove(instance)
