"""What is installed, what runs, and whether it really answers. Takes no lock and changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Optional

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import record
from airbundle_onsite.contract.release import ReleaseRecord
from airbundle_onsite.deploy import boot
from airbundle_onsite.deploy.restart import known_faults, loading_left
from airbundle_onsite.deploy.transaction import files_of
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import AirbundleError, IntegrityError
from airbundle_onsite.smoke.ready import wait_ready
from airbundle_onsite.store.releases import StagedRelease
from airbundle_onsite.units import human_seconds

_PATIENCE = 20  # seconds for one generation; a loaded engine answers in a few
_LOG_LINES = 2000


@record
class BundleStatus:
    """The state of one bundle name.

    Attributes:
        name: of the bundle.
        version: the active one; None when none is.
        state: ``running``, ``paused``, ``exited``, ``absent`` or ``unknown`` (`problem` says why).
        answers: whether a token was generated just now.
        loading: seconds for which one that does not answer may still be loading; 0 when it should answer.
        host, port, plan, runtime, engine: of the active release.
        active_since: seconds since the epoch of the last activation or start; 0 when unknown.
        uptime: seconds since then; 0 when it is not running.
        proven: seconds since the epoch of the last passed smoke run.
        gpus: names of the host's GPUs, for a plan that uses them.
        previous: what `--rollback` goes back to.
        boot: whether it is started at boot by a unit of ours: ``enabled``, ``outdated`` or ``disabled``.
        installed: versions, oldest first.
        damaged: installed versions whose record cannot be read, each with the reason.
        checks: of the readiness ladder.
        problem: why the state could not be read, or what is wrong although it runs.
        unfinished: a sentence about an interrupted operation, or about a journal that cannot be read; empty for none.
    """

    name: str
    version: Optional[str]
    state: str = "absent"
    answers: bool = False
    loading: int = 0
    host: str = ""
    port: int = 0
    plan: str = ""
    runtime: str = ""
    engine: str = ""
    active_since: int = 0
    uptime: int = 0
    proven: int = 0
    gpus: tuple[str, ...] = ()
    previous: Optional[str] = None
    boot: str = "disabled"
    installed: tuple[str, ...] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[CheckResult, ...] = ()
    problem: str = ""
    unfinished: str = ""


def status(site: Site, name: str) -> BundleStatus:
    """The state of a bundle, after asking its engine for one token."""
    version = site.store.active(name)
    blank = BundleStatus(
        name,
        version,
        installed=tuple(each.version for each in site.store.versions(name)),
        damaged=site.store.damaged(name),
        unfinished=_unfinished(site, name),
    )
    if version is None:
        return blank
    try:
        return _active(site, site.store.load(name, version), blank)
    except AirbundleError as error:
        return dataclasses.replace(blank, state="unknown", problem="; ".join(error.lines()))


def _active(site: Site, release: StagedRelease, blank: BundleStatus) -> BundleStatus:
    made, plan = release.record, files_of(release).plan
    known = dataclasses.replace(
        blank,
        host=made.host,
        port=made.port,
        plan=made.plan,
        runtime=made.runtime,
        engine=f"{plan.engine} {plan.engine_version}",
        proven=made.proven,
        previous=made.previous,
        boot=boot.state_of(site, release).state,
        active_since=_integer(made.instance.get("active_since")),
    )
    runtime = site.runtime(made.runtime)
    instance = runtime.find(made.name, made.version, "service")
    if instance is None:
        return known
    seen = runtime.state(instance)
    state = seen.status
    if state != "running":
        return dataclasses.replace(known, state=state)
    quick = dataclasses.replace(
        plan, readiness=dataclasses.replace(plan.readiness, load_seconds=_PATIENCE, request_seconds=_PATIENCE)
    )
    checks = tuple(wait_ready(instance, quick, runtime, site.world.clock, site.talk))
    answers = all(check.status != "fail" for check in checks)
    if not answers:
        checks = (*checks, *known_faults(plan, runtime.logs(instance, _LOG_LINES)))
    return dataclasses.replace(
        known,
        state=state,
        problem=seen.problem,
        answers=answers,
        loading=0 if answers else int(loading_left(release, plan, seen)),
        uptime=max(0, site.now() - known.active_since) if known.active_since else 0,
        gpus=_gpus(site) if plan.gpus != "none" else (),
        checks=checks,
    )


def _gpus(site: Site) -> tuple[str, ...]:
    return tuple(gpu.name or f"GPU {gpu.index}" for gpu in site.fingerprint().gpu.devices)


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0


def _unfinished(site: Site, name: str) -> str:
    try:
        entry = site.journal.unfinished()
    except IntegrityError as error:
        return error.summary
    if entry is None or entry.name != name:
        return ""
    return f"{entry.op} of {entry.version}, at the step '{entry.step}': the next changing command finishes or undoes it"


def status_text(state: BundleStatus) -> str:
    """For people."""
    lines = [f"{state.name}: {_headline(state)}"]
    if state.version is not None and state.port:
        lines.append(f"  address    http://{state.host}:{state.port}")
        lines.append(f"  engine     {state.engine}, plan {state.plan}, runtime {state.runtime}")
        if state.gpus:
            lines.append(f"  GPUs       {', '.join(state.gpus)}")
        if state.uptime:
            lines.append(f"  active for {human_seconds(state.uptime)}")
        if state.previous:
            lines.append(f"  previous   {state.previous} (--rollback goes back to it)")
        if state.boot != "disabled":
            anew = "" if state.boot == "enabled" else ", by a unit for another release: --enable-boot writes it anew"
            lines.append(f"  at boot    it is started{anew}")
    lines.append(f"  installed  {', '.join(state.installed) or 'nothing'}")
    lines += [f"  damaged    {version}: {reason}" for version, reason in state.damaged.items()]
    if state.unfinished:
        lines.append(f"  unfinished {state.unfinished}")
    for check in state.checks:
        if check.status == "fail":
            lines.append(f"  {check.summary}" + (f": {check.remedy}" if check.remedy else ""))
    return "\n".join(lines)


def _headline(state: BundleStatus) -> str:
    if state.version is None:
        return "no version is active"
    if state.answers:
        return f"{state.version} is running and answers" + (f", but {state.problem}" if state.problem else "")
    if state.state == "unknown":
        return f"{state.version}: its state could not be read: {state.problem}"
    if state.loading:
        return f"{state.version} does not answer yet: it may be loading for up to {human_seconds(state.loading)} more"
    if state.state == "running":
        return f"{state.version} is running, but does not answer; --start restarts it"
    if state.state == "paused":
        return f"{state.version} is paused, and answers nothing; --start restarts it"
    return f"{state.version} is not running ({state.state}); --start starts it"


def list_text(records: list[ReleaseRecord], active: Optional[str]) -> str:
    """One line per release, the active one marked."""
    lines = []
    for each in records:
        mark = "*" if each.version == active else " "
        proven = "proven" if each.proven else "not proven"
        lines.append(f"{mark} {each.name} {each.version}  sequence {each.sequence}, plan {each.plan}, {proven}")
    return "\n".join(lines)
