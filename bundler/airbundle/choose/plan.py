"""Puts the decisions together: workload, engine, version, size, flags, traps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airbundle.choose.conditions import Value
from airbundle.choose.latency import first_token_check
from airbundle.choose.limits import Candidate, candidate, driver_needed, kernel_of
from airbundle.choose.request import AUTO, EnginePlan, Rejected, Request, Verdict
from airbundle.choose.rules import expectations, flags_by_rule
from airbundle.choose.situation import Target, engine_facts_of, model_facts, target_facts, target_of, version
from airbundle.choose.sizing import Model, Size, cures, gib_text, settle_size
from airbundle.choose.table import Row, row_for, settle_workload, title
from airbundle.choose.traps import traps_met
from airbundle.engines.facts import engine_facts, known_engines
from airbundle.engines.flaglist import check_flags
from airbundle.memory.inventory import infer_tensors, is_tied
from airbundle.memory.shape import read_shape
from airbundle.memory.weights import plan_weights
from airbundle_onsite.contract.checks import CheckResult, Status
from airbundle_onsite.contract.launch import Flag
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.errors import UsageError
from airbundle_onsite.versions import compare

# An engine whose cache is this much smaller than the lowest that was counted runs otherwise than planned.
_TOLERATED = 0.95


def read_model(config: Mapping[str, Any], *, size: int = 0) -> Model:
    """A model from its config.json.

    Args:
        size: bytes of its weights where they are at hand; what they have beyond the shape is planned with too.

    Raises:
        UsageError: the configuration lacks what the formulas need.
    """
    shape = read_shape(config)
    weights = plan_weights(infer_tensors(config), shape, tied=is_tied(config))
    return Model(shape, weights, max(0, size - weights.total - weights.draft) if size else 0)


def plan_engine(
    request: Request,
    config: Mapping[str, Any],
    profile: HardwareProfile,
    *,
    model_format: str = "safetensors",
    size: int = 0,
) -> EnginePlan:
    """Choose the engine and its flags.

    Args:
        request: what is to be served.
        config: the model's config.json.
        profile: the hardware.
        model_format: ``safetensors`` or ``gguf``.
        size: bytes of the weights where they are at hand.

    Raises:
        UsageError: no engine is left, the spec asks for a flag that the version does not take, or the configuration
            cannot be read. A model that does not fit is no error: the verdict says so.
    """
    model = read_model(config, size=size)
    target = target_of(profile, request)
    workload, why = settle_workload(request.workload, concurrency=request.concurrency, gpus=target.gpus)
    known = {**target_facts(target, request), **model_facts(config, model.shape, model_format), "workload": workload}
    if request.custom_code is not None:
        known["custom_code"] = request.custom_code
    row = row_for(workload, known)
    path = [
        f"workload: {workload} ({title(workload)}): {why}",
        f"order for it: {', '.join(row.order)}: {row.reason} [{row.source}]",
    ]
    chosen, rejected = _choose(request, row, target, model, model_format, path)
    size_of, passed = settle_size(chosen, model, target, request, workload)
    if size_of.verdict == "impossible" and request.engine == AUTO:
        path.append(f"no way of spreading the model over {target.gpus} GPUs fits")
    path.append(f"layout: {size_of.layout.reason}")
    facts = {**known, **_settled(chosen, size_of, request, target)}
    flags = _own_flags(request, chosen, flags_by_rule(chosen.facts, chosen.version, facts))
    check_flags(chosen.facts.name, chosen.version, {flag.name: flag.value for flag in flags})
    return EnginePlan(
        engine=chosen.facts.name,
        version=chosen.version,
        verdict=size_of.verdict,
        workload=workload,
        layout=size_of.layout,
        sequences=size_of.sequences,
        batched_tokens=size_of.full.batched_tokens,
        kv_dtype=size_of.way.kv_dtype,
        flags=flags,
        path=tuple(path),
        rejected=(*rejected, *passed),
        memory=size_of.full if target.gpus else None,
        needed=size_of.needed,
        checks=_checks(chosen, size_of, model, target, request, facts),
        expectations=expectations(chosen.facts, chosen.version, facts),
    )


def _choose(
    request: Request, row: Row, target: Target, model: Model, model_format: str, path: list[str]
) -> tuple[Candidate, tuple[Rejected, ...]]:
    """Strike out by limits, then by what the bundle holds; the first that is left. A named engine is taken as it is."""
    judged = {
        name: candidate(engine_facts(name), target, model.shape, model_format, request) for name in known_engines()
    }
    order = [*row.order, *(name for name in judged if name not in row.order)]
    rejected = {name: "; ".join(item.reasons) for name, item in judged.items() if item.reasons}
    if request.engine != AUTO:
        engine_facts(request.engine)  # refuses an unknown name
        path.append(f"engine: {request.engine}, named by the spec")
        chosen = request.engine
        rejected = {name: rejected.get(name, "the spec names another") for name in order if name != chosen}
    else:
        if rejected:
            path.append("hardware and versions: " + "; ".join(f"{name} is out" for name in order if name in rejected))
        held = [name for name in order if name not in rejected and name in row.order]
        if request.bundle:
            path.append(f"in the bundle: {', '.join(request.bundle)}")
            rejected |= {name: "the bundle does not hold it" for name in held if name not in request.bundle}
            held = [name for name in held if name in request.bundle]
        if not held:
            raise UsageError(
                "no engine is left for this model, hardware and bundle",
                details=[f"{name}: {rejected.get(name, 'not for this workload')}" for name in order],
                remedy="bundle one of the engines above whose reason can be cured, or name it under engine.name",
            )
        chosen = held[0]
        for name in order:
            if name != chosen and name not in rejected:
                rejected[name] = (
                    f"{chosen} comes before it for this workload" if name in row.order else "not for this workload"
                )
    path.extend(judged[chosen].notes)
    path.append(f"engine: {judged[chosen].facts.title} {judged[chosen].version}: {judged[chosen].facts.role}")
    return judged[chosen], tuple(Rejected(name, rejected[name]) for name in order if name in rejected)


def _settled(chosen: Candidate, size: Size, request: Request, target: Target) -> dict[str, Value]:
    layout = size.layout
    cuda = chosen.release.cuda if chosen.release else ""
    return {
        **engine_facts_of(chosen.facts.name, chosen.version, cuda),
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "copies": layout.copies,
        "copies_ending": "y" if layout.copies == 1 else "ies",
        "layout": layout.reason,
        "sequences": size.sequences,
        "whole_experts": layout.experts,
        "batched_tokens": size.full.batched_tokens,
        "utilization": round(size.full.utilization or size.way.utilization, 3),
        "kv_dtype": size.way.kv_dtype,
        "cache_tokens": max(0, int(size.full.tokens.low * _TOLERATED)) if target.gpus else 0,
        "driver_needed": version(driver_needed(cuda)) if cuda and target.gpus else None,
    }


def _own_flags(request: Request, chosen: Candidate, ruled: tuple[Flag, ...]) -> tuple[Flag, ...]:
    """The spec's own flags in place of ours or after them; the value ``-`` leaves a flag out."""
    flags = {flag.name: flag for flag in ruled}
    for name, value in request.flags.items():
        flag = name if name.isupper() else f"--{name.lstrip('-')}"
        if flag in SITE_SETS:
            raise UsageError(
                f"engine.flags: {flag} is set by the site", remedy="use model.served_name and [serving] instead"
            )
        if value == "-":
            flags.pop(flag, None)
        else:
            flags[flag] = Flag(flag, value.replace("{", "{{").replace("}", "}}"), "set in the spec")
    return tuple(flags.values())


