"""Launch plans of engines that are chosen and sized by `airbundle.choose`: what vLLM, SGLang and others share."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from airbundle.choose import EnginePlan, Request, plan_engine
from airbundle.contract.lock import BundleLock, LockedModel
from airbundle.contract.spec import DowngradePolicy
from airbundle.engines.facts import EngineFacts, engine_facts
from airbundle.engines.flaglist import check_flags
from airbundle.engines.lazy import plan_environment
from airbundle_onsite.contract.launch import Flag, Knob, LaunchPlan, LogPattern, PlanNeeds, Readiness
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

_GIB = 1 << 30
_LOAD_RATE = 200 * 1000**2  # bytes a second from a disk of the slower kind, for how long loading may take
_COMPILE = 600  # seconds that a first start may spend on compiling besides
_HOST_BASE, _HOST_PER_GPU = 4 * _GIB, 4 * _GIB  # measured: 3 to 4 GB a rank with CUDA and PyTorch loaded
_MOST_GPUS = 8
_ENOUGH = 3  # plans, where the hardware allows as many
_SMALLER, _SHARES = 2, (0.75, 0.9)  # plans for less memory: how many, and of what the one before needs

Command = Callable[[BundleLock, EnginePlan], tuple[Sequence[str], Sequence[Flag]]]
"""From a lock and a plan to the words before the flags, and the flags that only say what to serve and where."""


@record
class Variant:
    """A launch plan's case: its id, the plan, and what was given up for it (empty for all that was asked for)."""

    id: str
    plan: EnginePlan
    given_up: str = ""


def request_of(lock: BundleLock, engine: str, version: str) -> Request:
    """What a lock asks for."""
    spec = lock.spec
    return Request(
        context=spec.serving.context,
        concurrency=spec.serving.concurrency,
        workload=spec.serving.workload,
        ttft_ms=spec.serving.ttft_ms,
        engine=engine,
        version=version,
        gpus=spec.target.gpus,
        driver=_driver(lock),
        runtime=spec.runtime.kind,
        custom_code=_runs_code(lock),
        flags=spec.engine.flags,
    )


def _runs_code(lock: BundleLock) -> bool:
    """Whether the spec lets the engine run Python code that the model brings, and there is some."""
    model = lock.models[0]
    named = "auto_map" in json.loads(model.facts.get("config", "") or "{}")
    return lock.spec.model.trust_remote_code is True and (named or bool(model.custom_code))


def _driver(lock: BundleLock) -> str:
    """The site's driver, as the spec or a fingerprint says; empty when only a profile's lowest one is known."""
    gpu = lock.profile.gpu
    read = gpu.min_driver if gpu and "fingerprint" in lock.profile.sources else ""
    return lock.spec.target.driver or read


def model_config(model: LockedModel) -> Mapping[str, Any]:
    """The model's config.json, kept in the lock.

    Raises:
        UsageError: it was not at hand while locking.
    """
    text = model.facts.get("config", "")
    if not text:
        raise UsageError(
            f"model {model.served_name}: its config.json is not in the lock, so its memory cannot be planned",
            remedy="lock again where the source can be reached; a model without config.json needs another engine",
        )
    config: dict[str, Any] = json.loads(text)
    return config


def model_size(model: LockedModel) -> int:
    """Bytes of a model's weights."""
    return sum(file.size for file in model.files if file.path.endswith((".safetensors", ".gguf", ".bin")))


def loaded_size(lock: BundleLock) -> int:
    """Bytes of all weights that are loaded: the model's, and what stands beside it."""
    beside = (model for model in lock.models[1:] if model.role != "vocabulary")
    return model_size(lock.models[0]) + sum(map(model_size, beside))


def beside(lock: BundleLock, role: str, title: str) -> tuple[str, ...]:
    """Served names of what stands beside the model in a role. Raises UsageError for GGUF, and for a second draft."""
    found = [model for model in lock.models[1:] if model.role == role]
    wrong = next((model for model in found if model.format == "gguf"), None)
    if wrong is not None:
        raise UsageError(
            f"{role} {wrong.served_name}: {title} reads safetensors here, this is GGUF",
            remedy="name a source with safetensors, or use llama.cpp for all of it",
        )
    if role == "draft" and len(found) > 1:
        raise UsageError(f"{len(found)} models with the role draft: {title} takes one", remedy="keep one of them")
    return tuple(model.served_name for model in found)


def choice(lock: BundleLock, name: str, version: str) -> EnginePlan:
    """What is planned for a lock, with its reasons; also when it cannot work. Raises UsageError like `plan_engine`."""
    model = lock.models[0]
    return plan_engine(
        request_of(lock, name, version),
        model_config(model),
        lock.profile,
        model_format=model.format,
        size=loaded_size(lock),
    )


