"""Sources: where models, wheels and images come from. One module each; see `base`."""

from __future__ import annotations

import importlib
import pkgutil

from airbundle.sources.base import Source, SourceContext
from airbundle_onsite.errors import UsageError


def discover() -> dict[str, str]:
    """Scheme -> module name, for every module of this package that has a ``create``."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "create"):
            found[module.SCHEME] = info.name
    return found


def create(scheme: str, context: SourceContext) -> Source:
    """The source of that scheme. Raises UsageError for a scheme that `discover` does not list."""
    known = discover()
    if scheme not in known:
        raise UsageError(f"no source {scheme!r}", remedy=f"write one of: {', '.join(f'{name}:' for name in known)}")
    made: Source = importlib.import_module(f"{__name__}.{known[scheme]}").create(context)
    return made
