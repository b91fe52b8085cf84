"""What the engine in an image would fetch or compile once it runs, held against what that image holds."""

from __future__ import annotations

import dataclasses
import re

from airbundle import engines
from airbundle.contract.lock import BundleLock
from airbundle.engines.lazy import lazy_check, lazy_needs, wheel_versions
from airbundle.prove.facts import ImageFacts
from airbundle_onsite.contract.checks import CheckResult

_TOOLS = {"gcc": re.compile(r"(?:gcc|clang)(?:-\d+)?"), "nvcc": re.compile(r"cuda-nvcc-[\d-]+|nvidia-cuda-toolkit")}
"""Names of the packages that bring them; another C compiler does as well as gcc."""


def lazy_image_checks(lock: BundleLock, image: ImageFacts) -> list[CheckResult]:
    """Kernels of the version that reads them, and tools; of what the bundle's wheels bring, locking has told already.
    All of it is for GPUs.

    Args:
        lock: names the engine; its wheels stand before the image's projects.
        image: the engine's.
    """
    if lock.profile.gpu is None:
        return []
    name, wheels = lock.spec.engine.name, wheel_versions(lock)
    projects = {each.name: each.version for each in image.distributions} | wheels
    version = engines.create(name).version(lock)
    found = [
        lazy_check(need, projects, (), _tools(image))
        for need in lazy_needs(name, version, {}, projects)
        if (need.same_version or need.tools) and need.wheel not in wheels
    ]
    return [
        dataclasses.replace(check, summary=f"image {image.name}: {check.summary}")
        for check in found
        if check.status != "skip"
    ]


def _tools(image: ImageFacts) -> frozenset[str] | None:
    """Those of `_TOOLS` that the image's packages bring; None when they cannot be read."""
    if not image.os_packages or image.unread:
        return None
    names = [package.name for package in image.os_packages]
    return frozenset(tool for tool, pattern in _TOOLS.items() if any(map(pattern.fullmatch, names)))