def variants(lock: BundleLock, facts: EngineFacts, version: str) -> tuple[Variant, ...]:
    """The planned case and its neighbours: more GPUs, less memory on each, fewer GPUs; the most demanding first.

    Raises:
        UsageError: the planned case cannot work; with every reason.
    """
    model, request = lock.models[0], request_of(lock, facts.name, version)
    config, size = model_config(model), loaded_size(lock)

    def plan(wanted: Request, memory: int = 0) -> EnginePlan:
        profile = _with_memory(lock.profile, memory)
        return plan_engine(wanted, config, profile, model_format=model.format, size=size)

    planned = plan(request)
    refuse(planned)
    count = planned.layout.gpus
    found = [Variant(f"gpu{count}", planned)]
    for _ in range(_SMALLER):
        for share in _SHARES:
            memory = int(found[-1].plan.needed * share)
            less = _variant(f"gpu{count}-{memory // _GIB}g", request, count, partial(plan, memory=memory))
            if less:
                found += less
                break
    for divisor in (2, 4, 8):
        if count >= divisor:
            found += _variant(f"gpu{count // divisor}", request, count // divisor, plan)
    more = count
    # A number of GPUs in the spec is a limit: the others serve something else.
    while not request.gpus and more < _MOST_GPUS and (more == count or len(list(_distinct(found))) < _ENOUGH):
        more *= 2
        found[:0] = _variant(f"gpu{more}", request, more, plan)
    return tuple(_distinct(found))


def _variant(name: str, request: Request, gpus: int, plan: Callable[[Request], EnginePlan]) -> list[Variant]:
    """A case with as much of the request as fits: fewer requests at once first, then a shorter context."""
    for context, concurrency in _lesser(request):
        made = plan(_changed(request, gpus=gpus, context=context, concurrency=concurrency))
        if made.verdict == "runnable" and not _failed(made):
            given = []
            if concurrency < request.concurrency:
                given.append(f"{concurrency} requests at once in place of {request.concurrency}")
            if context < request.context:
                given.append(f"{context} tokens in place of {request.context}")
            return [Variant(name, made, " and ".join(given))]
    return []


def _lesser(request: Request) -> Iterator[tuple[int, int]]:
    context, concurrency = request.context, request.concurrency
    while True:
        yield context, concurrency
        if concurrency > 1:
            concurrency = math.ceil(concurrency / 2)
        elif context > 2048:
            context //= 2
        else:
            return


def _changed(request: Request, *, gpus: int, context: int, concurrency: int) -> Request:
    return dataclasses.replace(request, gpus=gpus, context=context, concurrency=concurrency)


def _distinct(found: list[Variant]) -> Iterator[Variant]:
    """Without those that ask for as much as one before them: the site would never come to them."""
    kept: list[Variant] = []
    for item in found:
        if not any(
            item.plan.layout.gpus >= one.plan.layout.gpus and item.plan.needed >= one.plan.needed for one in kept
        ):
            kept.append(item)
            yield item


def _with_memory(profile: HardwareProfile, memory: int) -> HardwareProfile:
    if profile.gpu is None or not memory or memory > profile.gpu.memory:
        return profile
    return dataclasses.replace(profile, gpu=dataclasses.replace(profile.gpu, memory=memory))


def _failed(plan: EnginePlan) -> list[str]:
    return [f"{check.summary}; what to do: {check.remedy}" for check in plan.checks if check.status == "fail"]


def refuse(plan: EnginePlan) -> None:
    """Raise UsageError when a plan cannot work, with all that is against it. A first token too late is no such case."""
    against = [
        f"{check.summary}; what to do: {check.remedy}"
        for check in plan.checks
        if check.status == "fail" and check.id != "plan.first-token"
    ]
    if against:
        raise UsageError(
            f"{plan.engine} {plan.version} cannot serve this as planned",
            details=against,
            remedy="change [serving], the engine, the model or the target; `airbundle estimate` shows what would fit",
        )


def launch_plans(
    lock: BundleLock, name: str, version: str, command: Command, knobs: tuple[Knob, ...]
) -> tuple[LaunchPlan, ...]:
    """Every variant as a launch plan.

    Raises:
        UsageError: see `variants`.
    """
    facts = engine_facts(name)
    return tuple(_launch(lock, facts, variant, command, knobs) for variant in variants(lock, facts, version))


def _launch(
    lock: BundleLock, facts: EngineFacts, variant: Variant, command: Command, knobs: tuple[Knob, ...]
) -> LaunchPlan:
    plan, model = variant.plan, lock.models[0]
    before, fixed = command(lock, plan)
    check_flags(facts.name, plan.version, {flag.name: flag.value for flag in fixed})
    argv = [*before]
    for flag in (*fixed, *(flag for flag in plan.flags if flag.name.startswith("-"))):
        argv += [word for word in (flag.name, flag.value) if word]
    env = {flag.name: flag.value for flag in plan.flags if flag.name.isupper()}
    env = {**env, **plan_environment(facts.name, plan.version, lock)}
    return LaunchPlan(
        id=variant.id,
        engine=facts.name,
        engine_version=plan.version,
        runtime=lock.spec.runtime.kind,
        argv=tuple(argv),
        model=model.served_name,
        image=lock.images[0].name if lock.spec.runtime.kind == "docker" else None,
        wheels=bool(lock.wheels),
        env=env,
        gpus=str(plan.layout.gpus),
        shm_bytes=int(plan.value("shm") or 0),
        ipc_host=plan.value("ipc") == "host",
        port=lock.spec.serving.port,
        needs=needs_of(lock, facts, plan),
        readiness=Readiness(
            health_path=facts.health,
            load_seconds=_COMPILE + loaded_size(lock) // _LOAD_RATE,
            request_seconds=120,
        ),
        log_patterns=_log_patterns(facts, plan, lock.spec.serving.downgrade),
        knobs=tuple(knob for knob in knobs if knob.flag in argv),
        flags=_reasons(variant, argv, env),
    )


def _log_patterns(facts: EngineFacts, plan: EnginePlan, policy: DowngradePolicy) -> tuple[LogPattern, ...]:
    """An expectation that is not met is a silent downgrade by its nature."""
    expected = (dataclasses.replace(each, level="fail") if policy == "fail" else each for each in plan.expectations)
    return (*facts.log_patterns(plan.version, policy=policy), *expected)


def needs_of(lock: BundleLock, facts: EngineFacts, plan: EnginePlan) -> PlanNeeds:
    """What a host must have for a plan."""
    release = facts.release(plan.version)
    venv = lock.spec.runtime.kind == "venv"
    assert lock.profile.gpu is not None
    return PlanNeeds(
        gpus=plan.layout.gpus,
        gpu_memory=plan.needed,
        memory=_HOST_BASE + _HOST_PER_GPU * plan.layout.gpus,
        capability=lock.profile.gpu.capability,
        architectures=release.architectures,
        python=_python(lock, release.python) if venv else "",
    )


def _python(lock: BundleLock, promised: str) -> str:
    """The one minor version that the wheels were resolved for, within what the engine's own wheel takes."""
    if lock.wheel_settings is None:
        return promised
    major, _, minor = lock.wheel_settings.python.partition(".")
    return f">={major}.{minor},<{major}.{int(minor) + 1}"


def _reasons(variant: Variant, argv: Sequence[str], env: Mapping[str, str]) -> tuple[Flag, ...]:
    """The reasons of all that is set, with what the case gave up beside the flags that show it."""
    plan, found = variant.plan, []
    for flag in plan.flags:
        if flag.name not in argv and flag.name not in env:
            continue
        reason = f"{flag.reason}; here {variant.given_up}" if variant.given_up and flag.name in _SHOWS else flag.reason
        found.append(Flag(flag.name, env.get(flag.name, flag.value), reason, flag.source))
    return tuple(found)


_SHOWS = ("--max-num-seqs", "--max-running-requests", "--max_batch_size", "--ctx-size", "OLLAMA_NUM_PARALLEL")


def engine_version(lock: BundleLock, package: str) -> str:
    """The version in the bundle: of the wheel, of the spec, or of the image's tag; empty when none of them tells."""
    for wheel in lock.wheels:
        if wheel.name == package:
            return wheel.version
    if lock.spec.engine.version:
        return lock.spec.engine.version
    tag = lock.images[0].name.rpartition(":")[2] if lock.images else ""
    number = tag.removeprefix("v").partition("-")[0]
    return number if number[:1].isdigit() and "." in number else ""


def need_gpu(lock: BundleLock, title: str) -> None:
    """Raise UsageError when the target has no GPU."""
    if lock.profile.gpu is None:
        raise UsageError(
            f"{title} needs a GPU, and profile {lock.profile.id} has none",
            remedy='name a profile with GPUs, or engine.name = "llama.cpp" with a GGUF model',
        )


def need_wheel(lock: BundleLock, package: str, title: str) -> None:
    """Raise UsageError when the engine is to come from wheels, and they do not hold it."""
    if lock.wheels and not lock.images and not any(wheel.name == package for wheel in lock.wheels):
        raise UsageError(
            f"the wheels hold no {package}, which is {title}", remedy=f'add "{package}" to wheels.requirements'
        )
