"""``engine.name = "auto"``: the engine among those that the bundle holds which the decision table puts first."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Mapping

from airbundle.choose import AUTO, plan_engine
from airbundle.choose.request import EnginePlan
from airbundle.contract.lock import BundleLock
from airbundle.engines import planned
from airbundle.engines.base import Engine
from airbundle.engines.facts import known_engines
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.errors import UsageError

NAME = AUTO

_MODULES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt-llm": "tensorrtllm",
    "llama.cpp": "llamacpp",
    "ollama": "ollama",
}
_IN_NAMES = {
    "vllm": r"vllm",
    "sglang": r"sglang",
    "tensorrt-llm": r"tensorrt-?llm|trtllm",
    "llama.cpp": r"llama[._-]?(cpp|server)|xllamacpp",
    "ollama": r"ollama",
}
"""How images and wheels of each engine are called."""


def create() -> Auto:
    """See `airbundle.engines.base`."""
    return Auto()


class Auto:
    """See `airbundle.engines.base.Engine`; everything comes from the engine that is chosen."""

    name = NAME

    def version(self, lock: BundleLock) -> str:
        """The chosen engine's."""
        return self._chosen(lock).version(lock)

    def plans(self, lock: BundleLock) -> tuple[LaunchPlan, ...]:
        """The chosen engine's. Raises UsageError when the bundle holds no engine that fits."""
        return self._chosen(lock).plans(lock)

    def choice(self, lock: BundleLock) -> EnginePlan | None:
        """See `airbundle.engines.base.Chooses`; None for GGUF, whose memory the engine's own module reckons."""
        return None if lock.models[0].format == "gguf" else plan(lock)

    def config_files(self, lock: BundleLock) -> Mapping[str, bytes]:
        """The chosen engine's."""
        return self._chosen(lock).config_files(lock)

    def _chosen(self, lock: BundleLock) -> Engine:
        made: Engine = importlib.import_module(f"airbundle.engines.{_MODULES[choose(lock)]}").create()
        return made


def held(lock: BundleLock) -> tuple[str, ...]:
    """Engines that the bundle's images and wheels are recognised as."""
    names = [f"{image.name} {' '.join(image.entrypoint)}" for image in lock.images]
    names += [wheel.name for wheel in lock.wheels]
    return tuple(
        engine
        for engine, pattern in _IN_NAMES.items()
        if any(re.search(rf"(?<![a-z]){pattern}(?![a-z])", name.lower()) for name in names)
    )


def choose(lock: BundleLock) -> str:
    """The name of the engine for a lock.

    Raises:
        UsageError: none of the bundle's engines fits, or none is recognised.
    """
    bundle = held(lock)
    if not bundle:
        raise UsageError(
            'engine.name is "auto", and neither the image nor the wheels are recognised as an engine',
            remedy=f"name it: {', '.join(known_engines())}",
        )
    if len(bundle) == 1:
        return bundle[0]
    return plan(lock).engine


def plan(lock: BundleLock) -> EnginePlan:
    """The whole choice for a lock, with its path; needs the model's config.json in it."""
    wanted = dataclasses.replace(planned.request_of(lock, AUTO, ""), bundle=held(lock))
    model = lock.models[0]
    return plan_engine(
        wanted,
        planned.model_config(model),
        lock.profile,
        model_format=model.format,
        size=planned.loaded_size(lock),
    )
