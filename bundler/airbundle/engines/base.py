"""The seam between planning and what is known of each inference engine.

An engine is one module in this package with a module-level ``create() -> Engine``. It turns a locked bundle
into declarative launch plans; the site half knows no engine by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from airbundle.choose.request import EnginePlan
from airbundle.contract.lock import BundleLock
from airbundle_onsite.contract.launch import LaunchPlan


class Engine(Protocol):
    """An inference engine."""

    name: str

    def version(self, lock: BundleLock) -> str:
        """The engine's version in this bundle, as far as the lock tells."""
        ...

    def plans(self, lock: BundleLock) -> tuple[LaunchPlan, ...]:
        """Launch plans in order of preference; the site takes the first whose needs its host meets.

        Raises UsageError when the spec asks for what this engine cannot do.
        """
        ...

    def config_files(self, lock: BundleLock) -> Mapping[str, bytes]:
        """Files for the payload's config/ that the plans refer to, by name."""
        ...


@runtime_checkable
class Chooses(Protocol):
    """An engine whose flags come from `airbundle.choose`, and which can say how."""

    def choice(self, lock: BundleLock) -> EnginePlan | None:
        """The plan for what the spec asks, with the path taken and what was rejected; also when it cannot work.
        None for a model that needs no choice.

        Raises UsageError when nothing can be planned at all.
        """
        ...
