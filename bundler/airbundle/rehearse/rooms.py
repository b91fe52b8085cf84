"""Where tries are made, seen from the tries: a virtual environment or a container, without a network either way."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.system import Completed


class Served(Protocol):
    """A server that a room has started."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port where this process reaches it."""
        ...

    def ended(self) -> int | None:
        """Its exit code; None while it runs."""
        ...

    def log(self) -> str:
        """What it has said."""
        ...


class Room(Protocol):
    """Where tries are made: without a network, with the engine installed as at the site."""

    def values(self, plan: LaunchPlan) -> Mapping[str, str]:
        """For the placeholders of a plan, and ``probes``."""
        ...

    def weights(self, plan: LaunchPlan) -> int:
        """Bytes of the models that a plan loads."""
        ...

    def prepare(self, probes: Mapping[str, str], model: str) -> None:
        """Put files there, by name, and the models: see `Try.model`."""
        ...

    def execute(self, plan: LaunchPlan, argv: Sequence[str], variables: Mapping[str, str], seconds: int) -> Completed:
        """Run a command with further variables, for at most so many seconds."""
        ...

    def serve(
        self, plan: LaunchPlan, argv: Sequence[str], variables: Mapping[str, str]
    ) -> contextlib.AbstractContextManager[Served]:
        """A server, ended when the context is left."""
        ...
