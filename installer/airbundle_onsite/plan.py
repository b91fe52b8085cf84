"""Choosing the launch plan for a host: the first whose needs are met, with a reason for each that is not. Pure."""

from __future__ import annotations

from typing import Optional

from airbundle_onsite.capacity import choose_python, why_no_python
from airbundle_onsite.contract.checks import CheckResult, Status
from airbundle_onsite.contract.fingerprint import Fingerprint, Gpu
from airbundle_onsite.contract.launch import LaunchPlan, PlanNeeds
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.units import human_bytes
from airbundle_onsite.versions import compare, gpu_code_fits

_BESIDE_MARGIN = 0.05  # share of the free memory that must stay free when two releases run side by side


def choose_plan(manifest: BundleManifest, fingerprint: Fingerprint) -> tuple[Optional[LaunchPlan], list[CheckResult]]:
    """The first plan whose needs this host meets, and a result for each plan looked at.

    A plan passed over for a later one is a ``skip``; when none fits, each is a ``fail``. A need that the fingerprint
    cannot answer counts as met, with a ``warn`` that says so.
    """
    passed_over: list[tuple[LaunchPlan, list[str]]] = []
    for plan in manifest.launch:
        lacking, unknown = unmet(plan, manifest, fingerprint)
        if not lacking:
            checks = [_rejected(other, reasons, "skip") for other, reasons in passed_over]
            return plan, [*checks, _chosen(plan, unknown)]
        passed_over.append((plan, lacking))
    if not passed_over:
        return None, [CheckResult(id="plan.none", status="fail", summary="the bundle has no launch plan")]
    return None, [_rejected(plan, reasons, "fail") for plan, reasons in passed_over]


def _chosen(plan: LaunchPlan, unknown: list[str]) -> CheckResult:
    return CheckResult(
        id=f"plan.{plan.id}",
        status="warn" if unknown else "pass",
        summary=f"launch plan {plan.id}: {plan.engine} {plan.engine_version} with {plan.runtime}".replace("  ", " "),
        actual="could not be read: " + "; ".join(unknown) if unknown else "",
        remedy="compare these with the bundle's needs by hand; the start will show whether they are met"
        if unknown
        else "",
    )


def _rejected(plan: LaunchPlan, reasons: list[str], status: Status) -> CheckResult:
    return CheckResult(
        id=f"plan.{plan.id}",
        status=status,
        summary=f"launch plan {plan.id} does not fit this host: {reasons[0]}",
        evidence=tuple(reasons[1:]),
        remedy="provide what is missing, or have a bundle built for this host from its fingerprint "
        "(bash install.sh --fingerprint FILE)",
    )


def unmet(plan: LaunchPlan, manifest: BundleManifest, fingerprint: Fingerprint) -> tuple[list[str], list[str]]:
    """What this host lacks for a plan, and which needs cannot be compared, each as text for people."""
    lacking: list[str] = []
    unknown: list[str] = []
    _runtime(plan, manifest, fingerprint, lacking)
    _memory(plan.needs, fingerprint, lacking, unknown)
    _flags(plan.needs, fingerprint, lacking, unknown)
    if plan.needs.gpus:
        _gpus(plan.needs, fingerprint, lacking, unknown)
    return lacking, unknown


def _runtime(plan: LaunchPlan, manifest: BundleManifest, fingerprint: Fingerprint, lacking: list[str]) -> None:
    if plan.runtime == "docker":
        if fingerprint.docker.state != "ok":
            reason = fingerprint.docker.error or fingerprint.docker.state
            lacking.append(f"it needs a container engine, and none can be used ({reason})")
        return
    tags = manifest.needs.wheel_tags
    if choose_python(plan.needs.python, tags, fingerprint) is None:
        found = "; ".join(why_no_python(plan.needs.python, tags, fingerprint)) or "no Python 3.9 or newer was found"
        lacking.append(f"no Python {plan.needs.python or 'interpreter'} that its wheels fit: {found}")


