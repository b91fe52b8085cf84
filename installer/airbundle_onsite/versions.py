"""Versions, specifiers and wheel tags: the small part of the packaging standards that a site needs."""

from __future__ import annotations

import re
from typing import Optional

_LEADING = re.compile(r"\s*v?(\d+(?:\.\d+)*)")
_CLAUSE = re.compile(r"(~=|==|!=|<=|>=|<|>)\s*(\d+(?:\.\d+)*)(\.\*)?")
_ARCHITECTURE = re.compile(r"(\d+)\.(\d+)([a-z]?)(\+PTX)?", re.IGNORECASE)
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


def numbers(version: str) -> tuple[int, ...]:
    """The leading dotted numbers: ``580.159.04`` is (580, 159, 4); empty when there are none."""
    found = _LEADING.match(version)
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def compare(one: str, other: str) -> int:
    """-1, 0 or 1; missing places count as zero, so ``3.10`` equals ``3.10.0``."""
    left, right = _padded(numbers(one), numbers(other))
    return (left > right) - (left < right)


def _padded(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    length = max(len(left), len(right))
    return left + (0,) * (length - len(left)), right + (0,) * (length - len(right))


def satisfies(version: str, specifier: str) -> bool:
    """Whether a release version meets a specifier such as ``>=3.10,<3.14``; an empty one is always met.

    Raises:
        ValueError: the specifier is not made of ``~= == != <= >= < >`` with dotted numbers.
    """
    return all(_clause(version, clause.strip()) for clause in specifier.split(",") if clause.strip())


def _clause(version: str, clause: str) -> bool:
    found = _CLAUSE.fullmatch(clause)
    if not found or (found.group(3) and found.group(1) not in ("==", "!=")):
        raise ValueError(f"version specifier {clause!r}: expected something like >=3.10 or ==3.11.*")
    operator, wanted, wildcard = found.group(1), found.group(2), found.group(3)
    if operator == "~=":
        prefix = numbers(wanted)[:-1]
        if not prefix:
            raise ValueError(f"version specifier {clause!r}: ~= needs at least two numbers")
        return compare(version, wanted) >= 0 and _begins(version, prefix)
    if wildcard:
        return _begins(version, numbers(wanted)) == (operator == "==")
    order = compare(version, wanted)
    return {
        "==": order == 0,
        "!=": order != 0,
        "<=": order <= 0,
        ">=": order >= 0,
        "<": order < 0,
        ">": order > 0,
    }[operator]


def _begins(version: str, prefix: tuple[int, ...]) -> bool:
    padded, _ = _padded(numbers(version), prefix)
    return padded[: len(prefix)] == prefix


def wheel_fits(tags: str, *, python: str, machine: str, glibc: Optional[str]) -> bool:
    """Whether a CPython of this version on this machine can install a wheel.

    Args:
        tags: a wheel's tag set, e.g. ``cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64``.
        python: e.g. ``3.11.2``.
        machine: as `uname -m` prints it.
        glibc: e.g. ``2.36``; None for another C library, on which no manylinux wheel runs.
    """
    interpreter, _, rest = tags.partition("-")
    abi, _, platform = rest.partition("-")
    minor = numbers(python)[:2]
    return any(
        _python_fits(one_python, one_abi, minor) for one_python in interpreter.split(".") for one_abi in abi.split(".")
    ) and any(_platform_fits(one, machine, glibc) for one in platform.split("."))


def _python_fits(tag: str, abi: str, minor: tuple[int, ...]) -> bool:
    found = re.fullmatch(r"(cp|py)(\d)(\d*)", tag)
    if not found:
        return False
    wanted = (int(found.group(2)), int(found.group(3) or 0))
    same_major_not_newer = wanted[0] == minor[0] and wanted <= minor
    if found.group(1) == "py":
        return abi == "none" and same_major_not_newer
    if abi == "abi3":
        return same_major_not_newer
    return wanted == minor and abi in ("none", f"cp{minor[0]}{minor[1]}")


def _platform_fits(tag: str, machine: str, glibc: Optional[str]) -> bool:
    if tag == "any" or tag == f"linux_{machine}":
        return True
    found = _MANYLINUX.fullmatch(tag)
    if found:
        wanted, arch = (int(found.group(1)), int(found.group(2))), found.group(3)
    else:
        name, _, arch = tag.partition("_")
        if name not in _LEGACY:
            return False
        wanted = _LEGACY[name]
    return arch == machine and glibc is not None and wanted <= numbers(glibc)[:2]


def gpu_code_fits(architectures: tuple[str, ...], capability: str) -> bool:
    """Whether code for these architectures runs on a GPU of this compute capability.

    Machine code runs within its major version on the same or a later minor one; with a letter (``9.0a``) on that
    very one; PTX is compiled for whatever is as new or newer. An empty list is taken as unknown, so it fits.
    """
    device = numbers(capability)[:2]
    return not architectures or any(_architecture_fits(one, device) for one in architectures)


def _architecture_fits(architecture: str, device: tuple[int, ...]) -> bool:
    found = _ARCHITECTURE.fullmatch(architecture)
    if not found:
        return False
    built = (int(found.group(1)), int(found.group(2)))
    if found.group(3):
        return built == device
    return built <= device and (built[0] == device[0] or bool(found.group(4)))
