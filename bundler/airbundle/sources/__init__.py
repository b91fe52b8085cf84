"""Sources: where models, wheels and images come from. One module each; see `base`."""

from __future__ import annotations

import importlib
import pkgutil

from airbundle.sources.base import Source, SourceContext
from airbundle_onsite.errors import UsageError


def discover() -> dict[str, str]:
    """Scheme -> module name, for every module of this package that has a ``create``; imports them all."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "create"):
            found[module.SCHEME] = info.name
    return found


def exists(scheme: str) -> bool:
    """Whether there is a source of that scheme; imports nothing else, since clients of hubs and engines load slowly."""
    name = _module_name(scheme)
    if not any(info.name == name for info in pkgutil.iter_modules(__path__)):
        return False
    module = importlib.import_module(f"{__name__}.{name}")
    return hasattr(module, "create") and bool(scheme == module.SCHEME)


def create(scheme: str, context: SourceContext) -> Source:
    """The source of that scheme. Raises UsageError for a scheme that `discover` does not list."""
    if not exists(scheme):
        schemes = ", ".join(f"{name}:" for name in discover())
        raise UsageError(f"no source {scheme!r}", remedy=f"write one of: {schemes}")
    made: Source = importlib.import_module(f"{__name__}.{_module_name(scheme)}").create(context)
    return made


def _module_name(scheme: str) -> str:
    return scheme.replace("-", "")
