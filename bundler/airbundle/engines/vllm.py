"""vLLM: its OpenAI server, from its image or its wheels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from airbundle.choose import EnginePlan
from airbundle.contract.lock import BundleLock
from airbundle.engines import planned
from airbundle.engines.recipes import probe_tries
from airbundle.engines.trying import Try
from airbundle_onsite.contract.launch import Flag, Knob, LaunchPlan

NAME = "vllm"
PACKAGE = "vllm"


def create() -> Vllm:
    """See `airbundle.engines.base`."""
    return Vllm()


class Vllm:
    """See `airbundle.engines.base.Engine`."""

    name = NAME

    def version(self, lock: BundleLock) -> str:
        """The wheel's, the spec's, or the image tag's."""
        return planned.engine_version(lock, PACKAGE)

    def plans(self, lock: BundleLock) -> tuple[LaunchPlan, ...]:
        """A plan for what was asked for, and its neighbours. Raises UsageError when it cannot work."""
        planned.need_gpu(lock, "vLLM")
        planned.need_wheel(lock, PACKAGE, "vLLM")
        return planned.launch_plans(lock, NAME, self.version(lock), _command, _KNOBS)

    def choice(self, lock: BundleLock) -> EnginePlan:
        """See `airbundle.engines.base.Chooses`."""
        return planned.choice(lock, NAME, self.version(lock))

    def config_files(self, lock: BundleLock) -> Mapping[str, bytes]:
        """None."""
        return {}

    def rehearsal_tries(self, plan: LaunchPlan) -> Sequence[Try]:
        """See `airbundle.engines.trying`."""
        return probe_tries(NAME, plan)


def _command(lock: BundleLock, plan: EnginePlan) -> tuple[tuple[str, ...], tuple[Flag, ...]]:
    """The module behind the command ``vllm``, since a console script may lie elsewhere; always a local path."""
    words = ("{python}", "-m", "vllm.entrypoints.cli.main", "serve", "{model}")
    fixed = [
        Flag("--served-model-name", "{served_name}", ""),
        Flag("--host", "{host}", ""),
        Flag("--port", "{port}", ""),
    ]
    return words, (*fixed, *_beside(lock))


def _beside(lock: BundleLock) -> list[Flag]:
    """What stands beside the model: adapters by their own names, and a draft model."""
    flags = []
    adapters = planned.beside(lock, "adapter", "vLLM")
    if adapters:
        flags.append(Flag("--enable-lora", "", ""))
        flags.append(Flag("--max-loras", str(len(adapters)), ""))
        flags.append(Flag("--lora-modules", f"{adapters[0]}={{models}}/{adapters[0]}", ""))
        flags += [Flag(f"{name}={{models}}/{name}", "", "") for name in adapters[1:]]
    for draft in planned.beside(lock, "draft", "vLLM"):
        settings = json.dumps(
            {"method": "draft_model", "model": "@", "num_speculative_tokens": 4}, separators=(",", ":")
        )
        escaped = settings.replace("{", "{{").replace("}", "}}").replace("@", f"{{models}}/{draft}")
        flags.append(Flag("--speculative-config", escaped, ""))
    return flags


_KNOBS = (
    Knob("--max-num-seqs", ("16", "32", "64", "128", "256"), "requests at once against time for each token"),
    Knob("--max-num-batched-tokens", ("2048", "4096", "8192", "16384"), "time to first token against running answers"),
    Knob("--gpu-memory-utilization", ("0.85", "0.90", "0.94"), "cache against room for bursts"),
)
