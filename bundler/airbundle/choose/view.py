"""An engine plan for people."""

from __future__ import annotations

from airbundle.choose.request import EnginePlan
from airbundle_onsite.contract.launch import Flag
from airbundle_onsite.render import checks_text


def choice_lines(plan: EnginePlan) -> list[str]:
    """The path taken, what was not taken and why, and every check; flags stand with the launch plans."""
    lines = [f"Engine: {plan.engine} {plan.version}, {plan.verdict}"]
    lines += [f"  {number}. {step}" for number, step in enumerate(plan.path, 1)]
    lines += [f"  not {item.name}: {item.reason}" for item in plan.rejected]
    lines += [f"  {line}" for line in checks_text(plan.checks).splitlines()]
    lines += [f"  {flag.name}={flag.value}: {flag.reason} [{flag.source}]" for flag in _container(plan)]
    return lines


def _container(plan: EnginePlan) -> list[Flag]:
    return [flag for flag in plan.flags if flag.name in ("ipc", "shm")]
