"""The commands of `airbundle`, one module for each group of them; `discover` finds what they list."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import click


def discover() -> Iterator[click.Command]:
    """The commands that the modules of this package list in ``COMMANDS``."""
    for info in pkgutil.iter_modules(__path__):
        yield from getattr(importlib.import_module(f"{__name__}.{info.name}"), "COMMANDS", ())
