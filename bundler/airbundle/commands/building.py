"""`airbundle build` and `demo`: from a lock to a bundle, and to a model that answers."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

import click

from airbundle import demo, sources, wheels
from airbundle.build import PROOF_FILE, Built, build
from airbundle.commands.app import App, end_with, size, spec_options, with_app
from airbundle.commands.difference import (
    Wanted,
    difference_of,
    difference_options,
    difference_text,
    wanted,
    way_back,
)
from airbundle.commands.locking import fresh_lock
from airbundle.commands.moving import tar_text
from airbundle.commands.signing import open_keys, signed_text, signing_options
from airbundle.compress.members import compression_text
from airbundle.contract.lock import BundleLock
from airbundle.contract.spec import BundleSpec
from airbundle.data import data_dir
from airbundle.delta.rebase import rebase
from airbundle.delta.thin import Difference
from airbundle.fetch import fetch_all
from airbundle.planview import plan_build, plan_text
from airbundle.prove.closure import table_text
from airbundle.prove.collect import prove_lock
from airbundle.rehearse import run as rehearsal
from airbundle.signing import SigningKey
from airbundle.splitting import pack
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.record import encode, record
from airbundle_onsite.errors import ExitCode, UsageError
from airbundle_onsite.render import checks_text
from airbundle_onsite.system import SystemRunner
from airbundle_onsite.units import human_bytes


@record
class How:
    """How to build, whatever it is that is built.

    Attributes:
        part_size: bytes per part; 0 for a single one.
        force: replace a bundle of the same name and version.
        rehearsed: let its installer run here first.
        unproven: build although the closure proof failed.
        compress: what ``--compress`` says, ``weights`` or ``none``; empty to do as the spec says.
        keys: sign with these.
    """

    part_size: int = layout.DEFAULT_PART_SIZE
    force: bool = False
    rehearsed: bool = False
    unproven: bool = False
    compress: str = ""
    keys: tuple[SigningKey, ...] = ()

    def compresses(self, spec: BundleSpec | None) -> bool:
        """Whether weights that shrink are to be compressed."""
        return (self.compress or (spec.bundle.compress if spec else "")) == "weights"


@click.command("build")
@functools.partial(spec_options, required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dist"),
    metavar="DIR",
    help="Where the bundle's directory will lie (dist).",
)
@click.option("--part-size", type=size, default=str(layout.DEFAULT_PART_SIZE), help="Bytes per part; 0 for one file.")
@click.option("--force", is_flag=True, help="Replace a bundle of the same name and version.")
@click.option("--rehearse", "rehearsed", is_flag=True, help="Let its installer run here without a network first.")
@click.option("--unproven", is_flag=True, help="Build although the closure proof failed; the bundle says so.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
@click.option("--single", is_flag=True, help="One tar file of the whole bundle instead of its directory.")
@click.option(
    "--compress",
    type=click.Choice(["weights", "none"]),
    help="Compress weights without loss; those that do not shrink stay. Without it, as the spec says.",
)
@difference_options
@signing_options
@with_app
def build_command(
    app: App,
    spec_path: Path | None,
    lock_path: Path | None,
    overrides: Sequence[str],
    output: Path,
    part_size: int,
    force: bool,
    rehearsed: bool,
    unproven: bool,
    dry_run: bool,
    single: bool,
    compress: str | None,
    sign_keys: Sequence[Path],
    base: Sequence[Path],
    base_skip: Sequence[str],
    back_to: Path | None,
    back_from: Path | None,
) -> None:
    """Build the bundle of SPEC: lock if needed, fetch what the cache lacks, assemble, sign.

    With --base it holds only what the site does not have yet; with --rollback-to and --from, instead of SPEC, it leads
    a site back to an older release.
    """
    options = wanted(base, base_skip, back_to, back_from)
    _refuse_contradictions(options, spec_path, rehearsed=rehearsed, dry_run=dry_run)
    keys = () if dry_run else tuple(open_keys(sign_keys))
    how = How(part_size, force, rehearsed, unproven, compress or "", keys)
    if options.back_to is not None:
        built = _build_way_back(app, options, options.back_to, output, how)
    else:
        assert spec_path is not None
        made = fresh_lock(app, spec_path, lock_path, overrides, keep=not dry_run)
        difference = difference_of(app, options)
        if dry_run:
            compress_now = how.compresses(made.spec)
            planned = plan_build(made, app.cache, part_size, difference, app.console, compress=compress_now)
            app.result(plan_text(planned), planned)
            return
        built = fetch_and_build(app, made, spec_path, output, how, difference)
    _report_built(app, built, how, single=single)


def _refuse_contradictions(options: Wanted, spec_path: Path | None, *, rehearsed: bool, dry_run: bool) -> None:
    if (options.base or options.back_to) and rehearsed:
        raise UsageError(
            "--rehearse with a base: the installer would find nothing here to build on",
            remedy="build and rehearse the full bundle, then build this one without --rehearse",
        )
    if options.back_to is not None and (spec_path is not None or dry_run):
        raise UsageError("--rollback-to takes no SPEC and no --dry-run", remedy="name the older bundle or its lock")
    if options.back_to is None and spec_path is None:
        raise UsageError("no SPEC was named", remedy="for example: airbundle build bundle.toml")


def _build_way_back(app: App, options: Wanted, back_to: Path, output: Path, how: How) -> Built:
    """A bundle that leads back, from the older one's bundle or its lock."""
    difference, lock = way_back(app, options)
    if lock is not None:
        return fetch_and_build(app, lock, back_to, output, how, difference)
    return rebase(
        back_to,
        difference,
        app.cache,
        output,
        part_size=how.part_size,
        talk=app.console,
        replace=how.force,
        keys=how.keys,
        compress=how.compresses(None),
    )


