"""What hardware and versions an engine cannot do: reasons to strike it out, each naming what was found and needed."""

from __future__ import annotations

from airbundle.choose.request import Request
from airbundle.choose.situation import Target
from airbundle.engines.facts import EngineFacts, Kernel, Release
from airbundle.memory.shape import ModelShape
from airbundle.prove.cuda import driver_cuda, lowest_driver
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError
from airbundle_onsite.versions import compare, gpu_code_fits


@record
class Candidate:
    """An engine in one version, and what speaks against it; empty reasons when nothing does.

    Attributes:
        notes: what is worth saying though it is not against it.
    """

    facts: EngineFacts
    version: str
    release: Release | None
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()


def candidate(facts: EngineFacts, target: Target, shape: ModelShape, model_format: str, request: Request) -> Candidate:
    """The version of an engine to plan with, newest first; else the one with the least against it."""
    wanted = (request.version,) if request.version and request.engine == facts.name else facts.plan_for
    judged = [_judge(facts, version, target, shape, model_format) for version in wanted]
    fitting = next((item for item in judged if not item.reasons), None)
    if fitting is None:
        return min(judged, key=lambda item: len(item.reasons))
    passed = judged[: judged.index(fitting)]
    notes = tuple(f"{facts.title} {item.version} is out: {'; '.join(item.reasons)}" for item in passed)
    return Candidate(fitting.facts, fitting.version, fitting.release, (), (*notes, *fitting.notes))


def _judge(facts: EngineFacts, version: str, target: Target, shape: ModelShape, model_format: str) -> Candidate:
    if model_format not in facts.formats:
        reason = f"it reads {' and '.join(facts.formats)}, and the weights are {model_format}"
        return Candidate(facts, version, None, (reason,))
    if not target.gpus:
        return Candidate(facts, version, None, () if facts.cpu else ("it has no CPU build here",))
    try:
        release = facts.release(version)
    except UsageError as error:
        return Candidate(facts, version, None, (error.summary,))
    reasons = (
        *_code(facts, version, release, target),
        *_driver(release, target),
        *_kernels(facts, version, shape, target),
    )
    notes = (f"{facts.title} {version}: {release.source}",) if release.sure in ("unverified",) else ()
    return Candidate(facts, version, release, reasons, notes)


def _code(facts: EngineFacts, version: str, release: Release, target: Target) -> tuple[str, ...]:
    if gpu_code_fits(release.architectures, target.capability):
        return ()
    held = ", ".join(release.architectures)
    return (f"version {version} holds code for {held}, and the GPU has compute capability {target.capability}",)


def _driver(release: Release, target: Target) -> tuple[str, ...]:
    """Only a driver that was read on the host strikes an engine out; a promised lowest one becomes a check."""
    if not release.cuda or not target.driver_known or driver_suffices(release.cuda, target):
        return ()
    has = driver_cuda(target.driver)
    return (
        f"it is built with CUDA {release.cuda}, which needs driver {driver_needed(release.cuda)}, and the host has "
        f"{target.driver} (CUDA {has or 'older than 11'})",
    )


def driver_suffices(cuda: str, target: Target) -> bool:
    """Whether the driver runs a CUDA toolkit, by minor-version compatibility."""
    return not target.driver or compare(target.driver, driver_needed(cuda)) >= 0


def driver_needed(cuda: str) -> str:
    """The lowest driver for a toolkit: any of the same major version."""
    return lowest_driver(int(cuda.partition(".")[0]))


def _kernels(facts: EngineFacts, version: str, shape: ModelShape, target: Target) -> tuple[str, ...]:
    if not shape.quantization:
        return ()
    row = kernel_of(facts, version, shape.quantization)
    if row is None:
        return ()
    if compare(target.capability, row.capability) < 0:
        method = shape.quantization
        return (f"{method} weights need compute capability {row.capability}, and the GPU has {target.capability}",)
    return ()


def kernel_of(facts: EngineFacts, version: str, method: str) -> Kernel | None:
    """The row of a quantisation method, also under the names of its faster kernels (``awq_marlin``)."""
    plain = method.removesuffix("_marlin")
    return facts.kernel(method, version) or facts.kernel(plain, version)


def kv_fp8(facts: EngineFacts, version: str, target: Target) -> bool:
    """Whether an FP8 cache runs without further kernels."""
    row = facts.kernel("kv:fp8", version)
    return row is not None and bool(target.capability) and compare(target.capability, row.capability) >= 0
