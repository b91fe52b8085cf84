"""What stands in for a start that this machine cannot give: the bundled engine's own import and flag parsing.

An engine module may name better tries than the general one by a method ``rehearsal_tries(plan)`` beside those of
`airbundle.engines.base.Engine`; see `Try`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from airbundle import engines
from airbundle.rehearse.notebook import Recorder
from airbundle.rehearse.report import Step
from airbundle_onsite.contract.launch import LaunchPlan, fill
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError
from airbundle_onsite.system import Completed

_TAIL = 30  # lines


@record
class Try:
    """A command that ends by itself and proves something of the engine without its hardware.

    Attributes:
        id: unique among the engine's tries.
        argv: with the placeholders of a launch plan.
        proves: what success shows, as the end of a sentence: "the engine imports".
        seconds: how long it may take.
        binding: whether a failure fails the rehearsal, or is only told.
    """

    id: str
    argv: tuple[str, ...]
    proves: str
    seconds: int = 300
    binding: bool = True


@runtime_checkable
class KnowsTries(Protocol):
    """An engine module's engine that knows how to be tried."""

    def rehearsal_tries(self, plan: LaunchPlan) -> Sequence[Try]:
        """Tries in order."""
        ...


def tries_for(plan: LaunchPlan) -> tuple[Try, ...]:
    """The engine's own tries; else the plan's whole command line with ``--help``, read by the bundled engine itself.

    What precedes ``--help`` is parsed by most engines before they print it, and everything is imported for that; but
    not by all, so that a failure there is told and does not fail the rehearsal.
    """
    try:
        engine: object = engines.create(plan.engine)
    except UsageError:  # a bundle of an engine that this version does not know
        engine = None
    if isinstance(engine, KnowsTries):
        return tuple(engine.rehearsal_tries(plan))
    proves = "the bundled engine starts and prints its help after reading the plan's flags"
    return (Try("help", (*plan.argv, "--help"), proves, binding=False),)


def run_tries(
    plan: LaunchPlan,
    values: Mapping[str, str],
    execute: Callable[[Sequence[str], Mapping[str, str], int], Completed],
    recorder: Recorder,
) -> None:
    """Run the tries of a plan.

    Args:
        values: for the placeholders.
        execute: runs a command with further variables, for at most so many seconds.
    """
    environment = {name: fill(value, values) for name, value in plan.env.items()}
    for each in tries_for(plan):
        recorder.begin(f"try.{each.id}", f"try: {each.proves}")
        argv = [fill(word, values) for word in each.argv]
        began = time.monotonic()
        done = execute(argv, environment, each.seconds)
        said = tuple((done.stdout + done.stderr).splitlines()[-_TAIL:])
        summary = each.proves if done.code == 0 else f"it could not be shown that {each.proves}: exit code {done.code}"
        recorder.done(
            Step(
                id=f"try.{each.id}",
                status="pass" if done.code == 0 else "fail" if each.binding else "warn",
                summary=summary,
                seconds=round(time.monotonic() - began, 3),
                command=each.argv,
                exit_code=done.code,
                evidence=said if done.code else (),
            )
        )


def install_argv(python: str, pip: str, wheels: str, target: str = "") -> list[str]:
    """The command that installs a bundle's wheels from themselves alone, as the site's runtimes do.

    Args:
        pip: pip's own wheel, run from inside the file.
        wheels: directory of the wheels and their requirements.txt.
        target: install there; empty for the interpreter's own environment.
    """
    return [
        *(python, "-I", f"{pip}/pip", "install", "--isolated", "--no-index", "--no-cache-dir"),
        *("--disable-pip-version-check", "--no-input", "--only-binary=:all:", "--require-hashes", "--quiet"),
        *(("--target", target) if target else ()),
        *("--find-links", wheels, "--requirement", f"{wheels}/requirements.txt"),
    ]
