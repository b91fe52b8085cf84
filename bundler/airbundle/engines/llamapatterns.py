"""What llama-server says in its log, and what it means: facts, silent downgrades, and reasons to give up."""

from __future__ import annotations

import dataclasses

from airbundle.contract.lock import BundleLock
from airbundle.engines.ggufplans import Case
from airbundle_onsite.contract.launch import LogPattern

_PATTERNS = (
    LogPattern(
        "llama.slots",
        r"n_slots = (?P<slots>\d+), n_ctx_slot = (?P<context>\d+)",
        "fact",
        "requests served at once, and tokens each may use",
    ),
    LogPattern(
        "llama.context-capped",
        r"the slot context \((?P<wanted>\d+)\) exceeds the training context of the model \((?P<trained>\d+)\)",
        "warn",
        "each request gets fewer tokens of context than were asked for",
        "set serving.context to what the model was trained for",
    ),
    LogPattern(
        "llama.context-overflow",
        r"n_ctx_seq \((?P<wanted>\d+)\) > n_ctx_train \((?P<trained>\d+)\)",
        "warn",
        "long requests go beyond what the model was trained for, and their answers get worse",
        "set serving.context to what the model was trained for",
    ),
    LogPattern(
        "llama.context-reduced",
        r"context size reduced from (?P<wanted>\d+) to (?P<given>\d+)",
        "fail",
        "memory did not suffice for the context that was asked for",
        "lower serving.context or serving.concurrency, or free memory on this host",
    ),
    LogPattern(
        "llama.no-chat-template",
        r"chat template is not available or is not supported|chat template parsing error",
        "warn",
        "the model's own form of conversation is unknown, so answers are worse than they should be",
        "choose weights that carry a chat template",
    ),
    LogPattern(
        "llama.no-memory",
        r"failed to allocate (buffer for kv cache|compute (buffers|pp buffers|tg buffers|graph)|output buffer)",
        "fail",
        "memory did not suffice",
        "lower serving.context or serving.concurrency, or free memory on this host",
    ),
)

_SILENT = ("llama.context-capped", "llama.context-overflow", "llama.offloaded-otherwise")
"""Patterns of a downgrade, which the spec's policy judges; the others keep their level under any."""

_WHEEL_PATTERNS = (
    LogPattern(
        "llama.library-missing",
        r"xllamacpp cannot be loaded: (?P<library>lib[^:]+): cannot open shared object file",
        "fail",
        "the wheel needs a library of the system that is not there",
        "put the package that holds it on the host, or into the image: for libgomp.so.1 that is libgomp1 on Debian and "
        "Ubuntu, libgomp on Red Hat systems",
    ),
)

_GPU_PATTERNS = (
    LogPattern(
        "llama.offloaded",
        r"offloaded (?P<offloaded>\d+)/(?P<layers>\d+) layers to GPU",
        "fact",
        "layers of the model that are on the GPU",
    ),
    LogPattern(
        "llama.cpu-fallback",
        r"no usable GPU found",
        "fail",
        "the engine found no GPU and computes on the CPU",
        "check the driver and the container toolkit, and that the image is built for this GPU's vendor",
    ),
    LogPattern(
        "llama.gpu-lost",
        r"CUDA error: (?:unknown error|no CUDA-capable device is detected|the launch timed out)|GPU is lost",
        "fail",
        "the engine cannot reach the GPU that it was given",
        "airbundlectl --start restarts it; in a container this follows `systemctl daemon-reload` where devices are "
        "given by NVIDIA's hook: give them by CDI",
    ),
)


def log_patterns(lock: BundleLock, case: Case) -> tuple[LogPattern, ...]:
    """Those that can occur in this case; what the spec's policy judges has its level."""
    gpu = (*_GPU_PATTERNS, _other_layers(case)) if case.gpus else ()
    patterns = (*_PATTERNS, *(_WHEEL_PATTERNS if lock.wheels else ()), *gpu)
    policy = lock.spec.serving.downgrade
    return tuple(dataclasses.replace(each, level=policy) if each.id in _SILENT else each for each in patterns)


def _other_layers(case: Case) -> LogPattern:
    """Matches only when not as many layers are on the GPU as were planned."""
    planned = f"(?!{case.offload.layers}/)" if case.offload is not None else r"(?!(\d+)/\1 )"
    return LogPattern(
        "llama.offloaded-otherwise",
        rf"offloaded {planned}(?P<offloaded>\d+)/(?P<layers>\d+) layers to GPU",
        "warn",
        "not as many layers are on the GPU as were planned",
        "free the GPU's memory of other programs, and start again; or set engine.flags --gpu-layers",
    )
