"""vLLM: its OpenAI server, from its image or its wheels."""

from __future__ import annotations

import json

from airbundle.choose import EnginePlan
from airbundle.contract.lock import BundleLock
from airbundle.engines import planned
from airbundle.engines.gpuengine import GpuEngine
from airbundle_onsite.contract.launch import Flag, Knob

NAME = "vllm"


def create() -> GpuEngine:
    """See `airbundle.engines.base`."""
    return GpuEngine(NAME, _command, _KNOBS, _require)


def _require(lock: BundleLock) -> None:
    planned.need_gpu(lock, "vLLM")
    planned.need_wheel(lock, NAME, "vLLM")


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
