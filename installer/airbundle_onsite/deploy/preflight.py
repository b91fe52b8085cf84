"""Everything that can be known before anything is changed, gathered into one report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Optional

from airbundle_onsite import match
from airbundle_onsite import plan as planning
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import record
from airbundle_onsite.deploy import ports
from airbundle_onsite.deploy.bases import check_bases
from airbundle_onsite.deploy.transaction import Before
from airbundle_onsite.deploy.world import ROOT_REMEDY, Site, root_problem
from airbundle_onsite.errors import ExitCode, PreflightError

_ROOT_CHECK = "preflight.root"
_PORT_CHECK = "preflight.port"
_LOWEST_PORT, _HIGHEST_PORT = 1, 65535


@record
class Verdict:
    """What the host can do with a bundle.

    Attributes:
        checks: every result.
        fingerprint: what they were made from.
        plan: the launch plan to take; None when none fits.
        host, port: where the service will answer.
        base: where the files are that the bundle builds on, by SHA-256.
    """

    checks: tuple[CheckResult, ...]
    fingerprint: Fingerprint
    plan: Optional[LaunchPlan]
    host: str
    port: int
    base: Mapping[str, Path] = field(default_factory=dict)

    @property
    def failed(self) -> list[CheckResult]:
        return [check for check in self.checks if check.status == "fail"]


class HostRefused(PreflightError):
    """The host cannot take the bundle. `checks` holds every result, passed or not."""

    status = "fail"
    verb = "cannot take"

    def __init__(self, manifest: BundleManifest, checks: Sequence[CheckResult]) -> None:
        blamed = [check for check in checks if check.status == self.status]
        details = []
        for check in blamed:
            found = f"; needed {check.expected}, found {check.actual}" if check.expected or check.actual else ""
            cure = f"; {check.remedy}" if check.remedy else ""
            details.append(f"{check.summary}{found}{cure}")
        super().__init__(
            f"this host {self.verb} {manifest.name} {manifest.version}: "
            f"{len(blamed)} of {len(checks)} checks {self.status}ed",
            details=details,
            remedy="put these right and run the same command again; nothing was changed",
        )
        self.checks = tuple(checks)


class HostWarned(HostRefused):
    """The host could perhaps take it, but warnings were to count."""

    exit_code = ExitCode.WARNINGS
    status = "warn"
    verb = "gives warnings for"


def examine(
    site: Site,
    manifest: BundleManifest,
    old: Before,
    *,
    bundle: Optional[Path],
    port: Optional[int],
    starts: bool = True,
    paranoid: bool = False,
) -> Verdict:
    """Take the fingerprint and hold it against what the bundle needs; changes nothing.

    Args:
        site: where.
        manifest: of the bundle, or of a staged release.
        old: what is active; its own port does not count as taken.
        bundle: the bundle's directory when it is about to be read; None for a release that is in the store.
        port: the port asked for; None keeps the active release's, else the bundle's.
        starts: whether it is about to be started; if not, a taken port is only a warning.
        paranoid: hash every file that the bundle builds on, also those that a proof vouches for.
    """
    fingerprint = site.fingerprint(**({"bundle": bundle} if bundle else {}))
    chosen = port if port is not None else old.release.record.port if old.release else manifest.serving.port
    host = manifest.serving.host
    present = site.store.bytes_present(manifest)
    checks = match.match_bundle(manifest, fingerprint, root=site.layout.root, port=0, present=present)
    if bundle is None:
        checks = [check for check in checks if not check.id.startswith("match.disk")]
    plan, reasons = planning.choose_plan(manifest, fingerprint)
    checks = [*checks, *reasons]
    if plan is not None:
        checks += site.runtime(plan.runtime).preflight(manifest, plan, fingerprint)
    checks.append(_check_root(site.layout.base))
    taken = _check_port(host, chosen, old)  # by binding it, and naming who holds it
    checks.append(dataclasses.replace(taken, status="warn") if taken.status == "fail" and not starts else taken)
    base: Mapping[str, Path] = {}
    if bundle is not None and manifest.bases:
        base, about = check_bases(site, manifest, paranoid=paranoid)
        checks += about
    return Verdict(tuple(checks), fingerprint, plan, host, chosen, base)


def _check_root(root: Path) -> CheckResult:
    reason = root_problem(root)
    if not reason:
        return CheckResult(_ROOT_CHECK, "pass", f"{root} can be written")
    summary = f"{root} cannot be written"
    return CheckResult(_ROOT_CHECK, "fail", summary, "a directory that this user may write", reason, ROOT_REMEDY)


def _own_port(old: Before) -> Optional[int]:
    return old.release.record.port if old.release is not None and old.running else None


def _check_port(host: str, port: int, old: Before) -> CheckResult:
    if not _LOWEST_PORT <= port <= _HIGHEST_PORT:
        return CheckResult(
            _PORT_CHECK, "fail", f"port {port} is no TCP port", "1 to 65535", str(port), "choose another with --port"
        )
    if port == _own_port(old):
        return CheckResult(_PORT_CHECK, "pass", f"port {port} is {old.version}'s, and will be taken over")
    if not ports.in_use(host, port):
        return CheckResult(_PORT_CHECK, "pass", f"port {port} is free")
    holder = ports.owner(port) or "a process that this user may not see"
    return CheckResult(
        _PORT_CHECK,
        "fail",
        f"port {port} on {host} is in use by {holder}",
        expected=f"port {port} free",
        actual=f"in use by {holder}",
        remedy="stop that process, or choose another port with --port N",
    )
