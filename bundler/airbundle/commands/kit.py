"""`airbundle kit`: the small probe that is carried to a site before anything is built."""

from __future__ import annotations

from pathlib import Path

import click

from airbundle import kit
from airbundle.commands.app import App, with_app
from airbundle_onsite.units import human_bytes


@click.command("kit")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=Path(kit.FOLDER), help=f"Directory ({kit.FOLDER})."
)
@with_app
def kit_command(app: App, output: Path) -> None:
    """Write the probe that a site runs before anything is built: one directory, nothing to install."""
    made = kit.write_kit(output)
    size = human_bytes(sum(made.files.values()))
    app.result(
        f"{made.directory}: {len(made.files)} files, {size}. At the site: sh probe.sh; take {kit.FINGERPRINT} back, "
        f"then: airbundle profiles match {kit.FINGERPRINT}",
        made,
    )


COMMANDS = (kit_command,)
