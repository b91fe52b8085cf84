"""What runs where: GPU code on GPUs, toolkits and PTX on drivers, images by NVIDIA_REQUIRE_CUDA."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable
from importlib import resources
from typing import Any

from airbundle.prove.facts import arch_key, version_key

Capability = tuple[int, int]


@functools.cache
def table(name: str) -> dict[str, Any]:
    """One of the tables in ``data/``, by its name without ending."""
    return tomllib.loads((resources.files("airbundle.prove") / "data" / f"{name}.toml").read_text("utf-8"))


def capability(text: str) -> Capability:
    """``"9.0"`` as numbers.

    Raises:
        ValueError: not of that form.
    """
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def sm(where: Capability) -> str:
    """As NVIDIA's tools write it, e.g. ``sm_90``."""
    return f"sm_{where[0]}{where[1]}"


def split_arch(arch: str) -> tuple[int, int, str]:
    """``"100f"`` as major, minor and suffix."""
    number, suffix = arch_key(arch)
    return number // 10, number % 10, suffix


def sass_runs(arch: str, where: Capability) -> bool:
    """Whether machine code for `arch` runs on a GPU: same major version, minor not above the GPU's.

    Code with suffix ``a`` runs on its own architecture only; with ``f`` in its family, which is the same rule as none.
    """
    major, minor, suffix = split_arch(arch)
    if suffix == "a":
        return (major, minor) == where
    return major == where[0] and minor <= where[1]


def ptx_runs(arch: str, where: Capability) -> bool:
    """Whether a driver can compile PTX for `arch` to run on a GPU: any as new or newer, unless a suffix binds it."""
    major, minor, suffix = split_arch(arch)
    if suffix:
        return sass_runs(arch, where)
    return (major, minor) <= where


def driver_cuda(driver: str) -> str:
    """CUDA version that a Linux driver reports, e.g. ``12.8`` for ``570.86.15``; empty when older than the table.

    A branch alone, such as ``580``, counts as that branch's first release.
    """
    wanted, found = version_key(driver), ""
    for cuda, lowest in table("cuda")["drivers"].items():
        if wanted and version_key(lowest)[: len(wanted)] <= wanted:
            found = cuda
    return found


def lowest_driver(cuda_major: int) -> str:
    """Lowest driver for any toolkit of a major version, e.g. ``580.65.06`` for 13; empty when not known."""
    return str(table("cuda")["drivers"].get(f"{cuda_major}.0", ""))


def ptx_cuda(isa: str) -> str:
    """CUDA version a driver must report to compile PTX of this version; empty when not known."""
    return str(table("cuda")["ptx"].get(isa, ""))


def is_data_centre(names: Iterable[str]) -> bool:
    """Whether one of these GPU names is a data-centre card, where forward compatibility works."""
    patterns = [re.compile(pattern) for pattern in table("cuda")["data_centre"]["names"]]
    return any(pattern.search(name) for name in names for pattern in patterns)


def requirement_met(requirement: str, *, cuda: str, driver: str, data_centre: bool) -> bool:
    """Whether NVIDIA_REQUIRE_CUDA lets a container start.

    Words are alternatives, commas within a word mean "and", e.g. ``cuda>=12.8 brand=tesla,driver>=535,driver<536``. A
    condition on anything but cuda, driver and brand is not ours to judge and counts as met.

    Args:
        requirement: its value.
        cuda: version the driver reports.
        driver: version of the driver, or empty; conditions on it then fail.
        data_centre: whether ``brand=tesla`` applies.
    """
    alternatives = requirement.split()
    return not alternatives or any(
        all(_condition(each, cuda, driver, data_centre) for each in word.split(",")) for word in alternatives
    )


def _condition(text: str, cuda: str, driver: str, data_centre: bool) -> bool:
    found = re.fullmatch(r"(\w+)(>=|<=|=|!=|<|>)([\w.]+)", text)
    if found is None:
        return True
    name, operator, value = found.groups()
    if name == "brand":
        return (value == "tesla" and data_centre) == (operator == "=")
    if name not in ("cuda", "driver"):
        return True
    have, want = version_key(cuda if name == "cuda" else driver), version_key(value)
    have = (*have, 0, 0)[: max(len(want), 1)] if have else ()
    return (
        bool(have)
        and {
            ">=": have >= want,
            "<=": have <= want,
            "=": have == want,
            "!=": have != want,
            "<": have < want,
            ">": have > want,
        }[operator]
    )
