"""Engines that compute on a CPU as well are really started where the GPU of their plan is not, with little memory."""

from __future__ import annotations

from airbundle.engines.trying import Try
from airbundle_onsite.contract.launch import LaunchPlan

_CONTEXT = "2048"  # tokens: enough for a question and an answer
_SECONDS = 1800


def llama_server_tries(plan: LaunchPlan) -> tuple[Try, ...]:
    """Every flag of the plan is read by the engine; those that come last say how much it takes here."""
    words = ("--ctx-size", _CONTEXT, "--parallel", "1", *(("--gpu-layers", "0") if plan.gpus != "none" else ()))
    return (_start(plan, (*plan.argv, *words), {}),)


def ollama_tries(plan: LaunchPlan) -> tuple[Try, ...]:
    """The store is laid out and served as at the site; Ollama takes the CPU by itself when it finds no GPU."""
    return (_start(plan, plan.argv, {"OLLAMA_CONTEXT_LENGTH": _CONTEXT, "OLLAMA_NUM_PARALLEL": "1"}),)


def _start(plan: LaunchPlan, argv: tuple[str, ...], env: dict[str, str]) -> Try:
    proves = f"{plan.engine} starts on the CPU with plan {plan.id} and a context of {_CONTEXT} tokens, and generates"
    return Try(f"start.{plan.id}", argv, proves, "server", _SECONDS, model="whole", env=env)
