"""What each word of the site's command line does: from options to a report. Writes nothing to the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Optional

from airbundle_onsite import match
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult, exit_code
from airbundle_onsite.contract.record import encode, record
from airbundle_onsite.deploy import activate, install, operate, signers, status, support
from airbundle_onsite.deploy.bases import check_bases
from airbundle_onsite.deploy.inventory import counts, take_inventory
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import ExitCode, UsageError
from airbundle_onsite.render import checks_text, human_bytes, human_seconds, json_text
from airbundle_onsite.store.disk import FILE_MODE, write_atomic
from airbundle_onsite.verify.bundle import TrustedManifest
from airbundle_onsite.verify.parts import check_parts


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
        changes: whether it changes the site, and so is logged.
    """

    run: Callable[[Site, Options], Report]
    help: str
    value: str = ""
    optional: bool = False
    changes: bool = False


# --- the bundle -------------------------------------------------------------------------------------------
def _bundle(options: Options) -> Path:
    if options.bundle is None:
        raise UsageError("no bundle was named", remedy="run the bundle's own install.sh, or add --bundle DIR")
    return options.bundle


def _install_options(options: Options, *, stage_only: bool = False) -> install.InstallOptions:
    return install.InstallOptions(
        port=options.port,
        trust=options.trust,
        stage_only=stage_only,
        reinstall=options.reinstall,
        allow_older=options.allow_older,
        strict=options.strict,
        paranoid=options.paranoid,
    )


def run_install(site: Site, options: Options) -> Report:
    """Verify, preflight, install, smoke, activate."""
    return _outcome(install.install(site, _bundle(options), _install_options(options)))


def run_stage(site: Site, options: Options) -> Report:
    """Install without activating."""
    return _outcome(install.install(site, _bundle(options), _install_options(options, stage_only=True)))


def run_verify(site: Site, options: Options) -> Report:
    """Every byte of the bundle, its signature, and the host's fingerprint; changes nothing."""
    directory = _bundle(options)
    trusted, checks = signers.Signers(site, options.trust).checks(directory)
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
    verdict = install.survey(site, _bundle(options), _install_options(options))
    return _checks(list(verdict.checks), exit_code(verdict.checks, ExitCode.PREFLIGHT, strict=options.strict))


def run_dry(site: Site, options: Options) -> Report:
    """What an installation would do; changes nothing."""
    verdict, steps = install.rehearse(site, _bundle(options), _install_options(options))
    code = exit_code(verdict.checks, ExitCode.PREFLIGHT, strict=options.strict)
    text = "\n".join([checks_text(verdict.checks), "", "An installation would:", *(f"  {step}" for step in steps)])
    return Report(text, {"checks": verdict.checks, "steps": steps}, code)


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
            raise UsageError(f"{options.name} is not installed under {site.layout.root}: {_listed(names)}")
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
    return ", ".join(names) or "nothing is"


def run_activate(site: Site, options: Options) -> Report:
    """Make an installed version the active one."""
    version = options.value or ""
    return _outcome(activate.activate(site, _name(site, options), version, port=options.port))


def run_rollback(site: Site, options: Options) -> Report:
    """Go back to the version that was active before, or to the one named."""
    return _outcome(activate.rollback(site, _name(site, options), options.value))


def run_start(site: Site, options: Options) -> Report:
    """Start the active version."""
    made = operate.start(site, _name(site, options)).record
    return Report(f"{made.name} {made.version} answers at http://{made.host}:{made.port}", made)


def run_stop(site: Site, options: Options) -> Report:
    """Stop the active version."""
    made = operate.stop(site, _name(site, options)).record
    return Report(f"{made.name} {made.version} is stopped; --start starts it", made)


def run_status(site: Site, options: Options) -> Report:
    """What is active, and whether it answers."""
    names = [_name(site, options)] if options.name else site.store.bundles()
    states = [status.status(site, name) for name in names]
    if not states:
        return Report(f"nothing is installed under {site.layout.root}", [], ExitCode.NOTHING_RUNNING)
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
    return Report("\n".join(lines) or f"nothing is installed under {site.layout.root}", data)


def run_smoke(site: Site, options: Options) -> Report:
    """The smoke tests, against what runs."""
    checks = operate.smoke(site, _name(site, options))
    return _checks(checks, exit_code(checks, ExitCode.NOTHING_RUNNING, strict=options.strict))


def run_prune(site: Site, options: Options) -> Report:
    """Remove old versions and leftovers."""
    return _removed(operate.prune(site, _name(site, options), options.keep))


def run_uninstall(site: Site, options: Options) -> Report:
    """Remove one version, or all of them."""
    return _removed(operate.uninstall(site, _name(site, options), options.value))


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
    what = ", ".join(removed.releases) or "no release"
    return Report(f"removed: {what}; {human_bytes(removed.freed)} freed", removed)


COMMANDS: Mapping[str, Command] = {
    "install": Command(run_install, "verify, preflight, install, prove and activate (the default)", changes=True),
    "verify": Command(run_verify, "prove every byte and the signature, compare the host; changes nothing"),
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
    "start": Command(run_start, "start the active version", changes=True),
    "stop": Command(run_stop, "stop the active version", changes=True),
    "prune": Command(run_prune, "remove versions other than the active one and the one before", changes=True),
    "support-bundle": Command(run_support, "logs, journal and facts in one file, without secrets", "FILE"),
    "uninstall": Command(run_uninstall, "remove VERSION, or all versions", "VERSION", True, True),
}