def _memory(needs: PlanNeeds, fingerprint: Fingerprint, lacking: list[str], unknown: list[str]) -> None:
    total = fingerprint.memory.total
    if needs.memory and total is None:
        unknown.append("host memory")
    elif needs.memory and total is not None and total < needs.memory:
        lacking.append(f"it needs {human_bytes(needs.memory)} of host memory, and there are {human_bytes(total)}")


def _flags(needs: PlanNeeds, fingerprint: Fingerprint, lacking: list[str], unknown: list[str]) -> None:
    missing = [flag for flag in needs.cpu_flags if flag not in fingerprint.cpu.flags]
    if missing and not fingerprint.cpu.flags:
        unknown.append("CPU flags")
    elif missing:
        lacking.append(f"the CPU lacks {', '.join(missing)}")


def _gpus(needs: PlanNeeds, fingerprint: Fingerprint, lacking: list[str], unknown: list[str]) -> None:
    facts = fingerprint.gpu
    if facts.state != "ok":
        lacking.append(f"it needs {needs.gpus} GPU(s): {facts.state}, {facts.error}".rstrip(", "))
        return
    unfit = {gpu.index: reasons for gpu in facts.devices for reasons in [gpu_unfit(needs, gpu)] if reasons}
    usable = [gpu for gpu in facts.devices if gpu.index not in unfit]
    if len(usable) < needs.gpus:
        lacking.append(f"it needs {needs.gpus} GPU(s), and {len(usable)} of {len(facts.devices)} can be used")
        lacking.extend(f"GPU {index}: {'; '.join(reasons)}" for index, reasons in unfit.items())
        return
    for gpu in usable[: needs.gpus]:
        if needs.capability and gpu.capability is None:
            unknown.append(f"compute capability of GPU {gpu.index}")
        if needs.gpu_memory and gpu.memory_total is None:
            unknown.append(f"memory of GPU {gpu.index}")


def gpu_unfit(needs: PlanNeeds, gpu: Gpu) -> list[str]:
    """Why a plan cannot use this GPU; empty when nothing is known against it."""
    name = gpu.name or "a GPU of unknown name"
    if "handle" in gpu.unread:
        return [f"it does not answer: {gpu.unread['handle']}"]
    reasons = []
    capability = gpu.capability
    if needs.capability and capability is not None and compare(capability, needs.capability) < 0:
        reasons.append(f"{name} has compute capability {capability}, below {needs.capability}")
    elif capability is not None and not gpu_code_fits(needs.architectures, capability):
        held = ", ".join(needs.architectures)
        reasons.append(f"{name} has compute capability {capability}, and the engine holds code for {held} only")
    if gpu.memory_total is not None and gpu.memory_total < needs.gpu_memory:
        reasons.append(f"{name} has {human_bytes(gpu.memory_total)}, below {human_bytes(needs.gpu_memory)}")
    if gpu.compute_mode == "prohibited":
        reasons.append(f"{name} is in compute mode prohibited")
    return reasons


def fits_beside(plan: LaunchPlan, fingerprint: Fingerprint) -> bool:
    """Whether a second release can start now, beside what is running, in the memory that is free.

    The fingerprint must have been taken while the other release ran. Unknown memory means no: guessing wrong would
    take the running release down.
    """
    needs = plan.needs
    available = fingerprint.memory.available
    if available is None or not (needs.memory or needs.gpus):
        return False
    if available * (1 - _BESIDE_MARGIN) < needs.memory:
        return False
    if not needs.gpus:
        return True
    # A container that is given a number of GPUs gets the first ones, so those have to have room.
    devices = fingerprint.gpu.devices
    used = devices if plan.gpus == "all" else devices[: needs.gpus]
    if len(used) < needs.gpus or not needs.gpu_memory:
        return False
    return all(_has_room(gpu, needs.gpu_memory) for gpu in used)


def _has_room(gpu: Gpu, needed: int) -> bool:
    if gpu.memory_free is None or gpu.compute_mode == "exclusive-process":
        return False
    return gpu.memory_free * (1 - _BESIDE_MARGIN) >= needed
