"""`airbundle cache`: the store of fetched files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from airbundle import lockfile
from airbundle.cacheuse import CacheUse, cache_use, prune
from airbundle.commands.app import App, with_app
from airbundle_onsite.units import human_bytes


@click.group("cache")
def cache_group() -> None:
    """Look after the cache of fetched files."""


@cache_group.command("info")
@with_app
def cache_info(app: App) -> None:
    """Show where the cache is and how much it holds."""
    use = cache_use(app.cache)
    app.result(f"{use.root}: {_text(use)}", use)


@cache_group.command("prune")
@click.option("--keep", "locks", multiple=True, type=click.Path(path_type=Path), help="Keep what this lock needs.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@with_app
def cache_prune(app: App, locks: Sequence[Path], dry_run: bool) -> None:
    """Remove unfinished downloads, and every file that no lock given with --keep needs, with what was learnt of it."""
    keep = {item.sha256 for path in locks for item in lockfile.read_lock(path).items()}
    removed = prune(app.cache, keep, dry_run=dry_run)
    app.result(f"{_text(removed)} {'would be removed' if dry_run else 'removed'}", removed)


def _text(use: CacheUse) -> str:
    unfinished = f", {use.partial_files} unfinished ({human_bytes(use.partial_size)})" if use.partial_files else ""
    derived = f", {use.derived_files} made from others ({human_bytes(use.derived_size)})" if use.derived_files else ""
    return f"{use.files} files, {human_bytes(use.size)}{unfinished}{derived}"


COMMANDS = (cache_group,)
