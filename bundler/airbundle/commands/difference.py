"""`airbundle diff`, and the options of `build` that leave out what the site has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from airbundle import lockfile
from airbundle.commands.app import BUNDLE, App, with_app
from airbundle.contract.lock import BundleLock
from airbundle.delta.base import Known, read_base
from airbundle.delta.compare import compare, comparison_text
from airbundle.delta.thin import Difference
from airbundle_onsite.contract.base import Rollback
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError
from airbundle_onsite.units import human_bytes
from airbundle_onsite.verify.bundle import trust

_F = TypeVar("_F", bound=Callable[..., Any])


@record
class Wanted:
    """What the options said.

    Attributes:
        base: bundles or an inventory that say what the site has.
        skip: what is not left out all the same.
        back_to, back_from: the two ends of a way back; both or none.
    """

    base: tuple[Path, ...] = ()
    skip: frozenset[str] = frozenset()
    back_to: Path | None = None
    back_from: Path | None = None


def base_options(command: _F) -> _F:
    """``--base`` and ``--base-skip``."""
    for decorate in (
        click.option(
            "--base",
            multiple=True,
            type=click.Path(path_type=Path),
            metavar="OLD",
            help="Leave out what the site has: a bundle installed there, or its inventory. Repeatable.",
        ),
        click.option(
            "--base-skip",
            multiple=True,
            type=click.Choice(["images", "tensors"]),
            help="With a base: pack images whole, or compare only whole files.",
        ),
    ):
        command = decorate(command)
    return command


def difference_options(command: _F) -> _F:
    """``--base``, ``--base-skip``, ``--rollback-to`` and ``--from``."""
    for decorate in (
        base_options,
        click.option(
            "--rollback-to",
            "back_to",
            type=click.Path(path_type=Path),
            metavar="OLD",
            help="Instead of SPEC: lead back to this bundle, or to the one of this lock.",
        ),
        click.option(
            "--from",
            "back_from",
            type=click.Path(path_type=Path),
            metavar="NEW",
            help="What the site has when it goes back: a bundle, or its inventory.",
        ),
    ):
        command = decorate(command)
    return command


def wanted(
    base: Sequence[Path], skip: Sequence[str], back_to: Path | None = None, back_from: Path | None = None
) -> Wanted:
    """The options, held against each other.

    Raises:
        UsageError: they contradict each other.
    """
    if (back_to is None) != (back_from is None):
        raise UsageError("--rollback-to and --from belong together", remedy="name both ends of the way back")
    if back_to is not None and base:
        raise UsageError("--base and --rollback-to at once", remedy="--from names what the site has, on the way back")
    if skip and not base and back_from is None:
        raise UsageError("--base-skip without --base", remedy="name what the site has with --base")
    return Wanted(tuple(base), frozenset(skip), back_to, back_from)


def difference_of(app: App, options: Wanted) -> Difference | None:
    """What to leave out of a bundle; None for a full one. Raises as `read_base`."""
    if not options.base:
        return None
    known = [each for path in options.base for each in read_base(path, app.cache)]
    return Difference(tuple(known), options.skip)


def way_back(app: App, options: Wanted) -> tuple[Difference, BundleLock | None]:
    """What to leave out on the way back, and the lock of the release it leads to, when a lock was named for it.

    Raises:
        UsageError: the two are not an older and a newer release of one bundle. Others: as `read_base`.
    """
    back_to, back_from = options.back_to, options.back_from
    assert back_to is not None and back_from is not None
    lock = None if back_to.is_dir() else lockfile.read_lock(back_to)
    if lock is None:
        manifest = trust(back_to).manifest
        name, version, sequence = manifest.name, manifest.version, manifest.sequence
    else:
        name, version, sequence = lock.spec.bundle.name, lock.spec.bundle.version, lock.created
    known = read_base(back_from, app.cache)
    newer = _newest(known, name, back_from)
    if newer.version == version:
        raise UsageError(f"{back_from} and {back_to} are both {name} {version}", remedy="name two versions")
    if newer.sequence < sequence:
        raise UsageError(
            f"{newer.title} has sequence {newer.sequence}, and {version} has {sequence}: that is no way back",
            remedy=f"a bundle that leads on is built with --base {back_from}",
        )
    # The release itself may still be there; a way back must not count on it.
    others = tuple(each for each in known if (each.name, each.version) != (name, version))
    return Difference(others, options.skip, Rollback(newer.version, newer.sequence)), lock


def _newest(known: Sequence[Known], name: str, path: Path) -> Known:
    found = [each for each in known if each.name == name]
    if not found:
        have = ", ".join(each.title for each in known)
        raise UsageError(f"{path} holds {have}, and no version of {name}", remedy="name the release to go back from")
    return max(found, key=lambda each: each.sequence)


def difference_text(manifest: BundleManifest) -> list[str]:
    """Sentences about what a bundle needs at the site; none for a full one."""
    if not manifest.bases:
        return []
    full, packed = sum(entry.size for entry in manifest.files), sum(entry.packed for entry in manifest.files)
    titles = ", ".join(base.title for base in manifest.bases)
    back = f" It leads back from {manifest.rollback.version}." if manifest.rollback else ""
    return [
        f"Builds on {titles}, which the site must have: {human_bytes(packed)} of the {human_bytes(full)} of its files "
        f"travel, and {len(manifest.absent_layers)} image layer(s) stay behind.{back}"
    ]


@click.command("diff")
@click.argument("before", metavar="A", type=BUNDLE)
@click.argument("after", metavar="B", type=BUNDLE)
@with_app
def diff_command(app: App, before: Path, after: Path) -> None:
    """Show what differs between the bundles A and B: packages, flags, images, tensors, tests, needs, bytes."""
    found = compare(trust(before), trust(after), app.cache, app.console)
    app.result(comparison_text(found), found)


COMMANDS = (diff_command,)
