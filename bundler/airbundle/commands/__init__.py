"""The commands of `airbundle`, one module for each group of them, imported when one of its commands is asked for."""

from __future__ import annotations

import importlib

import click

MODULES = {
    "build": "building",
    "cache": "caching",
    "demo": "building",
    "diff": "difference",
    "estimate": "estimating",
    "init": "locking",
    "inspect": "looking",
    "join": "moving",
    "keygen": "signing",
    "kit": "kit",
    "lock": "locking",
    "plan": "locking",
    "profiles": "hardware",
    "prove": "building",
    "pull": "moving",
    "push": "moving",
    "rehearse": "looking",
    "repair": "moving",
    "resign": "signing",
    "split": "moving",
    "verify": "looking",
}
"""The module here that lists a command among its ``COMMANDS``."""


class Commands(click.Group):
    """A group that knows its commands by name: importing what all of them need would take most of a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every name, in order."""
        return sorted(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None when there is none of this name."""
        if cmd_name not in MODULES:
            return None
        commands: tuple[click.Command, ...] = importlib.import_module(f"{__name__}.{MODULES[cmd_name]}").COMMANDS
        return next(command for command in commands if command.name == cmd_name)
