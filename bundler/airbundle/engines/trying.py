"""How an engine is tried where its hardware is not: what an engine module's ``rehearsal_tries(plan)`` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, Protocol, runtime_checkable

from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.record import record


@record
class Try:
    """Something that proves a part of a start without the engine's hardware.

    Attributes:
        id: unique among the tries of all launch plans; one that several plans share is made once.
        argv: with the placeholders of a launch plan, and ``{probes}``, the directory of `files`.
        proves: what success shows, as the end of a sentence: "the engine imports".
        kind: ``command`` ends by itself, and its exit code tells; ``probe`` writes facts as the program
            templates/rehearse/airbundle_probe.py does; ``server`` answers HTTP like the plan it stands in for, and is
            asked for one generation.
        seconds: how long it may take.
        binding: whether a failure of a command fails the rehearsal, or is only told.
        files: what the command reads in ``{probes}``, by name; the probe program itself is always there.
        model: whether the model's files must be there: ``thin`` with holes in the place of tensors, or ``whole``.
        env: variables over those of the plan.
    """

    id: str
    argv: tuple[str, ...]
    proves: str
    kind: Literal["command", "probe", "server"] = "command"
    seconds: int = 300
    binding: bool = True
    files: Mapping[str, str] = field(default_factory=dict)
    model: Literal["", "thin", "whole"] = ""
    env: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class KnowsTries(Protocol):
    """An engine module's engine that knows how to be tried."""

    def rehearsal_tries(self, plan: LaunchPlan) -> Sequence[Try]:
        """Tries in order."""
        ...
