"""The `airbundle` command: options in, results on stdout, talk on stderr, one place where errors are caught."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from airbundle import __version__, demo, profiles, resolve, sources, spec
from airbundle.build import Built, build
from airbundle.cache import Cache, default_root
from airbundle.console import Console
from airbundle.contract.lock import BundleLock
from airbundle.contract.spec import BundleSpec
from airbundle.data import data_dir
from airbundle.fetch import fetch_all
from airbundle.inspection import manifest_text
from airbundle.planview import plan_build, plan_text
from airbundle.rehearse import run as rehearsal
from airbundle.sources.base import SourceContext
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult, exit_code
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.record import decode_json, record
from airbundle_onsite.errors import AirbundleError, ContractError, ExitCode, UsageError
from airbundle_onsite.render import checks_text, error_plain, human_bytes, json_text
from airbundle_onsite.system import SystemClock, SystemRunner
from airbundle_onsite.verify.bundle import structure_checks, trust
from airbundle_onsite.verify.parts import check_parts

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SMALLEST_PART = 1_000_000
_F = TypeVar("_F", bound=Callable[..., Any])


@record
class App:
    """What every command works with."""

    console: Console
    cache: Cache
    json: bool

    def result(self, text: str, value: Any) -> None:
        """Print a result: `text` for people, `value` for ``--json``."""
        self.console.result(json_text(value) if self.json else text)

    def context(self, base: Path) -> SourceContext:
        """What sources get."""
        return SourceContext(self.cache, self.console, SystemRunner(), base, os.environ.get)


def _size(text: str) -> int:
    """Bytes of ``4GB``, ``64MiB`` or ``0``."""
    found = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text)
    if not found or found[2].upper() not in _UNITS:
        raise click.BadParameter(f"{text!r} is not a size like 4GB, 64MiB or 0")
    size = int(found[1]) * _UNITS[found[2].upper()]
    if 0 < size < _SMALLEST_PART:
        raise click.BadParameter(f"{text!r} is {size} bytes; needed 1 MB or more, or 0 for one part")
    return size


def _common(command: _F) -> _F:
    command = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")(command)
    command = click.option("-q", "--quiet", is_flag=True, help="No progress and no remarks.")(command)
    return click.option(
        "--cache", type=click.Path(path_type=Path, file_okay=False), help="Cache directory (~/.cache/airbundle)."
    )(command)


def _app(cache: Path | None, quiet: bool, as_json: bool) -> App:
    return App(Console(quiet=quiet), Cache(cache or default_root()), as_json)


def _spec_options(command: _F) -> _F:
    command = click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, as image.source=daemon:x:1."
    )(command)
    command = click.option(
        "--lock", "lock_path", type=click.Path(path_type=Path), help="Lock file (beside the spec: NAME.lock.json)."
    )(command)
    return click.argument("spec_path", metavar="SPEC", type=click.Path(path_type=Path))(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="airbundle")
def cli() -> None:
    """Build bundles of LLM serving for sites with no internet, and prove them before they leave."""


@cli.command()
@click.argument("path", type=click.Path(path_type=Path), default="bundle.toml")
@click.option("--kind", type=click.Choice(["venv", "docker", "base-wheels"]), default="venv", show_default=True)
@_common
def init(path: Path, kind: str, cache: Path | None, quiet: bool, as_json: bool) -> None:
    """Write a starter spec to PATH."""
    app = _app(cache, quiet, as_json)
    if path.exists():
        raise UsageError(f"{path} exists already", remedy="name another file")
    try:
        path.write_text(spec.starter_spec(kind), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", remedy="name a file that can be written") from error
    app.result(f"{path} written: edit it, then run `airbundle plan {path}`", {"spec": str(path)})


@cli.command()
@_spec_options
@click.option("--upgrade", "names", multiple=True, metavar="NAME", help="Let this wheel move to a newer version.")
@click.option("--upgrade-all", is_flag=True, help="Let every wheel move to a newer version.")
@_common
def lock(
    spec_path: Path,
    lock_path: Path | None,
    overrides: Sequence[str],
    names: Sequence[str],
    upgrade_all: bool,
    cache: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Pin everything SPEC names: tags to digests, branches to commits, requirements to hashed wheels.

    Wheels of an earlier lock keep their versions where the spec still allows them.
    """
    app = _app(cache, quiet, as_json)
    wanted = spec.load_spec(spec_path, overrides)
    target = lock_path or _lock_path(spec_path)
    before = resolve.read_lock(target) if target.exists() else None
    made = _make_lock(app, wanted, spec_path, target, None if upgrade_all else names)
    resolve.write_lock(made, target)
    moved = resolve.moved_wheels(before, made)
    size, wheels = sum(item.size for item in made.items()), sum(wheel.file.size for wheel in made.wheels)
    counts = f"{len(made.models)} model(s), {len(made.images)} image(s), {len(made.wheels)} wheel(s)"
    told = f" of {human_bytes(wheels)}" if made.wheels else ""
    app.result(
        "\n".join([f"{target} written: {counts}{told}, {human_bytes(size)} in all", *moved]),
        {
            "lock": str(target),
            "files": len(made.items()),
            "size": size,
            "wheels": {"count": len(made.wheels), "size": wheels, "moved": moved},
        },
    )