def _report_built(app: App, built: Built, how: How, *, single: bool) -> None:
    signers = [key.fingerprint for key in how.keys]
    data = {"bundle": str(built.directory), "size": built.size, "manifest": built.manifest, "signed_by": signers}
    if built.compression is not None:
        data["compressed"] = {"saved": built.compression.saved, "weights": built.compression.weights}
    text = f"{built_text(built)}\n{signed_text(built.directory, signers)}"
    if single:
        file = built.directory.with_name(f"{built.directory.name}.tar")
        count = pack(built.directory, file, app.console, replace=how.force)
        text, data = f"{text}\n{tar_text(file, count)}", {**data, "bundle": str(file), "size": count}
    app.result(text, data)


@click.command("demo")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where to build and install (./demo).")
@with_app
def demo_command(app: App, directory: Path | None) -> None:
    """Build a real bundle, install it with the network cut, and let the model answer a question."""
    work = (directory or demo.default_directory()).absolute()
    work.mkdir(parents=True, exist_ok=True)
    path = data_dir("manifests") / "demo-smollm2.toml"
    made = fresh_lock(app, path, work / "demo-smollm2.lock.json", ())
    built = fetch_and_build(app, made, path, work, How(force=True))
    app.console.say(built_text(built))
    code = demo.site_half(built.directory, work / "site", demo.free_port(), SystemRunner(), app.console)
    if code:
        raise demo.DemoError("the site half of the demo failed; its own message is above", code)


def fetch_and_build(
    app: App,
    made: BundleLock,
    spec_path: Path,
    output: Path,
    how: How,
    difference: Difference | None = None,
) -> Built:
    """Fetch what the cache lacks, prove that it all fits together and the target, and assemble."""
    context = app.context(spec_path.absolute().parent)
    fetch_all(made.items(), lambda scheme: sources.create(scheme, context), app.cache, app.console)
    wheels.seal(made, context)
    proof = prove_lock(made, app.cache)
    if not how.unproven:
        proof.require()
    rehearse = rehearsal.examiner(rehearsal.Settings(), runner=context.runner, environ=os.environ, talk=app.console)
    return build(
        made,
        app.cache,
        output,
        part_size=how.part_size,
        environ=os.environ,
        talk=app.console,
        replace=how.force,
        config={PROOF_FILE: encode(proof)},
        examine=rehearse if how.rehearsed else None,
        keys=how.keys,
        difference=difference,
        compress=how.compresses(made.spec),
    )


def built_text(built: Built) -> str:
    """Where it is, and what comes next."""
    parts = len(built.manifest.payload.parts)
    lines = [
        f"{built.directory}: {human_bytes(built.size)} in {parts} part{'s' if parts > 1 else ''}",
        *difference_text(built.manifest),
        *(compression_text(built.compression) if built.compression else ()),
        f"Copy the whole directory to the site, then there: bash {layout.INSTALLER} --verify",
    ]
    return "\n".join(lines)


@click.command("prove")
@spec_options
@with_app
def prove_command(app: App, spec_path: Path, lock_path: Path | None, overrides: Sequence[str]) -> None:
    """Hold the native code of SPEC's wheels and images against the target: GPU code, CUDA, glibc, libraries."""
    made = fresh_lock(app, spec_path, lock_path, overrides)
    context = app.context(spec_path.absolute().parent)
    fetch_all(made.items(), lambda scheme: sources.create(scheme, context), app.cache, app.console)
    proof = prove_lock(made, app.cache)
    app.result(f"{table_text(proof.rows)}\n\n{checks_text(proof.checks)}", proof)
    end_with(proof.checks, ExitCode.FETCH)


COMMANDS = (build_command, demo_command, prove_command)
