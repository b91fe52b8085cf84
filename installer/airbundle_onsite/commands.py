"""What each word of the site's command line does: from options to a report. Writes nothing to the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Optional

from airbundle_onsite import match
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult, exit_code
from airbundle_onsite.contract.record import encode, record, to_plain
from airbundle_onsite.deploy import activate, install, operate, signers, status, support
from airbundle_onsite.deploy.bases import check_bases
from airbundle_onsite.deploy.inventory import counts, take_inventory
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import ExitCode, UsageError
from airbundle_onsite.render import checks_text, json_text
from airbundle_onsite.store.disk import FILE_MODE, write_atomic
from airbundle_onsite.transport import blame, places, received
from airbundle_onsite.units import human_bytes, human_seconds
from airbundle_onsite.verify.bundle import TrustedManifest
from airbundle_onsite.verify.parts import check_parts
from airbundle_onsite.verify.source import Directory


@record
class Options:
    """The command line, decided.

    Attributes:
        command: a key of `COMMANDS`.
        value: the word that follows it, e.g. a version or a file.
        root: installation root.
        bundle: directory of the bundle; None for airbundlectl.
        name: bundle name, when several are installed.
        port, stage_only, reinstall, allow_older: see `install.InstallOptions`.
        trust: see `signers.TrustOptions`.
        keep: for prune: how many more versions stay.
        yes: answer every question with yes.
        json: results as JSON.
        strict: warnings give exit code 4.
        paranoid: see `install.InstallOptions`.
        with_tensors: for inventory: list the tensors of model files.
        sources: further directories and URLs that parts are taken from.
        proxy: URL of a proxy for those URLs; empty for none.
        values: all the words that follow it, where it takes several.
    """

    command: str
    value: Optional[str] = None
    root: Path = Path(layout.DEFAULT_ROOT)
    bundle: Optional[Path] = None
    name: Optional[str] = None
    port: Optional[int] = None
    trust: signers.TrustOptions = signers.TrustOptions()
    reinstall: bool = False
    allow_older: bool = False
    keep: int = 0
    yes: bool = False
    json: bool = False
    strict: bool = False
    paranoid: bool = False
    with_tensors: bool = False
    sources: tuple[str, ...] = ()
    proxy: str = ""
    values: tuple[str, ...] = ()


@record
class Report:
    """A result: `text` for people, `data` for JSON, and the exit code."""

    text: str
    data: Any
    code: ExitCode = ExitCode.OK


@record
class Command:
    """One word of the command line.

    Attributes:
        run: does it.
        help: one line.
        value: name of the word that follows; empty for none.
        optional: whether that word may be left out.
        several: whether it may be several words.
        changes: whether it changes the site, and so is logged.
    """

    run: Callable[[Site, Options], Report]
    help: str
    value: str = ""
    optional: bool = False
    changes: bool = False
    several: bool = False


# --- the bundle -------------------------------------------------------------------------------------------
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
        return _outcome(install.install(site, found.directory, _install_options(options, found)))


def run_stage(site: Site, options: Options) -> Report:
    """Install without activating."""
    with _opened(site, options) as found:
        return _outcome(install.install(site, found.directory, _install_options(options, found, stage_only=True)))


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
    return _checks(checks, code)


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
        verdict = install.survey(site, found.directory, _install_options(options, found))
    return _checks(list(verdict.checks), exit_code(verdict.checks, ExitCode.PREFLIGHT, strict=options.strict))


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
        return _checks(checks, exit_code(checks, _worst_of_bundle(checks)))
    if made.bad:
        write_atomic(path, encode(made.request), FILE_MODE)
    return Report(blame.blame_text(made, str(path)), made)


def run_receive(site: Site, options: Options) -> Report:
    """Take parts in, as they come; their media may go away afterwards."""
    with _opened(site, options) as found:
        given = places.given(options.values, clock=site.world.clock, proxy=options.proxy)
        trusted, checks = signers.Signers(site, options.trust).checks(found.directory, given.source)
        wrong = [check for check in checks if check.status == "fail" and check.id != "verify.spread"]
        if trusted is None or wrong:
            return _checks(checks, exit_code(checks, _worst_of_bundle(checks)))
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


# --- what is installed ------------------------------------------------------------------------------------
def _name(site: Site, options: Options) -> str:
    """The bundle meant: named, or the only one there is."""
    names = site.store.bundles()
    if options.name is not None:
        if options.name not in names:
            raise UsageError(
                f"{options.name} is not installed under {site.layout.root}; installed: {_listed(names)}",
                remedy="name one of those, or another place with --root DIR",
            )
        return options.name
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError(
            f"nothing is installed under {site.layout.root}",
            remedy="install a bundle first, or name another place with --root DIR",
        )
    raise UsageError(f"several bundles are installed: {_listed(names)}", remedy="say which one with --name NAME")


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "nothing"


def _nothing(site: Site) -> str:
    return f"nothing is installed under {site.layout.root} (--root DIR names another place)"


def run_activate(site: Site, options: Options) -> Report:
    """Make an installed version the active one."""
    version = options.value or ""
    return _outcome(activate.activate(site, _name(site, options), version, port=options.port))


def run_rollback(site: Site, options: Options) -> Report:
    """Go back to the version that was active before, or to the one named."""
    return _outcome(activate.rollback(site, _name(site, options), options.value))


def run_start(site: Site, options: Options) -> Report:
    """See to it that the active version answers."""
    return _started(operate.start(site, _name(site, options)))


def run_restart(site: Site, options: Options) -> Report:
    """Start the active version afresh, whatever it does."""
    return _started(operate.start(site, _name(site, options), afresh=True))


def _started(started: operate.Started) -> Report:
    made = started.release.record
    text = f"{made.name} {made.version} answers at http://{made.host}:{made.port}"
    if started.restarted:
        text += f"; it was restarted: {started.restarted}"
    return Report(text, {**to_plain(made), "restarted": started.restarted})


def run_stop(site: Site, options: Options) -> Report:
    """Stop the active version."""
    made = operate.stop(site, _name(site, options)).record
    return Report(f"{made.name} {made.version} is stopped; --start starts it", made)


def run_enable_boot(site: Site, options: Options) -> Report:
    """Have the active version started when the machine starts."""
    made = operate.enable_boot(site, _name(site, options))
    text = f"started at boot by {made.unit}; what runs now was not touched, and nothing was reloaded"
    return Report(text, made)


def run_disable_boot(site: Site, options: Options) -> Report:
    """No longer start it when the machine starts."""
    made = operate.disable_boot(site, _name(site, options))
    gone = f"{made.unit} is removed; what runs goes on" if made.changed else "it was not started at boot by a unit"
    return Report(gone, made)


def run_status(site: Site, options: Options) -> Report:
    """What is active, and whether it answers."""
    names = [_name(site, options)] if options.name else site.store.bundles()
    states = [status.status(site, name) for name in names]
    if not states:
        return Report(_nothing(site), [], ExitCode.NOTHING_RUNNING)
    well = all(state.answers for state in states)
    text = "\n".join(status.status_text(state) for state in states)
    return Report(text, states, ExitCode.OK if well else ExitCode.NOTHING_RUNNING)


def run_list(site: Site, options: Options) -> Report:
    """Every installed version."""
    lines, data = [], []
    for name in [_name(site, options)] if options.name else site.store.bundles():
        active = site.store.active(name)
        records = site.store.versions(name)
        lines += [status.list_text(records, active)] if records else []
        data += [{"active": each.version == active, "release": each} for each in records]
        for version, reason in site.store.damaged(name).items():
            lines.append(f"! {name} {version}  damaged: {reason}")
            data.append({"active": version == active, "name": name, "version": version, "damaged": reason})
    return Report("\n".join(lines) or _nothing(site), data)


def run_smoke(site: Site, options: Options) -> Report:
    """The smoke tests, against what runs."""
    smoked = operate.smoke(site, _name(site, options))
    code = exit_code(smoked.checks, ExitCode.NOTHING_RUNNING, strict=options.strict)
    data = {"exit_code": int(code), "checks": smoked.checks, "latency": smoked.latency}
    return Report(checks_text(smoked.checks), data, code)


def run_prune(site: Site, options: Options) -> Report:
    """Remove old versions and leftovers."""
    return _removed(operate.prune(site, _name(site, options), options.keep))


def run_uninstall(site: Site, options: Options) -> Report:
    """Remove one version, or all of them."""
    report = _removed(operate.uninstall(site, _name(site, options), options.value))
    pinned = signers.pinned_file(site)
    if site.store.bundles() or not pinned.exists():
        return report
    said = f"kept: {pinned}, which names the signers that were accepted here; remove it to be asked anew"
    return Report(f"{report.text}\n{said}", {**to_plain(report.data), "kept": [str(pinned)]})


def run_support(site: Site, options: Options) -> Report:
    """Logs, journal, records and fingerprint in one file, without secrets."""
    path = Path(options.value or "")
    names = support.support_bundle(site, path)
    return Report(f"{path}: {len(names)} files, secrets redacted", {"file": str(path), "contents": names})


# --- reports ----------------------------------------------------------------------------------------------
def _outcome(outcome: activate.Outcome) -> Report:
    return Report(f"{outcome.answer} ({human_seconds(outcome.seconds)})", outcome)


def _checks(checks: list[CheckResult], code: ExitCode) -> Report:
    return Report(checks_text(checks), {"exit_code": int(code), "checks": checks}, code)


def _removed(removed: operate.Removed) -> Report:
    what = ", ".join([*removed.releases, *removed.outside]) or "no release"
    return Report(f"removed: {what}; {human_bytes(removed.freed)} freed", removed)


COMMANDS: Mapping[str, Command] = {
    "install": Command(run_install, "verify, preflight, install, prove and activate (the default)", changes=True),
    "verify": Command(run_verify, "prove every byte and the signature, compare the host; changes nothing"),
    "repair-request": Command(run_repair_request, "read every byte; ask in FILE for what is bad", "FILE"),
    "receive": Command(run_receive, "take in parts (files, folders, URLs) as they come", "PART", False, True, True),
    "received": Command(run_received, "what was received so far, and what is lacking"),
    "preflight": Command(run_preflight, "whether this host can take the bundle; changes nothing"),
    "dry-run": Command(run_dry, "what an installation would do; changes nothing"),
    "fingerprint": Command(run_fingerprint, "what this host is, as JSON", "FILE", optional=True),
    "inventory": Command(run_inventory, "what is installed, for a bundle that leaves it out", "FILE"),
    "stage": Command(run_stage, "install without activating", changes=True),
    "activate": Command(run_activate, "make an installed version the active one", "VERSION", changes=True),
    "rollback": Command(run_rollback, "go back to the version before, or to VERSION", "VERSION", True, True),
    "status": Command(run_status, "what is active, and whether it answers"),
    "list": Command(run_list, "every installed version"),
    "smoke": Command(run_smoke, "run the smoke tests against what runs"),
    "start": Command(run_start, "start the active version; restart it when it runs and does not answer", changes=True),
    "restart": Command(run_restart, "start the active version afresh, also when it answers", changes=True),
    "stop": Command(run_stop, "stop the active version", changes=True),
    "enable-boot": Command(run_enable_boot, "start the active version at boot: writes a unit of systemd", changes=True),
    "disable-boot": Command(run_disable_boot, "remove that unit; what runs goes on", changes=True),
    "prune": Command(run_prune, "remove versions other than the active one and the one before", changes=True),
    "support-bundle": Command(run_support, "logs, journal and facts in one file, without secrets", "FILE"),
    "uninstall": Command(run_uninstall, "remove VERSION, or all versions", "VERSION", True, True),
}