@cli.command()
@_spec_options
@click.option("--part-size", type=_size, default=str(layout.DEFAULT_PART_SIZE), help="Bytes per part; 0 for one file.")
@_common
def plan(
    spec_path: Path,
    lock_path: Path | None,
    overrides: Sequence[str],
    part_size: int,
    cache: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Show what a build would fetch and write, and why the engine gets its flags; locks first if there is no lock."""
    app = _app(cache, quiet, as_json)
    made = _fresh_lock(app, spec_path, lock_path, overrides)
    planned = plan_build(made, app.cache, part_size)
    app.result(plan_text(planned), planned)


@cli.command("build")
@_spec_options
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default=Path("dist"))
@click.option("--part-size", type=_size, default=str(layout.DEFAULT_PART_SIZE), help="Bytes per part; 0 for one file.")
@click.option("--force", is_flag=True, help="Replace a bundle of the same name and version.")
@click.option("--rehearse", "rehearsed", is_flag=True, help="Let its installer run here without a network first.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
@_common
def build_command(
    spec_path: Path,
    lock_path: Path | None,
    overrides: Sequence[str],
    output: Path,
    part_size: int,
    force: bool,
    rehearsed: bool,
    dry_run: bool,
    cache: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Build the bundle of SPEC: lock if needed, fetch what the cache lacks, assemble."""
    app = _app(cache, quiet, as_json)
    made = _fresh_lock(app, spec_path, lock_path, overrides, keep=not dry_run)
    if dry_run:
        planned = plan_build(made, app.cache, part_size)
        app.result(plan_text(planned), planned)
        return
    built = _build(app, made, spec_path, output, part_size, force, rehearsed)
    app.result(_built_text(built), {"bundle": str(built.directory), "size": built.size, "manifest": built.manifest})


@cli.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@_common
def inspect(bundle: Path, cache: Path | None, quiet: bool, as_json: bool) -> None:
    """Show what BUNDLE holds; its small files are checked, its parts are not read."""
    app = _app(cache, quiet, as_json)
    trusted = trust(bundle)
    app.result(manifest_text(trusted.manifest, trusted.signer), trusted.manifest)


@cli.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Exit code 4 when anything warned.")
@_common
def verify(bundle: Path, strict: bool, cache: Path | None, quiet: bool, as_json: bool) -> None:
    """Prove every byte of BUNDLE."""
    app = _app(cache, quiet, as_json)
    trusted, checks = structure_checks(bundle)
    if trusted is not None:
        checks = [*checks, *check_parts(trusted, app.console)]
    _finish(app, checks, ExitCode.INTEGRITY, strict)


@cli.command("rehearse")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--allow", multiple=True, metavar="NAME", help="A name or address that may be asked for (* for any).")
@click.option("--watch", type=click.FloatRange(0), default=rehearsal.WATCH_SECONDS, help="Seconds to listen when idle.")
@click.option("--dir", "directory", type=click.Path(), default="", help="Where to install meanwhile (beside BUNDLE).")
@_common
def rehearse_command(
    bundle: Path,
    allow: Sequence[str],
    watch: float,
    directory: str,
    cache: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run BUNDLE's own installer here with no network but a sinkhole, and report what asked for what."""
    app = _app(cache, quiet, as_json)
    settings = rehearsal.Settings(tuple(allow), watch, directory)
    report = rehearsal.rehearse(bundle, settings, runner=SystemRunner(), environ=os.environ, talk=app.console)
    app.result(rehearsal.report_text(report), report)
    failure = rehearsal.failure(report)
    if failure is not None:
        click.echo("\n".join(failure.lines()), err=True)
        raise click.exceptions.Exit(int(failure.exit_code))


@cli.group("profiles", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
@click.pass_context
def profiles_group(context: click.Context, as_json: bool) -> None:
    """List hardware profiles, show one, or match a site's fingerprint against them."""
    if context.invoked_subcommand is None:
        listed = profiles.all_profiles()
        rows = [f"{profile.id:22} {profile.title}" for profile in listed]
        _app(None, False, as_json).result("\n".join(rows), [{"id": each.id, "title": each.title} for each in listed])


@profiles_group.command("show")
@click.argument("profile_id", required=False)
@_common
def profiles_show(profile_id: str | None, cache: Path | None, quiet: bool, as_json: bool) -> None:
    """Print PROFILE_ID, or all of them."""
    app = _app(cache, quiet, as_json)
    chosen = [profiles.load(profile_id)] if profile_id else list(profiles.all_profiles())
    app.result("\n\n".join(json_text(profile) for profile in chosen), chosen)


@profiles_group.command("match")
@click.argument("fingerprint", type=click.Path(path_type=Path))
@_common
def profiles_match(fingerprint: Path, cache: Path | None, quiet: bool, as_json: bool) -> None:
    """Compare the site's FINGERPRINT with every profile, best first."""
    app = _app(cache, quiet, as_json)
    try:
        facts = decode_json(Fingerprint, _read(fingerprint), str(fingerprint))
    except ContractError as error:
        remedy = "give the file that `bash install.sh --fingerprint FILE` wrote at the site"
        raise UsageError(f"{fingerprint} is no fingerprint", details=error.problems, remedy=remedy) from error
    matches = profiles.match_fingerprint(facts)
    best, checks = matches[0]
    others = ", ".join(profile.id for profile, _ in matches[1:4])
    app.result(
        f"{best.id}: {best.title}\n{checks_text(checks)}\nnext: {others}",
        [{"profile": profile.id, "checks": found} for profile, found in matches],
    )


@cli.group("cache")
def cache_group() -> None:
    """Look after the cache of fetched files."""


@cache_group.command("info")
@_common
def cache_info(cache: Path | None, quiet: bool, as_json: bool) -> None:
    """Show where the cache is and how much it holds."""
    app = _app(cache, quiet, as_json)
    use = app.cache.use()
    partial = f", {use.partial_files} unfinished ({human_bytes(use.partial_size)})" if use.partial_files else ""
    app.result(f"{use.root}: {use.files} files, {human_bytes(use.size)}{partial}", use)


@cache_group.command("prune")
@click.option("--keep", "locks", multiple=True, type=click.Path(path_type=Path), help="Keep what this lock needs.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@_common
def cache_prune(locks: Sequence[Path], dry_run: bool, cache: Path | None, quiet: bool, as_json: bool) -> None:
    """Remove unfinished downloads, and every file that no lock given with --keep needs."""
    app = _app(cache, quiet, as_json)
    keep = {item.sha256 for path in locks for item in resolve.read_lock(path).items()}
    removed = app.cache.prune(keep, dry_run=dry_run)
    verb = "would be removed" if dry_run else "removed"
    app.result(f"{removed.files} files, {human_bytes(removed.size)} {verb}", removed)


@cli.command("demo")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where to build and install (./demo).")
@_common
def demo_command(directory: Path | None, cache: Path | None, quiet: bool, as_json: bool) -> None:
    """Build a real bundle, install it with the network cut, and let the model answer a question."""
    app = _app(cache, quiet, as_json)
    work = (directory or demo.default_directory()).absolute()
    work.mkdir(parents=True, exist_ok=True)
    path = data_dir("manifests") / "demo-smollm2.toml"
    made = _fresh_lock(app, path, work / "demo-smollm2.lock.json", ())
    built = _build(app, made, path, work, layout.DEFAULT_PART_SIZE, True)
    app.console.say(_built_text(built))
    code = demo.site_half(built.directory, work / "site", demo.free_port(), SystemRunner(), app.console)
    if code:
        raise demo.DemoError("the site half of the demo failed; its own message is above", code)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", remedy="name a readable file") from error


def _lock_path(spec_path: Path) -> Path:
    return spec_path.with_name(f"{spec_path.stem}.lock.json")


def _make_lock(
    app: App, wanted: BundleSpec, spec_path: Path, target: Path, upgrade: resolve.Upgrade = resolve.NONE
) -> BundleLock:
    previous = resolve.read_lock(target) if target.exists() else None
    made = resolve.lock(
        wanted,
        context=app.context(spec_path.absolute().parent),
        clock=SystemClock(),
        previous=previous,
        upgrade=upgrade,
    )
    return made


def _fresh_lock(
    app: App, spec_path: Path, lock_path: Path | None, overrides: Sequence[str], *, keep: bool = True
) -> BundleLock:
    wanted = spec.load_spec(spec_path, overrides)
    target = lock_path or _lock_path(spec_path)
    if target.exists():
        made = resolve.read_lock(target)
        if not resolve.is_stale(made, wanted):
            return made
        app.console.say(f"{target} was made from another spec: locking again")
    made = _make_lock(app, wanted, spec_path, target)
    if keep:
        resolve.write_lock(made, target)
    return made


def _build(
    app: App, made: BundleLock, spec_path: Path, output: Path, part_size: int, force: bool, rehearsed: bool = False
) -> Built:
    context = app.context(spec_path.absolute().parent)
    fetch_all(made.items(), lambda scheme: sources.create(scheme, context), app.cache, app.console)
    examine = (
        rehearsal.examiner(rehearsal.Settings(), runner=context.runner, environ=os.environ, talk=app.console)
        if rehearsed
        else None
    )
    return build(
        made,
        app.cache,
        output,
        part_size=part_size,
        environ=os.environ,
        talk=app.console,
        replace=force,
        examine=examine,
    )


def _built_text(built: Built) -> str:
    parts = len(built.manifest.payload.parts)
    return (
        f"{built.directory}: {human_bytes(built.size)} in {parts} part{'s' if parts > 1 else ''}\n"
        f"Copy the whole directory to the site, then there: bash {layout.INSTALLER} --verify"
    )


def _finish(app: App, checks: Sequence[CheckResult], failure: ExitCode, strict: bool) -> None:
    app.result(checks_text(checks), list(checks))
    code = exit_code(checks, failure, strict=strict)
    if code:
        raise click.exceptions.Exit(int(code))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = cli.main(arguments, prog_name="airbundle", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except click.ClickException as error:
        if "--json" in arguments:
            click.echo(json_text(error_plain(UsageError(error.format_message(), remedy="--help lists every option"))))
        error.show()
        return int(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Stopped. What was fetched whole is kept; run the same command to go on.", err=True)
        return int(ExitCode.UNEXPECTED)
    except AirbundleError as error:
        return _report(error, arguments)
    except BrokenPipeError:
        _silence_stdout()
        return int(ExitCode.UNEXPECTED)
    except OSError as error:
        if error.filename is None and error.errno == errno.ENOSPC:
            _silence_stdout()  # a result that a full disk has no room for
        return _report(_refused(error), arguments)
    except Exception as error:  # noqa: BLE001 - the one place where a bug becomes a message and a log
        return _report(_bug(error), arguments)
    return int(code) if isinstance(code, int) else 0


def _silence_stdout() -> None:
    """Lead it nowhere, so that what it still holds does not fail once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: AirbundleError, arguments: Sequence[str]) -> int:
    if "--json" in arguments:
        click.echo(json_text(error_plain(error)))
    click.echo("\n".join(error.lines()), err=True)
    return int(error.exit_code)


def _refused(error: OSError) -> AirbundleError:
    """What the operating system would not do, as an error with a cure where there is a usual one."""
    cures = {
        errno.ENOSPC: "free some space, or choose another disk with -o or --cache; what was fetched whole is kept",
        errno.EDQUOT: "free some space, or choose another disk with -o or --cache; what was fetched whole is kept",
        errno.EACCES: "choose a directory of your own with -o or --cache, or correct its owner",
        errno.EPERM: "choose a directory of your own with -o or --cache, or correct its owner",
        errno.EROFS: "choose a directory that can be written with -o or --cache",
        errno.EMFILE: "allow more open files: ulimit -n 4096",
    }
    place = f"{error.filename}: " if error.filename else ""
    remedy = cures.get(error.errno or 0, "correct that, and run the same command again")
    return AirbundleError(f"the system refused: {place}{error.strerror or error}", remedy=remedy)


def _bug(error: Exception) -> AirbundleError:
    summary = f"unexpected {type(error).__name__}: {error}"
    path = default_root() / "logs" / f"crash-{time.strftime('%Y%m%dT%H%M%S')}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
    except OSError:
        return AirbundleError(summary, remedy="report it", details=traceback.format_exc().splitlines()[-8:])
    return AirbundleError(summary, remedy=f"report it with {path}")


if __name__ == "__main__":
    sys.exit(main())
