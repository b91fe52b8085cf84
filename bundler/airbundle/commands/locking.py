"""`airbundle init`, `lock` and `plan`: from a spec to a lock, and what a build would do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import click

from airbundle import lockfile, spec
from airbundle.commands.app import App, size, spec_options, with_app
from airbundle.commands.difference import base_options, difference_of, wanted
from airbundle.contract.lock import BundleLock
from airbundle.contract.spec import BundleSpec
from airbundle.planview import plan_build, plan_text
from airbundle.specschema import SCHEMA_FILE, schema_bytes
from airbundle_onsite.contract import layout
from airbundle_onsite.errors import UsageError
from airbundle_onsite.system import SystemClock
from airbundle_onsite.units import human_bytes


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default="bundle.toml")
@click.option("--kind", type=click.Choice(["venv", "docker", "base-wheels"]), default="venv", show_default=True)
@with_app
def init(app: App, path: Path, kind: str) -> None:
    """Write a starter spec to PATH, and beside it the schema by which an editor completes and checks it."""
    if path.exists():
        raise UsageError(f"{path} exists already", remedy="name another file")
    schema = path.with_name(SCHEMA_FILE)
    try:
        path.write_text(spec.starter_spec(kind), encoding="utf-8")
        if not schema.exists():
            schema.write_bytes(schema_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", remedy="name a file that can be written") from error
    app.result(f"{path} written: edit it, then run `airbundle plan {path}`", {"spec": str(path), "schema": str(schema)})


@click.command()
@spec_options
@click.option("--upgrade", "names", multiple=True, metavar="NAME", help="Let this wheel move to a newer version.")
@click.option("--upgrade-all", is_flag=True, help="Let every wheel move to a newer version.")
@with_app
def lock(
    app: App,
    spec_path: Path,
    lock_path: Path | None,
    overrides: Sequence[str],
    names: Sequence[str],
    upgrade_all: bool,
) -> None:
    """Pin everything SPEC names: tags to digests, branches to commits, requirements to hashed wheels.

    Wheels of an earlier lock keep their versions where the spec still allows them.
    """
    loaded = spec.load_spec(spec_path, overrides)
    target = lock_path or lock_path_of(spec_path)
    before = lockfile.read_lock(target) if target.exists() else None
    made = make_lock(app, loaded, spec_path, target, None if upgrade_all else names)
    lockfile.write_lock(made, target)
    moved = lockfile.moved_wheels(before, made)
    total, wheels = sum(item.size for item in made.items()), sum(wheel.file.size for wheel in made.wheels)
    counts = f"{len(made.models)} model(s), {len(made.images)} image(s), {len(made.wheels)} wheel(s)"
    told = f" of {human_bytes(wheels)}" if made.wheels else ""
    app.result(
        "\n".join([f"{target} written: {counts}{told}, {human_bytes(total)} in all", *moved]),
        {
            "lock": str(target),
            "files": len(made.items()),
            "size": total,
            "wheels": {"count": len(made.wheels), "size": wheels, "moved": moved},
        },
    )


@click.command()
@spec_options
@click.option("--part-size", type=size, default=str(layout.DEFAULT_PART_SIZE), help="Bytes per part; 0 for one file.")
@base_options
@with_app
def plan(
    app: App,
    spec_path: Path,
    lock_path: Path | None,
    overrides: Sequence[str],
    part_size: int,
    base: Sequence[Path],
    base_skip: Sequence[str],
) -> None:
    """Show what a build would fetch and write, and why the engine gets its flags; locks first if there is no lock."""
    difference = difference_of(app, wanted(base, base_skip))
    made = fresh_lock(app, spec_path, lock_path, overrides)
    compress = bool(made.spec.bundle.compress)
    planned = plan_build(made, app.cache, part_size, difference, app.console, compress=compress)
    app.result(plan_text(planned), planned)


def lock_path_of(spec_path: Path) -> Path:
    return spec_path.with_name(f"{spec_path.stem}.lock.json")


def make_lock(
    app: App, loaded: BundleSpec, spec_path: Path, target: Path, upgrade: Collection[str] | None = ()
) -> BundleLock:
    """A new lock; `upgrade` names the wheels that may move, None all of them."""
    from airbundle import resolve

    previous = lockfile.read_lock(target) if target.exists() else None
    return resolve.lock(
        loaded,
        context=app.context(spec_path.absolute().parent),
        clock=SystemClock(),
        previous=previous,
        upgrade=upgrade,
    )


def fresh_lock(
    app: App, spec_path: Path, lock_path: Path | None, overrides: Sequence[str], *, keep: bool = True
) -> BundleLock:
    """The lock of a spec: the one on disk when it is of this very spec, else a new one (written when `keep`)."""
    loaded = spec.load_spec(spec_path, overrides)
    target = lock_path or lock_path_of(spec_path)
    if target.exists():
        made = lockfile.read_lock(target)
        if not lockfile.is_stale(made, loaded):
            return made
        app.console.say(f"{target} was made from another spec: locking again")
    made = make_lock(app, loaded, spec_path, target)
    if keep:
        lockfile.write_lock(made, target)
    return made


COMMANDS = (init, lock, plan)
