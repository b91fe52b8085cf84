"""What is asked of the choice, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from airbundle.memory.budget import MemoryPlan
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.launch import Flag, LogPattern
from airbundle_onsite.contract.record import record

Verdict = Literal["runnable", "tight", "impossible"]
AUTO = "auto"


@record
class Request:
    """What is to be served, and within which bounds.

    Attributes:
        context: tokens of the longest request, prompt and answer together.
        concurrency: requests at once.
        workload: a name or alias of data/table.toml.
        ttft_ms: wanted time to the first token in milliseconds; 0 for no wish.
        typical: tokens of a usual request; 0 when all may be of full length.
        prompt: tokens of a usual prompt, for the estimate of the first token; 0 for half of the usual request.
        engine: a name, or ``auto``.
        version: of the engine; empty for the newest that fits.
        gpus: how many to use; 0 for what the profile has.
        driver: NVIDIA driver of the host; empty when only the profile's lowest is known.
        bundle: engines that the bundle holds; empty when that is still open.
        runtime: ``docker`` or ``venv``.
        utilization: share of the GPU's memory; 0 for the engine's usual.
        custom_code: whether the engine runs Python code that the model brings; None for whatever its config.json names.
        flags: set by the spec itself, which win over every rule; ``-`` leaves a flag out.
    """

    context: int
    concurrency: int
    workload: str = "chat"
    ttft_ms: int = 0
    typical: int = 0
    prompt: int = 0
    engine: str = AUTO
    version: str = ""
    gpus: int = 0
    driver: str = ""
    bundle: tuple[str, ...] = ()
    runtime: str = "docker"
    utilization: float = 0.0
    custom_code: bool | None = None
    flags: Mapping[str, str] = field(default_factory=dict)


@record
class Layout:
    """How a model is spread: ranks per layer, stages, and whole copies. Their product is the number of GPUs used.

    Attributes:
        experts: whether each rank holds whole experts.
    """

    tensor: int = 1
    pipeline: int = 1
    copies: int = 1
    reason: str = ""
    experts: bool = False

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.copies


@record
class Rejected:
    """An engine, or a way of spreading the model, that was not taken, and why."""

    name: str
    reason: str


@record
class EnginePlan:
    """The engine for a request, its flags, and every reason.

    Attributes:
        engine, version: what was chosen.
        verdict: whether it can serve what was asked for.
        workload: as the decision table calls it.
        layout: how the model is spread.
        sequences: requests a copy takes at once.
        batched_tokens: tokens of one step.
        kv_dtype: of the cache.
        flags: argv flags (``--x``), environment variables (``X``) and container settings (``x``), each with its reason.
        path: the decisions in the order they were taken.
        rejected: what was not taken.
        memory: on the fullest GPU; None on a CPU.
        needed: bytes of each GPU that suffice for what was asked.
        checks: verdict on memory and first token, limits, and every trap met.
        expectations: log patterns that tell when the engine runs otherwise than planned.
    """

    engine: str
    version: str
    verdict: Verdict
    workload: str
    layout: Layout
    sequences: int
    batched_tokens: int
    kv_dtype: str
    flags: tuple[Flag, ...]
    path: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    memory: MemoryPlan | None = None
    needed: int = 0
    checks: tuple[CheckResult, ...] = ()
    expectations: tuple[LogPattern, ...] = ()

    def value(self, flag: str) -> str | None:
        """The value of a flag; None when it is not set."""
        return next((item.value for item in self.flags if item.name == flag), None)
