"""`airbundle inspect`, `verify` and `rehearse`: what a finished bundle holds, and what it is worth."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from airbundle.commands.app import BUNDLE, App, finish, read_file, with_app
from airbundle.inspection import manifest_text
from airbundle.rehearse import run as rehearsal
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import to_plain
from airbundle_onsite.errors import ExitCode
from airbundle_onsite.system import SystemRunner
from airbundle_onsite.verify.bundle import structure_checks, trust
from airbundle_onsite.verify.parts import check_parts


@click.command()
@click.argument("bundle", type=BUNDLE)
@with_app
def inspect(app: App, bundle: Path) -> None:
    """Show what BUNDLE holds; its small files are checked, its parts are not read."""
    trusted = trust(bundle)
    signers = [each.fingerprint for each in trusted.signers]
    app.result(manifest_text(trusted.manifest, trusted.signer), {**to_plain(trusted.manifest), "x-signed-by": signers})


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option("--strict", is_flag=True, help="Exit code 4 when anything warned.")
@click.option("--allowed-signers", type=click.Path(path_type=Path), help="Accept only the signers this file names.")
@with_app
def verify(app: App, bundle: Path, strict: bool, allowed_signers: Path | None) -> None:
    """Prove every byte of BUNDLE."""
    trusted, checks = structure_checks(bundle, None if allowed_signers is None else read_file(allowed_signers))
    if trusted is not None:
        checks = [*checks, *check_parts(trusted, app.console), *_needed(trusted.manifest)]
    distrusted = any(check.id == "verify.signature" and check.status == "fail" for check in checks)
    finish(app, checks, ExitCode.TRUST if distrusted else ExitCode.INTEGRITY, strict)


def _needed(manifest: BundleManifest) -> list[CheckResult]:
    """What a bundle needs beside itself, which only the site can look for."""
    return [
        CheckResult("verify.base", "skip", f"whether the site has {base.title}, on which it builds, is checked there")
        for base in manifest.bases
    ]


@click.command("rehearse")
@click.argument("bundle", type=BUNDLE)
@click.option("--allow", multiple=True, metavar="NAME", help="A name or address that may be asked for (* for any).")
@click.option("--watch", type=click.FloatRange(0), default=rehearsal.WATCH_SECONDS, help="Seconds to listen when idle.")
@click.option("--dir", "directory", type=click.Path(), default="", help="Where to install meanwhile (beside BUNDLE).")
@with_app
def rehearse_command(
    app: App,
    bundle: Path,
    allow: Sequence[str],
    watch: float,
    directory: str,
) -> None:
    """Run BUNDLE's own installer here with no network but a sinkhole, and report what asked for what."""
    settings = rehearsal.Settings(tuple(allow), watch, directory)
    report = rehearsal.rehearse(bundle, settings, runner=SystemRunner(), environ=os.environ, talk=app.console)
    app.result(rehearsal.report_text(report), report)
    failure = rehearsal.failure(report)
    if failure is not None:
        click.echo("\n".join(failure.lines()), err=True)
        raise click.exceptions.Exit(int(failure.exit_code))


COMMANDS = (inspect, verify, rehearse_command)
