"""Commands about what is installed: activate, roll back, start, stop, look, remove."""

from __future__ import annotations

from pathlib import Path

from airbundle_onsite.commands.base import Options, Report, outcome_report
from airbundle_onsite.contract.checks import exit_code
from airbundle_onsite.contract.record import to_plain
from airbundle_onsite.deploy import activate, operate, restart, signers, status, support
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import ExitCode, UsageError
from airbundle_onsite.render import checks_text
from airbundle_onsite.units import human_bytes


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
    return outcome_report(activate.activate(site, _name(site, options), version, port=options.port))


def run_rollback(site: Site, options: Options) -> Report:
    """Go back to the version that was active before, or to the one named."""
    return outcome_report(activate.rollback(site, _name(site, options), options.value))


def run_start(site: Site, options: Options) -> Report:
    """See to it that the active version answers."""
    return _started(operate.start(site, _name(site, options)))


def run_restart(site: Site, options: Options) -> Report:
    """Start the active version afresh, whatever it does."""
    return _started(operate.start(site, _name(site, options), afresh=True))


def _started(started: restart.Started) -> Report:
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


def _removed(removed: operate.Removed) -> Report:
    what = ", ".join([*removed.releases, *removed.outside]) or "no release"
    return Report(f"removed: {what}; {human_bytes(removed.freed)} freed", removed)
