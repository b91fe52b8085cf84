"""`airbundle profiles`: hardware profiles, and which of them a host is."""

from __future__ import annotations

from pathlib import Path

import click

from airbundle import profiles
from airbundle.cache import Cache, default_root
from airbundle.commands.app import App, end_with, read_file, with_app
from airbundle.console import Console
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.record import decode_json
from airbundle_onsite.errors import ContractError, ExitCode, UsageError
from airbundle_onsite.render import checks_text, json_text
from airbundle_onsite.summary import fingerprint_text


@click.group("profiles", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
@click.pass_context
def profiles_group(context: click.Context, as_json: bool) -> None:
    """List hardware profiles, show one, or match a site's fingerprint against them."""
    if context.invoked_subcommand is None:
        listed = profiles.all_profiles()
        rows = "\n".join(f"{profile.id:22} {profile.title}" for profile in listed)
        app = App(Console(), Cache(default_root()), as_json)
        app.result(rows, [{"id": each.id, "title": each.title} for each in listed])


@profiles_group.command("show")
@click.argument("profile_id", required=False)
@with_app
def profiles_show(app: App, profile_id: str | None) -> None:
    """Print PROFILE_ID, or all of them."""
    chosen = [profiles.load(profile_id)] if profile_id else list(profiles.all_profiles())
    app.result("\n\n".join(json_text(profile) for profile in chosen), chosen)


@profiles_group.command("match")
@click.argument("fingerprint", type=click.Path(path_type=Path))
@with_app
def profiles_match(app: App, fingerprint: Path) -> None:
    """Compare the site's FINGERPRINT with every profile, and say which it is and why; code 3 when it is none."""
    facts = _fingerprint(fingerprint)
    matches = profiles.match_fingerprint(facts)
    best, checks = matches[0]
    lines = [fingerprint_text(facts), "", f"{best.id}: {best.title}", checks_text(checks), *profiles.explain(matches)]
    app.result("\n".join(lines), [{"profile": profile.id, "checks": found} for profile, found in matches])
    end_with(checks, ExitCode.PREFLIGHT)


def _fingerprint(path: Path) -> Fingerprint:
    """A fingerprint from a file. Raises UsageError."""
    data = read_file(path)
    try:
        return decode_json(Fingerprint, data, str(path))
    except ContractError as error:
        meant = any(name in data for name in (b'"fingerprint_version"', b'"taken"'))
        raise UsageError(
            f"{path} is no fingerprint" + ("" if meant else ", but another document"),
            details=error.problems if meant else (),
            remedy="give the file that `sh probe.sh` or `bash install.sh --fingerprint FILE` wrote at the site",
        ) from error


COMMANDS = (profiles_group,)
