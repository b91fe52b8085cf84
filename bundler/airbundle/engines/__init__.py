"""Engines: what is known of each inference engine. One module each; see `base`."""

from __future__ import annotations

import importlib
import pkgutil

from airbundle.engines.base import Engine
from airbundle_onsite.contract.record import near_miss
from airbundle_onsite.errors import UsageError


def discover() -> dict[str, str]:
    """Engine name -> module name, for every module of this package that has a ``create``."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "create"):
            found[module.NAME] = info.name
    return found


def create(name: str) -> Engine:
    """The engine of that name. Raises UsageError for a name that `discover` does not list."""
    known = discover()
    if name not in known:
        raise UsageError(f"no engine {name!r}{near_miss(name, known)}", remedy=f"write one of: {', '.join(known)}")
    made: Engine = importlib.import_module(f"{__name__}.{known[name]}").create()
    return made
