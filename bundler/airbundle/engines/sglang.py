"""SGLang: its OpenAI server, from its image or its wheels."""

from __future__ import annotations

from airbundle.choose import EnginePlan
from airbundle.contract.lock import BundleLock
from airbundle.engines import planned
from airbundle.engines.gpuengine import GpuEngine
from airbundle_onsite.contract.launch import Flag, Knob

NAME = "sglang"


def create() -> GpuEngine:
    """See `airbundle.engines.base`."""
    return GpuEngine(NAME, _command, _KNOBS, _require)


def _require(lock: BundleLock) -> None:
    planned.need_gpu(lock, "SGLang")
    planned.need_wheel(lock, NAME, "SGLang")


def _command(lock: BundleLock, plan: EnginePlan) -> tuple[tuple[str, ...], tuple[Flag, ...]]:
    return ("{python}", "-m", "sglang.launch_server"), (
        Flag("--model-path", "{model}", ""),
        Flag("--served-model-name", "{served_name}", ""),
        Flag("--host", "{host}", ""),
        Flag("--port", "{port}", ""),
        *_beside(lock),
    )


def _beside(lock: BundleLock) -> list[Flag]:
    """What stands beside the model: adapters by their own names, and a draft model."""
    flags = []
    adapters = planned.beside(lock, "adapter", "SGLang")
    if adapters:
        flags.append(Flag("--enable-lora", "", ""))
        flags.append(Flag("--max-loras-per-batch", str(len(adapters) + 1), ""))  # and none, which counts too
        flags.append(Flag("--lora-paths", f"{adapters[0]}={{models}}/{adapters[0]}", ""))
        flags += [Flag(f"{name}={{models}}/{name}", "", "") for name in adapters[1:]]
    for draft in planned.beside(lock, "draft", "SGLang"):
        flags.append(Flag("--speculative-algorithm", "STANDALONE", ""))
        flags.append(Flag("--speculative-draft-model-path", f"{{models}}/{draft}", ""))
        # A chain of four guesses, and the token that the model itself adds.
        flags.append(Flag("--speculative-num-steps", "4", ""))
        flags.append(Flag("--speculative-eagle-topk", "1", ""))
        flags.append(Flag("--speculative-num-draft-tokens", "5", ""))
    return flags


_KNOBS = (
    Knob("--max-running-requests", ("16", "32", "64", "128", "256"), "requests at once against time for each token"),
    Knob("--chunked-prefill-size", ("2048", "4096", "8192"), "time to first token against running answers"),
)
