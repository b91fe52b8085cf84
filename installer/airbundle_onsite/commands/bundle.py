"""Commands about a bundle that was brought, and the host it meets: verify, install, receive, ask for repair."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from airbundle_onsite import match
from airbundle_onsite.commands.base import Options, Report, checks_report, outcome_report
from airbundle_onsite.contract.checks import CheckResult, exit_code
from airbundle_onsite.contract.record import encode
from airbundle_onsite.deploy import install, signers
from airbundle_onsite.deploy.bases import check_bases
from airbundle_onsite.deploy.inventory import counts, take_inventory
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import ExitCode, UsageError
from airbundle_onsite.render import checks_text, json_text
from airbundle_onsite.store.disk import FILE_MODE, write_atomic
from airbundle_onsite.transport import blame, places, received
from airbundle_onsite.verify.bundle import TrustedManifest
from airbundle_onsite.verify.listing import SPREAD_CHECK
from airbundle_onsite.verify.parts import check_parts
from airbundle_onsite.verify.source import Directory


def _opened(site: Site, options: Options) -> contextlib.AbstractContextManager[places.Places]:
    """Where the bundle and its parts are. Raises UsageError when none was named, FetchError."""
    return places.opened(
        options.bundle, options.sources, store=site.layout, clock=site.world.clock, proxy=options.proxy
    )


def _install_options(options: Options, found: places.Places, *, stage_only: bool = False) -> install.InstallOptions:
    return install.InstallOptions(
        port=options.port,
        trust=options.trust,
        stage_only=stage_only,
        reinstall=options.reinstall,
        allow_older=options.allow_older,
        strict=options.strict,
        paranoid=options.paranoid,
        source=found.source,
    )


def run_install(site: Site, options: Options) -> Report:
    """Verify, preflight, install, smoke, activate."""
    with _opened(site, options) as found:
        return outcome_report(install.install(site, found.directory, _install_options(options, found)))


def run_stage(site: Site, options: Options) -> Report:
    """Install without activating."""
    with _opened(site, options) as found:
        return outcome_report(install.install(site, found.directory, _install_options(options, found, stage_only=True)))


def run_verify(site: Site, options: Options) -> Report:
    """Every byte of the bundle, its signature, and the host's fingerprint; changes nothing."""
    with _opened(site, options) as found:
        return _verified(site, options, found)


def _verified(site: Site, options: Options, found: places.Places) -> Report:
    directory = found.directory
    trusted, checks = signers.Signers(site, options.trust).checks(directory, found.source)
    if trusted is not None:
        checks += _age(site, trusted)
        checks += check_parts(trusted, site.talk)
        failure = _worst_of_bundle(checks)
        needs = trusted.manifest.needs
        host = match.match_profile(needs.profile, site.fingerprint(bundle=directory), runtime=needs.runtime)
        host += check_bases(site, trusted.manifest, paranoid=options.paranoid)[1]
        code = exit_code(checks, failure, strict=options.strict)
        if code in (ExitCode.OK, ExitCode.WARNINGS):
            code = exit_code([*checks, *host], ExitCode.PREFLIGHT, strict=options.strict)
        checks += host
    else:
        code = exit_code(checks, _worst_of_bundle(checks), strict=options.strict)
        unread = "the parts were not read, and this host was not looked at: what failed above comes first"
        checks.append(CheckResult("verify.part", "skip", unread))
    return checks_report(checks, code)


def _age(site: Site, trusted: TrustedManifest) -> list[CheckResult]:
    """A warning when the bundle is older than one that was installed before: somebody may have replayed it."""
    manifest = trusted.manifest
    highest = site.store.highest_sequence(manifest.name)
    if manifest.taken_after >= highest:
        return []
    summary = f"it has sequence {manifest.sequence}, and sequence {highest} was installed here: it is older"
    return [CheckResult("verify.sequence", "warn", summary, remedy="installing it needs --allow-older")]


def _worst_of_bundle(checks: list[CheckResult]) -> ExitCode:
    signature = any(check.id == "verify.signature" and check.status == "fail" for check in checks)
    return ExitCode.TRUST if signature else ExitCode.INTEGRITY