SITE_SETS = frozenset({"--model", "--model-path", "--host", "--port", "--served-model-name", "--alias"})
"""Flags that the launch plan fills in at the site."""


def _checks(
    chosen: Candidate, size: Size, model: Model, target: Target, request: Request, facts: Mapping[str, Value]
) -> tuple[CheckResult, ...]:
    found = [*_against(chosen), _memory_check(chosen, size, model, target, request)]
    found += [check for check in (_kernel_check(chosen, model, target),) if check]
    first = first_token_check(model.shape, target, size.layout, request) if target.gpus else None
    found += [first] if first else []
    return (*found, *traps_met(facts))


def _against(chosen: Candidate) -> list[CheckResult]:
    return [
        CheckResult(
            "plan.engine",
            "fail",
            f"{chosen.facts.title} {chosen.version} cannot serve this: {reason}",
            remedy='write engine.name = "auto" for one that can, or name another version',
        )
        for reason in chosen.reasons
    ]


def _memory_check(chosen: Candidate, size: Size, model: Model, target: Target, request: Request) -> CheckResult:
    status: dict[Verdict, Status] = {"runnable": "pass", "tight": "warn", "impossible": "fail"}
    plan = size.full
    where = f"each of {size.layout.gpus} GPUs with {gib_text(target.memory)}" if target.gpus else "the host"
    cache = f"{gib_text(plan.kv.low)} to {gib_text(plan.kv.high)} for the cache"
    holds = f"{plan.requests.low:.1f} to {plan.requests.high:.1f} requests of {request.context} tokens"
    room = f"{cache}, which holds {holds}" if plan.kv.low > 0 else "which leaves too little for the cache"
    found = "" if size.verdict == "runnable" else cures(chosen, model, target, size)
    return CheckResult(
        "plan.memory",
        status[size.verdict],
        f"{size.verdict} on {where}: {gib_text(plan.weights)} of weights, {room}",
        expected=f"{request.concurrency} requests at once; {gib_text(size.needed)} on each GPU suffice",
        actual=size.reason,
        remedy="" if size.verdict == "runnable" else found or "take more or larger GPUs, or a smaller model",
    )


def _kernel_check(chosen: Candidate, model: Model, target: Target) -> CheckResult | None:
    """A method of quantisation that no row knows is not refused, and said."""
    method = model.shape.quantization
    if not method or not target.gpus:
        return None
    row = kernel_of(chosen.facts, chosen.version, method)
    if row is None:
        return CheckResult(
            "plan.quantisation",
            "warn",
            f"whether {chosen.facts.title} runs {method} weights on this GPU is not known here",
            remedy="rehearse it, or choose AWQ, GPTQ or FP8",
        )
    native = not row.native or compare(target.capability, row.native) >= 0
    how = "in that type" if native else "in 16 bits, since the GPU lacks that type"
    return CheckResult(
        "plan.quantisation",
        "pass",
        f"{method} weights need compute capability {row.capability}; computed {how}",
        evidence=(f"source: {row.source}", f"how sure: {row.sure}"),
    )
