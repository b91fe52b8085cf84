"""The GPU driver: whether it answers, its version, and what an image's CUDA asks of it."""

from __future__ import annotations

import re
from typing import Literal, Optional

from airbundle_onsite.contract.artifacts import ImageEntry
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import GpuFacts
from airbundle_onsite.versions import compare

# Lowest Linux driver of each CUDA release, from NVIDIA's CUDA toolkit release notes, table of toolkit drivers.
_DRIVER_OF_CUDA = {
    "11.8": "520.61.05",
    "12.0": "525.60.13",
    "12.1": "530.30.02",
    "12.4": "550.54.14",
    "12.6": "560.28.03",
    "12.8": "570.26",
    "12.9": "575.51.03",
    "13.0": "580.65.06",
    "13.1": "590.44.01",
    "13.2": "595.45.04",
    "13.3": "610.43.02",
}
_CONSTRAINT = re.compile(r"(\w+)(>=|<=|!=|=|>|<)(.+)")

Verdict = Literal["met", "unmet", "unknown"]


def match_state(min_driver: str, facts: GpuFacts) -> CheckResult:
    """Whether the driver answers; a driver that is missing, blind or broken are three different failures."""
    check = "match.gpu.driver"
    wanted = f"version {min_driver} or newer" if min_driver else "any version"
    if facts.state == "ok":
        names = f"driver {facts.driver or 'of unknown version'}, CUDA up to {facts.cuda or 'unknown'}"
        return CheckResult(id="match.gpu.state", status="pass", summary=f"{len(facts.devices)} GPU(s), {names}")
    if facts.state == "no-driver":
        return CheckResult(
            id=check,
            status="fail",
            summary="no NVIDIA driver answers on this host",
            expected=f"an NVIDIA driver, {wanted}",
            actual=facts.error,
            remedy="install the driver (from the distribution, without network: from its packages on a medium); if it "
            "is installed, load it with modprobe nvidia and see dmesg for why it does not load",
        )
    if facts.state == "no-gpu":
        return CheckResult(
            id="match.gpu.present",
            status="fail",
            summary=f"the NVIDIA driver {facts.driver or ''} runs, but it sees no GPU".replace("  ", " "),
            expected="a GPU",
            actual="none",
            remedy="see lspci -d 10de: for whether the card is there, dmesg for lines with NVRM, and in a virtual "
            "machine whether the GPU is passed through",
        )
    if facts.driver and facts.kernel_driver and facts.driver != facts.kernel_driver:
        return CheckResult(
            id="match.gpu.driver-mismatch",
            status="fail",
            summary=f"the driver's library is version {facts.driver}, but the loaded kernel module is version "
            f"{facts.kernel_driver}",
            expected="one version of both",
            actual=f"library {facts.driver}, kernel module {facts.kernel_driver}",
            remedy="restart the host, or stop what uses the GPUs and reload the modules (modprobe -r nvidia_uvm "
            "nvidia_drm nvidia_modeset nvidia; modprobe nvidia); then hold the driver's packages (apt-mark hold, dnf "
            "versionlock), so that an unattended upgrade does not do this again",
        )
    return CheckResult(
        id=check,
        status="fail",
        summary="the NVIDIA driver is there, but asking it failed",
        expected=f"an NVIDIA driver, {wanted}, that answers",
        actual=facts.error,
        remedy="run nvidia-smi and see dmesg for lines with NVRM; a restart of the host loads the driver afresh",
    )


def match_driver(min_driver: str, facts: GpuFacts) -> list[CheckResult]:
    """The driver's version against the profile's."""
    if not min_driver:
        return []
    check = "match.gpu.driver"
    if facts.driver is None:
        return [
            CheckResult(
                id=check,
                status="warn",
                summary="the version of the NVIDIA driver could not be read",
                expected=f"{min_driver} or newer",
                actual="unknown",
                remedy="compare it with nvidia-smi by hand",
            )
        ]
    if compare(facts.driver, min_driver) >= 0:
        return [CheckResult(id=check, status="pass", summary=f"NVIDIA driver {facts.driver}")]
    return [
        CheckResult(
            id=check,
            status="fail",
            summary=f"the NVIDIA driver is {facts.driver}, {min_driver} or newer is needed",
            expected=f"{min_driver} or newer",
            actual=facts.driver,
            remedy=f"update the NVIDIA driver to {min_driver} or newer and restart the host",
        )
    ]


def match_image_cuda(image: ImageEntry, facts: GpuFacts) -> Optional[CheckResult]:
    """What an image's NVIDIA_REQUIRE_CUDA asks, against the driver; None when it asks nothing."""
    if not image.require_cuda:
        return None
    check = "match.image.cuda"
    wanted = cuda_wanted(image.require_cuda)
    driver = f"driver {facts.driver or 'unknown'} with CUDA {facts.cuda or 'unknown'}"
    verdict = requirement(image.require_cuda, facts)
    if verdict == "met":
        return CheckResult(id=check, status="pass", summary=f"image {image.name}: its CUDA is met by {driver}")
    lowest = _DRIVER_OF_CUDA.get(wanted, "")
    cure = f"update the NVIDIA driver to {lowest or f'one with CUDA {wanted}'} or newer"
    if verdict == "unknown":
        return CheckResult(
            id=check,
            status="warn",
            summary=f"image {image.name} asks for CUDA {wanted}; whether {driver} meets it is not certain",
            expected=image.require_cuda,
            actual=driver,
            remedy=f"on data-centre GPUs NVIDIA's forward compatibility may do; to be certain, {cure}",
        )
    return CheckResult(
        id=check,
        status="fail",
        summary=f"image {image.name} needs CUDA {wanted}, and {driver} is all this host has",
        expected=f"CUDA {wanted}" + (f", so driver {lowest} or newer" if lowest else ""),
        actual=driver,
        remedy=f"{cure}, or have a bundle built with an image for CUDA {facts.cuda or 'of this driver'}",
    )


def cuda_wanted(require: str) -> str:
    """The CUDA version of ``cuda>=12.8 brand=…``: the lowest that one of its alternatives names."""
    found = re.findall(r"cuda>=?(\d+\.\d+)", require)
    return min(found, key=lambda text: tuple(map(int, text.split(".")))) if found else "unknown"


def requirement(require: str, facts: GpuFacts) -> Verdict:
    """NVIDIA_REQUIRE_CUDA: alternatives parted by blanks, each of constraints parted by commas."""
    verdicts = {_alternative(group, facts) for group in require.split()}
    return "met" if "met" in verdicts else "unknown" if "unknown" in verdicts else "unmet"


def _alternative(group: str, facts: GpuFacts) -> Verdict:
    verdicts = {_constraint(text, facts) for text in group.split(",")}
    return "unmet" if "unmet" in verdicts else "unknown" if "unknown" in verdicts else "met"


def _constraint(text: str, facts: GpuFacts) -> Verdict:
    found = _CONSTRAINT.fullmatch(text.strip())
    if not found:
        return "unknown"
    name, operator, wanted = found.groups()
    value = {"cuda": facts.cuda, "driver": facts.driver}.get(name)
    if value is None:  # not read, or a constraint on the product's brand, which no one here can judge
        return "unknown"
    # Drivers are compared as far as the constraint is written: driver<536 is about the branch.
    order = compare(value, wanted)
    holds = {
        ">=": order >= 0,
        "<=": order <= 0,
        ">": order > 0,
        "<": order < 0,
        "=": order == 0,
        "!=": order != 0,
    }[operator]
    return "met" if holds else "unmet"
