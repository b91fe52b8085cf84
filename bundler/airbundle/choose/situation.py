"""The facts that conditions in data files may name, gathered from the target, the model and what was settled so far."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from airbundle import profiles
from airbundle.choose.conditions import Value
from airbundle.choose.request import Request
from airbundle.memory.config import text_config
from airbundle.memory.shape import ModelShape
from airbundle.prove.cuda import driver_cuda, is_data_centre
from airbundle_onsite.contract.profile import GpuProfile, HardwareProfile
from airbundle_onsite.contract.record import record

_FACT = re.compile(r"(?<!\?P)<(\w+)>")


@record
class Target:
    """The hardware that is planned for.

    Attributes:
        gpus: how many are used; memory: bytes of each.
        capability: e.g. ``9.0``; link: ``none``, ``pcie`` or ``nvlink``.
        driver: known or promised; driver_known: whether it was read on the host itself.
        data_centre: whether CUDA's forward compatibility is for this card.
        numa_nodes: of the host; 0 when it is not known.
        kind: id of the known profile whose GPU it is; for one made from a fingerprint, found by the GPU's name.
    """

    profile: str
    arch: str
    gpus: int
    memory: int
    capability: str
    link: str
    driver: str
    driver_known: bool
    data_centre: bool
    dtypes: tuple[str, ...]
    cpu_flags: tuple[str, ...]
    kind: str = ""
    numa_nodes: int = 0

    @property
    def gib(self) -> float:
        return self.memory / 1024**3


def target_of(profile: HardwareProfile, request: Request) -> Target:
    """The profile's hardware, as far as the request uses it."""
    gpu = profile.gpu
    if gpu is None or request.workload == "cpu":
        return Target(
            profile.id, profile.arch, 0, 0, "", "none", "", False, False, (), profile.cpu_flags, "", profile.numa_nodes
        )
    return Target(
        profile=profile.id,
        arch=profile.arch,
        gpus=request.gpus or gpu.count,
        memory=gpu.memory,
        capability=gpu.capability,
        link=gpu.link,
        driver=request.driver or gpu.min_driver,
        driver_known=bool(request.driver),
        data_centre=is_data_centre([profile.title, *_plain(gpu)]),
        dtypes=gpu.dtypes,
        cpu_flags=profile.cpu_flags,
        kind=_kind(profile, gpu),
        numa_nodes=profile.numa_nodes,
    )


def _plain(gpu: GpuProfile) -> list[str]:
    """The names without the escapes of a pattern: a fingerprint's profile has the GPU's own name."""
    return [re.sub(r"\\(.)", r"\1", name) for name in gpu.names]


def _kind(profile: HardwareProfile, gpu: GpuProfile) -> str:
    known = [(one.id, one.gpu) for one in profiles.all_profiles() if one.gpu is not None]
    if profile.id in (name for name, _ in known):
        return profile.id
    names = _plain(gpu)
    fitting = (one for one, other in known if any(re.fullmatch(each, name) for each in other.names for name in names))
    return next(fitting, "")


def model_facts(config: Mapping[str, Any], shape: ModelShape, model_format: str) -> dict[str, Value]:
    """What conditions may ask of the model."""
    text = text_config(config)
    return {
        "format": model_format,
        "model_type": shape.model_type,
        "architecture": shape.architecture,
        "dtype": shape.dtype,
        "quantization": shape.quantization,
        "experts": shape.experts,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "layers": shape.layers,
        "native_context": shape.max_context,
        "latent": shape.latent > 0,
        "windowed": any(not cache.grows for cache in shape.attention),
        "recurrent": bool(shape.state),
        "vision": shape.vision,
        "custom_code": bool(text.get("auto_map") or config.get("auto_map")),
    }


def target_facts(target: Target, request: Request) -> dict[str, Value]:
    """What conditions may ask of the hardware and the request."""
    return {
        "profile": target.profile,
        "arch": target.arch,
        "gpus": target.gpus,
        "gpu_gib": target.gib,
        "capability": version(target.capability),
        "link": target.link,
        "driver": version(target.driver),
        "driver_known": target.driver_known,
        "driver_cuda": version(driver_cuda(target.driver)) if target.driver else None,
        "data_centre": target.data_centre,
        "avx512": "avx512f" in target.cpu_flags,
        "numa_nodes": target.numa_nodes or None,
        "runtime": request.runtime,
        "context": request.context,
        "concurrency": request.concurrency,
        "ttft_ms": request.ttft_ms,
    }


def engine_facts_of(name: str, wanted: str, cuda: str) -> dict[str, Value]:
    """What conditions may ask of the engine."""
    return {"engine": name, "version": version(wanted), "cuda": version(cuda)}


class Spelled(Version):
    """A version that is shown as it was written: ``580.65.06`` keeps its zero."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._spelling = text

    def __str__(self) -> str:
        return self._spelling


def version(text: str) -> Version | None:
    """A version to compare, build numbers such as ``b11669`` included; None for what is none."""
    try:
        return Spelled(text.lstrip("b")) if text else None
    except InvalidVersion:
        return None


def printable(facts: Mapping[str, Value]) -> dict[str, str]:
    """The facts as texts, for `filled`."""
    return {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in facts.items()}


def filled(text: str, words: Mapping[str, str]) -> str:
    """A text of a data file with its ``<facts>`` filled in; what is no fact's name stays, as do groups of patterns."""
    return _FACT.sub(lambda found: words.get(found[1], found[0]), text)


NAMES = frozenset(
    {
        *("profile", "arch", "gpus", "gpu_gib", "capability", "link", "driver", "driver_known", "driver_cuda"),
        *("data_centre", "avx512", "numa_nodes", "runtime", "context", "concurrency", "ttft_ms"),
        *("format", "model_type", "architecture", "dtype", "quantization", "experts", "heads", "kv_heads", "head_dim"),
        *("layers", "native_context", "latent", "windowed", "recurrent", "vision", "custom_code"),
        *("engine", "version", "cuda", "workload"),
        *("tensor", "pipeline", "copies", "sequences", "batched_tokens", "utilization", "kv_dtype", "cache_tokens"),
        *("whole_experts", "driver_needed"),
    }
)
"""All of them; the last two lines are known only once an engine and its size are settled."""
