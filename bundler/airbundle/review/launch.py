"""How the engine is started, as facts and tables: the command, each flag with its reason, and the smoke tests."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from airbundle.review.tables import Column, Fact, Table
from airbundle_onsite.contract.launch import LaunchPlan, SmokeTest
from airbundle_onsite.contract.record import record
from airbundle_onsite.units import human_bytes, human_seconds

MEANINGS = {
    "config": "the release's config directory",
    "host": "address to listen on",
    "model": "the model's directory",
    "models": "directory of all models, by name",
    "port": "port to listen on",
    "python": "the Python that runs the engine",
    "served_name": "the model's name in the API",
    "site": "directory of the installed wheels",
    "state": "a directory the engine may write to",
    "threads": "physical cores of the host",
}
"""What the site puts in for each name in braces."""

_NAME = re.compile(r"(?<!{){(\w+)}(?!})")


@record
class PlanView:
    """One way to start the engine."""

    plan: LaunchPlan
    facts: tuple[Fact, ...]
    command: str
    tables: tuple[Table, ...]


def plan_view(plan: LaunchPlan, number: int) -> PlanView:
    """A plan as the page shows it; `number` tells its tables from those of others."""
    flags = tuple((flag.name, _plain(flag.value), flag.reason, flag.source) for flag in plan.flags)
    env = tuple((name, _plain(value)) for name, value in sorted(plan.env.items()))
    used = sorted({name for text in (*plan.argv, *plan.env.values()) for name in _NAME.findall(text)})
    mounts = tuple((m.target, m.source, "read-only" if m.read_only else "may be written to") for m in plan.mounts)
    tables = (
        Table(
            f"flags-{number}",
            "Flags and why they are set so",
            (Column("Flag", "word"), Column("Value", "code"), Column("Reason"), Column("Known from")),
            flags,
        ),
        Table(f"env-{number}", "Environment", (Column("Variable", "word"), Column("Value", "code")), env),
        Table(
            f"mounts-{number}",
            "Further directories it sees",
            (Column("In the container", "word"), Column("In the release", "code"), Column("Access")),
            mounts,
        ),
        Table(
            f"names-{number}",
            "What the site puts in for names in braces",
            (Column("Name", "word"), Column("Stands for")),
            tuple((f"{{{name}}}", MEANINGS[name]) for name in used),
        ),
    )
    return PlanView(plan, tuple(_plan_facts(plan)), _command(plan.argv), tuple(table for table in tables if table.rows))


def _plan_facts(plan: LaunchPlan) -> Iterable[Fact]:
    yield "Engine", f"{plan.engine} {plan.engine_version}".strip()
    if plan.image:
        yield "Image", plan.image
    yield "Model", plan.model
    yield "GPUs", {"none": "none", "all": "all of the host"}.get(plan.gpus, plan.gpus)
    needs = plan.needs
    least = [f"{human_bytes(needs.memory)} of host memory"] if needs.memory else []
    least += [f"{human_bytes(needs.gpu_memory)} on each GPU"] if needs.gpu_memory else []
    least += [f"compute capability {needs.capability}"] if needs.capability else []
    least += [f"Python {needs.python}"] if needs.python else []
    least += [f"CPU flags {' '.join(needs.cpu_flags)}"] if needs.cpu_flags else []
    if least:
        yield "Needs", ", ".join(least)
    if plan.ipc_host:
        yield "Shared memory", "the host's own (IPC namespace of the host)"
    elif plan.shm_bytes:
        yield "Shared memory", f"{human_bytes(plan.shm_bytes)}, its own"
    yield "Time to load", f"at most {human_seconds(plan.readiness.load_seconds)}, then it counts as failed"


def _plain(text: str) -> str:
    """A template's text with its literal braces as the engine gets them."""
    return text.replace("{{", "{").replace("}}", "}")


def _command(argv: Sequence[str]) -> str:
    """The command, an option a line."""
    lines = [""]
    for word in map(_plain, argv):
        shown = shlex.quote(word) if not word or re.search(r"[\s'\"\\]", word) else word
        if word.startswith("-") and lines[-1]:
            lines.append(f"    {shown}")
        else:
            lines[-1] = f"{lines[-1]} {shown}" if lines[-1] else shown
    return " \\\n".join(lines)


def smoke_table(tests: Sequence[SmokeTest]) -> Table:
    """The smoke tests, one a row."""
    return Table(
        "smoke",
        "Questions that must be answered before this version takes over",
        (Column("Test"), Column("Asks"), Column("Must contain", "code"), Column("Must not contain", "code")),
        tuple((test.id, _question(test.body), "\n".join(test.expect), "\n".join(test.reject)) for test in tests),
    )


def _question(body: Mapping[str, object]) -> str:
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, (list, tuple)) and messages else None
    if isinstance(last, Mapping) and isinstance(last.get("content"), str):
        return str(last["content"])
    return json.dumps(dict(body), ensure_ascii=False, sort_keys=True, default=str)
