"""The GPUs of a fingerprint against those of a profile."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import Gpu, GpuFacts, GpuLink, idle
from airbundle_onsite.contract.profile import GpuProfile
from airbundle_onsite.match.driver import match_driver, match_state
from airbundle_onsite.units import human_bytes
from airbundle_onsite.versions import compare

_REBUILD = "have the bundle built for this host from its fingerprint (bash install.sh --fingerprint FILE)"


def match_gpus(profile: GpuProfile, facts: GpuFacts) -> list[CheckResult]:
    """One result for each fact; only the first when there is no GPU to look at."""
    state = match_state(profile.min_driver, facts)
    if facts.state != "ok":
        return [state]
    answering = [gpu for gpu in facts.devices if "handle" not in gpu.unread]
    ranked = sorted(answering, key=lambda gpu: (_rank(profile, gpu), gpu.index))
    chosen = ranked[: profile.count]
    checks = [
        state,
        *_lost(facts),
        _count(profile, answering),
        *(check for gpu in chosen for check in _device(profile, gpu)),
        *_mixed(profile, answering, chosen),
        *match_driver(profile.min_driver, facts),
    ]
    return checks + _links(profile, chosen, facts.links)


def _named(profile: GpuProfile, gpu: Gpu) -> bool:
    return gpu.name is not None and any(re.fullmatch(pattern, gpu.name) for pattern in profile.names)


def _computes(profile: GpuProfile, gpu: Gpu) -> bool:
    """Same capability and enough memory, both known."""
    if gpu.capability is None or gpu.memory_total is None:
        return False
    return compare(gpu.capability, profile.capability) == 0 and gpu.memory_total >= profile.memory


def _rank(profile: GpuProfile, gpu: Gpu) -> int:
    """0 the GPU of the profile, 1 one that computes alike, 2 any other."""
    if _named(profile, gpu) and (_computes(profile, gpu) or gpu.capability is None or gpu.memory_total is None):
        return 0
    return 1 if _computes(profile, gpu) else 2


def _lost(facts: GpuFacts) -> list[CheckResult]:
    return [
        CheckResult(
            id="match.gpu.lost",
            status="fail",
            summary=f"GPU {gpu.index} does not answer: {gpu.unread['handle']}",
            remedy="see dmesg for lines with NVRM or Xid; reset it (nvidia-smi --gpu-reset) or restart the host",
        )
        for gpu in facts.devices
        if "handle" in gpu.unread
    ]


def _count(profile: GpuProfile, answering: Sequence[Gpu]) -> CheckResult:
    found = len(answering)
    if found >= profile.count:
        return CheckResult(id="match.gpu.count", status="pass", summary=f"{found} GPU(s), {profile.count} needed")
    return CheckResult(
        id="match.gpu.count",
        status="fail",
        summary=f"{found} GPU(s) answer, {profile.count} are needed",
        expected=f"{profile.count} GPU(s)",
        actual=f"{found} GPU(s)",
        remedy="see that every GPU is seated, powered and passed through to this machine; otherwise " + _REBUILD,
    )


def _device(profile: GpuProfile, gpu: Gpu) -> list[CheckResult]:
    checks = [_name(profile, gpu), _capability(profile, gpu), _memory(profile, gpu)]
    if gpu.mig and "MIG" not in (gpu.name or ""):
        checks.append(
            CheckResult(
                id="match.gpu.mig",
                status="fail",
                summary=f"GPU {gpu.index} is in MIG mode and has no slice, so nothing can run on it",
                remedy=f"switch it off (nvidia-smi -i {gpu.index} -mig 0, then reset), or create slices",
            )
        )
    if gpu.compute_mode == "prohibited":
        checks.append(
            CheckResult(
                id="match.gpu.compute-mode",
                status="fail",
                summary=f"GPU {gpu.index} is in compute mode prohibited",
                remedy=f"nvidia-smi -i {gpu.index} -c DEFAULT",
            )
        )
    checks.extend(_generation(gpu))
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        checks.append(
            CheckResult(
                id="match.gpu.pcie",
                status="warn",
                summary=f"GPU {gpu.index} has {gpu.pcie_width} of {gpu.pcie_width_max} PCIe lanes",
                expected=f"x{gpu.pcie_width_max}",
                actual=f"x{gpu.pcie_width}",
                remedy="loading a model takes longer; reseat the card, or use a slot with all lanes",
            )
        )
    return checks


def _generation(gpu: Gpu) -> list[CheckResult]:
    """The generation drops while a GPU idles, so it tells of a bad slot or riser only when the GPU works."""
    now, most = gpu.pcie_generation, gpu.pcie_generation_max
    if now is None or most is None or now >= most:
        return []
    if idle(gpu) is not False:
        summary = f"GPU {gpu.index} has PCIe generation {now} of {most} while it rests; measure it under load"
        return [CheckResult(id="match.gpu.pcie-generation", status="skip", summary=summary)]
    return [
        CheckResult(
            id="match.gpu.pcie-generation",
            status="warn",
            summary=f"GPU {gpu.index} works, and its PCIe link has generation {now} of {most}",
            expected=f"generation {most}",
            actual=f"generation {now}",
            remedy="loading a model takes longer; reseat the card or riser, and see the slot's link speed in the BIOS",
        )
    ]


def _name(profile: GpuProfile, gpu: Gpu) -> CheckResult:
    wanted, check = " or ".join(profile.names), "match.gpu.name"
    if _named(profile, gpu):
        return CheckResult(id=check, status="pass", summary=f"GPU {gpu.index} is {gpu.name}")
    if gpu.name is None:
        return CheckResult(
            id=check,
            status="warn",
            summary=f"the name of GPU {gpu.index} could not be read",
            expected=wanted,
            actual=f"unknown ({gpu.unread.get('name', 'no reason given')})",
            remedy="compare it with nvidia-smi -L by hand",
        )
    if _computes(profile, gpu):
        return CheckResult(
            id=check,
            status="warn",
            summary=f"GPU {gpu.index} is {gpu.name}, not the model the bundle was tuned for",
            expected=wanted,
            actual=gpu.name,
            remedy="it can run, as capability and memory suffice; run the site's tuning, or " + _REBUILD,
        )
    return CheckResult(
        id=check,
        status="fail",
        summary=f"GPU {gpu.index} is {gpu.name}, not one the bundle was built for",
        expected=wanted,
        actual=gpu.name,
        remedy=_REBUILD,
    )


def _capability(profile: GpuProfile, gpu: Gpu) -> CheckResult:
    found, wanted, check = gpu.capability, profile.capability, "match.gpu.capability"
    if found is None:
        return CheckResult(
            id=check,
            status="warn",
            summary=f"the compute capability of GPU {gpu.index} could not be read",
            expected=wanted,
            actual=f"unknown ({gpu.unread.get('capability', 'no reason given')})",
            remedy="look it up for its model in NVIDIA's list of CUDA GPUs",
        )
    if compare(found, wanted) == 0:
        return CheckResult(id=check, status="pass", summary=f"GPU {gpu.index} has compute capability {found}")
    return CheckResult(
        id=check,
        status="fail",
        summary=f"GPU {gpu.index} ({gpu.name or 'name unknown'}) has compute capability {found}, "
        f"the bundle's kernels are for {wanted}",
        expected=wanted,
        actual=found,
        remedy=_REBUILD,
    )


def _memory(profile: GpuProfile, gpu: Gpu) -> CheckResult:
    found, wanted, check = gpu.memory_total, human_bytes(profile.memory), "match.gpu.memory"
    if found is None:
        return CheckResult(
            id=check,
            status="warn",
            summary=f"the memory of GPU {gpu.index} could not be read",
            expected=f"at least {wanted}",
            actual=f"unknown ({gpu.unread.get('memory', 'no reason given')})",
            remedy="compare it with nvidia-smi by hand",
        )
    shared = ", shared with the host" if gpu.unified_memory else ""
    if found >= profile.memory:
        summary = f"GPU {gpu.index} has {human_bytes(found)} of memory{shared}"
        return CheckResult(id=check, status="pass", summary=summary)
    return CheckResult(
        id=check,
        status="fail",
        summary=f"GPU {gpu.index} has {human_bytes(found)} of memory{shared}, the bundle's plan is for {wanted}",
        expected=f"at least {wanted}",
        actual=human_bytes(found),
        remedy=_REBUILD,
    )


def _mixed(profile: GpuProfile, answering: Sequence[Gpu], chosen: Sequence[Gpu]) -> list[CheckResult]:
    wanted = {gpu.name for gpu in chosen}
    others = [gpu for gpu in answering if gpu.name not in wanted]
    if not others and len(wanted) <= 1:
        return []
    used = ",".join(str(gpu.index) for gpu in chosen)
    return [
        CheckResult(
            id="match.gpu.mixed",
            status="warn",
            summary="the host has GPUs of several models",
            expected=f"{profile.count} of one model",
            actual="; ".join(f"GPU {gpu.index} {gpu.name or 'unknown'}" for gpu in answering),
            remedy=f"see that the service gets GPU {used} (by UUID in CUDA_VISIBLE_DEVICES), not merely the first",
        )
    ]


def _links(profile: GpuProfile, chosen: Sequence[Gpu], links: Sequence[GpuLink]) -> list[CheckResult]:
    """For several GPUs used together: whether every pair has the profile's link and may read the other's memory."""
    if len(chosen) < 2:
        return []
    used = {gpu.index for gpu in chosen}
    pairs = [link for link in links if link.a in used and link.b in used]
    checks = [_nvlink(pairs, len(used))] if profile.link == "nvlink" else []
    blocked = [link for link in pairs if link.p2p not in (None, "ok")]
    if blocked:
        checks.append(
            CheckResult(
                id="match.gpu.p2p",
                status="warn",
                summary="some GPUs cannot read each other's memory directly, so using them together is slower",
                actual="; ".join(f"{link.a}-{link.b}: {link.p2p}" for link in blocked),
                remedy="in a virtual machine this depends on the hypervisor; on bare metal see the platform's "
                "settings for ACS and IOMMU; if collectives hang, set NCCL_P2P_DISABLE=1",
            )
        )
    return checks


def _nvlink(pairs: Sequence[GpuLink], gpus: int) -> CheckResult:
    check = "match.gpu.nvlink"
    absent = [link for link in pairs if link.nvlinks == 0]
    if absent:
        return CheckResult(
            id=check,
            status="warn",
            summary="some GPUs have no NVLink between them, so tensor parallelism will be slower than planned",
            expected="NVLink between all of them",
            actual="; ".join(f"{link.a}-{link.b}: {link.topology or 'topology unknown'}" for link in absent),
            remedy="see nvidia-smi nvlink --status and, with NVSwitch, that nvidia-fabricmanager runs in the driver's "
            "version",
        )
    if len(pairs) < gpus * (gpus - 1) // 2 or any(link.nvlinks is None for link in pairs):
        return CheckResult(
            id=check,
            status="warn",
            summary="NVLink between the GPUs could not be read",
            expected="NVLink between all of them",
            actual="unknown",
            remedy="compare with nvidia-smi topo -m by hand",
        )
    least = min(link.nvlinks or 0 for link in pairs)
    return CheckResult(
        id=check, status="pass", summary=f"NVLink between all {gpus} GPUs, at least {least} links a pair"
    )
