"""Runtimes: what runs a release. One module each; see `base`."""

from __future__ import annotations

import importlib
import pkgutil

from airbundle_onsite.runtimes.base import Environment, Runtime


def discover() -> list[str]:
    """Kinds of runtime present: the modules of this package that have a ``create``."""
    kinds = []
    for info in pkgutil.iter_modules(__path__):
        if hasattr(importlib.import_module(f"{__name__}.{info.name}"), "create"):
            kinds.append(info.name)
    return sorted(kinds)


def create(kind: str, environment: Environment) -> Runtime:
    """The runtime of that kind. Raises LookupError for a kind that `discover` does not list."""
    if kind not in discover():
        raise LookupError(f"no runtime {kind!r}; there are: {', '.join(discover())}")
    made: Runtime = importlib.import_module(f"{__name__}.{kind}").create(environment)
    return made
