"""What tags do not settle: the accelerator that a wheel was built for, and the glibc that an untagged one needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from airbundle.contract.lock import LockedFile, LockedWheel
from airbundle.prove.wheel import read_wheel
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.errors import FetchError

# A number may be followed by more, as in 2.8.3+cu12torch2.7cxx11abitrue; a word without one stands alone.
_VARIANT = re.compile(r"(?:^|\.)(?:(cu|rocm|hip|xpu)(\d[\d.]*)|(cpu|cu|rocm|hip|xpu)(?=\.|$))")
_GLIBC = re.compile(r"GLIBC_(\d+\.\d+)(?:\.\d+)?")
_KINDS = {"cu": "CUDA", "rocm": "ROCm", "hip": "ROCm", "cpu": "the CPU", "xpu": "Intel GPUs"}
_BIND = (
    "pin the full version (as torch==2.11.0+cu130) in wheels.requirements and bind the package to the index that has "
    "it, in [[wheels.indexes]]"
)


def check_variants(wheels: Iterable[LockedWheel], profile: HardwareProfile) -> None:
    """Hold the local versions (``+cu130``, ``+cpu``, ``+rocm6.4``) against the profile's kind, and to each other.

    Raises:
        FetchError: naming each wheel built for something else; or two toolkits side by side.
    """
    found = [(wheel, kind, number) for wheel in wheels for kind, number in _variant(wheel.version)]
    wanted = "cu" if profile.gpu else "cpu"
    wrong = [f"{wheel.name} {wheel.version} is built for {_KINDS[kind]}" for wheel, kind, _ in found if kind != wanted]
    if wrong:
        raise FetchError(f"{wrong[0]}; profile {profile.id} is for {_KINDS[wanted]}", details=wrong[1:8], remedy=_BIND)
    numbers = {number for _, _, number in found}
    longest = max(numbers, key=len, default="")
    if not all(longest.startswith(number) for number in numbers):  # cu12 goes with cu128, and cu129 does not
        raise FetchError(
            f"wheels for different versions of {_KINDS[wanted]} would be installed together",
            details=[f"{wheel.name} {wheel.version}" for wheel, _, _ in found],
            remedy=_BIND,
        )


def _variant(version: str) -> Iterator[tuple[str, str]]:
    local = Version(version).local
    found = _VARIANT.search(local) if local else None
    if found:
        yield found[1] or found[3], (found[2] or "").replace(".", "")


def check_glibc(wheels: Iterable[LockedWheel], glibc: str, fetch: Callable[[LockedFile], Path], scratch: Path) -> None:
    """Read the wheels whose tag promises no glibc (``linux_x86_64``) and hold their symbols against the target's.

    Args:
        wheels: of the closure.
        glibc: the highest there may be, as ``2.28``.
        fetch: brings a file into the cache; returns its path.
        scratch: directory for copies of large members.

    Raises:
        FetchError: naming the wheel, the file in it, and the version it asks for.
    """
    limit = _pair(glibc)
    wrong: list[str] = []
    for wheel in wheels:
        if is_untagged(wheel.file.path):
            wrong += _too_new(wheel, fetch(wheel.file), limit, scratch)
    if wrong:
        raise FetchError(
            f"{wrong[0]}; the target has {glibc}",
            details=wrong[1:8],
            remedy="build it where the glibc is as old as the target's: in the image that is shipped (wheels.build), "
            "or with the manylinux images",
        )


def is_untagged(name: str) -> bool:
    """Whether a wheel is native and its file name says nothing of the glibc it needs."""
    platforms = {tag.platform for tag in parse_wheel_filename(name)[3]}
    return all(platform.startswith("linux_") for platform in platforms)


def _too_new(wheel: LockedWheel, path: Path, limit: tuple[int, int], scratch: Path) -> Sequence[str]:
    scratch.mkdir(parents=True, exist_ok=True)
    for native in read_wheel(path, scratch, file_name=wheel.file.path).natives:
        versions = native.elf.versions.values() if native.elf else ()
        asked = [_pair(found[1]) for each in versions for name in each if (found := _GLIBC.fullmatch(name))]
        if asked and max(asked) > limit:
            highest = ".".join(map(str, max(asked)))
            return [f"{wheel.file.path}: {native.path} needs glibc {highest}"]
    return []


def _pair(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