def run_preflight(site: Site, options: Options) -> Report:
    """Whether this host can take the bundle; changes nothing."""
    with _opened(site, options) as found:
        source = found.source or Directory(found.directory)
        trusted, checks = signers.Signers(site, options.trust).checks(found.directory, source)
        failed = [check for check in checks if check.status == "fail"]
        if trusted is None or any(check.id != SPREAD_CHECK for check in failed):
            return checks_report(checks, exit_code(checks, _worst_of_bundle(checks)))
        verdict = install.survey(site, trusted, _install_options(options, found))
    results = [*map(_not_here_yet, failed), *verdict.checks]
    return checks_report(results, exit_code(results, ExitCode.PREFLIGHT, strict=options.strict))


def _not_here_yet(check: CheckResult) -> CheckResult:
    """Parts that still travel are no reason against a host: what it can take is known from the manifest alone."""
    remedy = "an installation needs them; bring them, or take them in as they come with --receive"
    return dataclasses.replace(check, id="preflight.parts", status="warn", remedy=remedy)


def run_dry(site: Site, options: Options) -> Report:
    """What an installation would do; changes nothing."""
    with _opened(site, options) as found:
        verdict, steps = install.rehearse(site, found.directory, _install_options(options, found))
    code = exit_code(verdict.checks, ExitCode.PREFLIGHT, strict=options.strict)
    text = "\n".join([checks_text(verdict.checks), "", "An installation would:", *(f"  {step}" for step in steps)])
    return Report(text, {"checks": verdict.checks, "steps": steps}, code)


def run_repair_request(site: Site, options: Options) -> Report:
    """Read every byte, and write down what is bad for the office to send again; the media are left alone."""
    path = Path(options.value or "")
    with _opened(site, options) as found:
        if path.resolve().parent == found.directory.resolve():
            raise UsageError(f"{path} lies in the bundle, which is never changed", remedy="name a file elsewhere")
        trusted, checks = signers.Signers(site, options.trust).checks(found.directory, found.source)
        made = blame.blame(trusted, checks, found.directory, found.source, site.talk)
    if trusted is None and not made.bad:
        return checks_report(checks, exit_code(checks, _worst_of_bundle(checks)))
    if made.bad:
        write_atomic(path, encode(made.request), FILE_MODE)
    return Report(blame.blame_text(made, str(path)), made)


def run_receive(site: Site, options: Options) -> Report:
    """Take parts in, as they come; their media may go away afterwards."""
    with _opened(site, options) as found:
        given = places.given(options.values, clock=site.world.clock, proxy=options.proxy)
        trusted, checks = signers.Signers(site, options.trust).checks(found.directory, given.source)
        wrong = [check for check in checks if check.status == "fail" and check.id != SPREAD_CHECK]
        if trusted is None or wrong:
            return checks_report(checks, exit_code(checks, _worst_of_bundle(checks)))
        with given, site.exclusive():
            arrival = received.Reception(site.layout, trusted, site.talk).take(given.source)
    return Report(
        received.arrival_text(arrival, site.layout.root), arrival, ExitCode.INTEGRITY if arrival.bad else ExitCode.OK
    )


def run_received(site: Site, options: Options) -> Report:
    """What was received so far, and what is lacking."""
    states = []
    for directory in received.directories(site.layout):
        trusted, _ = signers.Signers(site, options.trust).checks(directory, Directory(directory))
        if trusted is not None:
            states.append(received.state_of(trusted, directory))
    text = "\n".join(received.state_text(state, site.layout.root) for state in states)
    return Report(text or f"nothing was received under {site.layout.root}", states)


def run_fingerprint(site: Site, options: Options) -> Report:
    """What this host is."""
    taken = site.fingerprint(**({"bundle": options.bundle} if options.bundle else {}))
    if options.value is None:
        return Report(json_text(taken), taken)
    path = Path(options.value)
    write_atomic(path, encode(taken), FILE_MODE)
    return Report(f"fingerprint written to {path}", {"file": str(path)})


def run_inventory(site: Site, options: Options) -> Report:
    """What is installed, for `airbundle build --base`."""
    taken = take_inventory(site, with_tensors=options.with_tensors)
    path = Path(options.value or "")
    write_atomic(path, encode(taken), FILE_MODE)
    found = counts(taken)
    text = f"{path}: {found['releases']} release(s), {found['files']} files, {found['images']} image(s)"
    return Report(f"{text}; at the office: airbundle build SPEC --base {path.name}", {"file": str(path), **found})
