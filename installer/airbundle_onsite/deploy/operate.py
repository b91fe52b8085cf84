"""Everyday work on what is installed: start, stop, smoke, prune, uninstall."""

from __future__ import annotations

import contextlib
from typing import Optional

from airbundle_onsite import runtimes
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import record
from airbundle_onsite.deploy.activate import Declined
from airbundle_onsite.deploy.ports import in_use, owner
from airbundle_onsite.deploy.transaction import files_of, recover, running_instance, start_service
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import AirbundleError, DeployError, PreflightError, UsageError
from airbundle_onsite.runtimes.base import Runtime
from airbundle_onsite.smoke.run import run_smoke
from airbundle_onsite.store.releases import StagedRelease


@record
class Removed:
    """What `prune` or `uninstall` removed: ``name version`` each, and the bytes freed."""

    releases: tuple[str, ...]
    freed: int


def active_release(site: Site, name: str) -> StagedRelease:
    """The active release. Raises UsageError when there is none."""
    version = site.store.active(name)
    if version is None:
        have = ", ".join(each.version for each in site.store.versions(name)) or "none"
        raise UsageError(f"no version of {name} is active", remedy=f"installed: {have}; --activate VERSION starts one")
    return site.store.load(name, version)


def start(site: Site, name: str) -> StagedRelease:
    """Start the active release unless it runs, and wait until it answers.

    Raises:
        PreflightError: another process has its port.
        DeployError: it does not come up.
    """
    with site.exclusive():
        recover(site)
        release = active_release(site, name)
        if running_instance(site, release) is not None:
            return release
        made = release.record
        if in_use(made.host, made.port):
            holder = owner(made.port) or "a process that this user may not see"
            raise PreflightError(f"port {made.port} on {made.host} is in use by {holder}", remedy="stop that process")
        try:
            instance = start_service(site, release)
        except AirbundleError as error:
            raise DeployError(error.summary, restored=None, remedy=error.remedy, details=error.details) from error
        return site.store.save(release, instance={**instance.details, "active_since": site.now()})


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


def smoke(site: Site, name: str) -> list[CheckResult]:
    """Run the active release's smoke tests against what runs; changes nothing.

    Raises:
        DeployError: it is not running.
    """
    release = active_release(site, name)
    instance = running_instance(site, release)
    if instance is None:
        made = release.record
        raise DeployError(f"{made.name} {made.version} is not running", restored=None, remedy="--start starts it")
    files = files_of(release)
    return list(run_smoke(files.manifest, files.plan, instance, site.world.clock, site.talk))


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
        freed = sum(_remove(site, name, version) for version in doomed) + site.store.sweep()
        return Removed(tuple(f"{name} {version}" for version in doomed), freed)


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
        freed = 0
        for each in versions:
            if each == current:
                _remove_instances(site, name, each)
                site.store.deactivate(name)
            freed += _remove(site, name, each)
        site.store.forget(name)
        return Removed(tuple(f"{name} {each}" for each in versions), freed)


def _remove(site: Site, name: str, version: str) -> int:
    _remove_instances(site, name, version)
    return site.store.remove(name, version)


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
