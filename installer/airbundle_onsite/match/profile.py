"""A fingerprint against a hardware profile."""

from __future__ import annotations

from typing import Optional

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.launch import RuntimeKind
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.match.gpus import match_gpus
from airbundle_onsite.units import human_bytes
from airbundle_onsite.versions import compare

_REBUILD = "have the bundle built for this host from its fingerprint (bash install.sh --fingerprint FILE)"


def match_profile(
    profile: HardwareProfile, fingerprint: Fingerprint, *, runtime: Optional[RuntimeKind] = None
) -> list[CheckResult]:
    """One result for each fact of the profile.

    Args:
        profile: what the bundle was built for.
        fingerprint: of the host.
        runtime: how the bundle runs; ``docker`` brings its own C library, so the host's does not matter then.
    """
    checks = [
        _arch(profile, fingerprint),
        _flags(profile, fingerprint),
        _memory(profile, fingerprint),
        _glibc(profile, fingerprint, runtime),
    ]
    if profile.gpu is None:
        return checks
    return checks + match_gpus(profile.gpu, fingerprint.gpu)


def _arch(profile: HardwareProfile, fingerprint: Fingerprint) -> CheckResult:
    found = fingerprint.os.machine
    if found == profile.arch:
        return CheckResult(id="match.arch", status="pass", summary=f"machine architecture {found}")
    return CheckResult(
        id="match.arch",
        status="fail",
        summary=f"this machine is {found}, the bundle is for {profile.arch}",
        expected=profile.arch,
        actual=found,
        remedy=f"use a {profile.arch} machine, or have the bundle built for {found}",
    )


def _flags(profile: HardwareProfile, fingerprint: Fingerprint) -> CheckResult:
    have, name = fingerprint.cpu.flags, "match.cpu.flags"
    if not profile.cpu_flags:
        return CheckResult(id=name, status="skip", summary="the profile asks for no CPU flags")
    wanted = " ".join(profile.cpu_flags)
    if not have:
        return CheckResult(
            id=name,
            status="warn",
            summary="the CPU's flags could not be read",
            expected=wanted,
            actual="unknown",
            remedy="see that /proc/cpuinfo can be read",
        )
    missing = [flag for flag in profile.cpu_flags if flag not in have]
    if not missing:
        return CheckResult(id=name, status="pass", summary=f"CPU has {wanted}")
    return CheckResult(
        id=name,
        status="fail",
        summary=f"the CPU ({fingerprint.cpu.model or 'model unknown'}) lacks {', '.join(missing)}",
        expected=wanted,
        actual=f"without {', '.join(missing)}",
        remedy="in a virtual machine, have the hypervisor pass the host's CPU model through; otherwise " + _REBUILD,
    )


def _memory(profile: HardwareProfile, fingerprint: Fingerprint) -> CheckResult:
    total, name = fingerprint.memory.total, "match.memory"
    wanted = human_bytes(profile.min_memory)
    if not profile.min_memory:
        return CheckResult(id=name, status="skip", summary="the profile asks for no amount of host memory")
    if total is None:
        return CheckResult(
            id=name,
            status="warn",
            summary="the size of host memory could not be read",
            expected=f"at least {wanted}",
            actual="unknown",
            remedy="see that /proc/meminfo can be read",
        )
    found = human_bytes(total)
    if total >= profile.min_memory:
        return CheckResult(id=name, status="pass", summary=f"host memory {found}")
    return CheckResult(
        id=name,
        status="fail",
        summary=f"host memory is {found}, {wanted} is needed",
        expected=f"at least {wanted}",
        actual=found,
        remedy="add memory, or raise the limit of the container or slice this runs in; otherwise " + _REBUILD,
    )


def _glibc(profile: HardwareProfile, fingerprint: Fingerprint, runtime: Optional[RuntimeKind]) -> CheckResult:
    found, wanted, name = fingerprint.os.glibc, profile.min_glibc, "match.glibc"
    if runtime == "docker":
        return CheckResult(id=name, status="skip", summary="the bundle's images bring their own C library")
    if not wanted:
        return CheckResult(id=name, status="skip", summary="the profile asks for no version of glibc")
    if found is None:
        return CheckResult(
            id=name,
            status="warn",
            summary="no glibc was recognised on this host",
            expected=f"glibc {wanted} or newer",
            actual="unknown",
            remedy="the bundle's wheels need glibc; on a host with another C library, use a docker bundle",
        )
    if compare(found, wanted) >= 0:
        return CheckResult(id=name, status="pass", summary=f"glibc {found}")
    return CheckResult(
        id=name,
        status="fail",
        summary=f"glibc is {found}, {wanted} or newer is needed",
        expected=f"glibc {wanted} or newer",
        actual=f"glibc {found}",
        remedy="use a newer release of the distribution or a docker bundle; otherwise " + _REBUILD,
    )
