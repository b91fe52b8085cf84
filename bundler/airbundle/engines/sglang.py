"""SGLang: its OpenAI server, from its image or its wheels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airbundle.choose import EnginePlan
from airbundle.contract.lock import BundleLock
from airbundle.engines import planned
from airbundle.engines.recipes import probe_tries
from airbundle.engines.trying import Try
from airbundle_onsite.contract.launch import Flag, Knob, LaunchPlan

NAME = "sglang"
PACKAGE = "sglang"


def create() -> Sglang:
    """See `airbundle.engines.base`."""
    return Sglang()


class Sglang:
    """See `airbundle.engines.base.Engine`."""

    name = NAME

    def version(self, lock: BundleLock) -> str:
        """The wheel's, the spec's, or the image tag's."""
        return planned.engine_version(lock, PACKAGE)

    def plans(self, lock: BundleLock) -> tuple[LaunchPlan, ...]:
        """A plan for what was asked for, and its neighbours. Raises UsageError when it cannot work."""
        planned.need_gpu(lock, "SGLang")
        planned.need_wheel(lock, PACKAGE, "SGLang")
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
