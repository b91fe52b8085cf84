"""What the closure is held against, and the packages that are judged: both made of facts alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from airbundle.prove import cuda
from airbundle.prove.facts import Distribution, ImageFacts, NativeFile, OsPackage, WheelFacts, version_key
from airbundle.prove.wheel import cuda_major
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import record


@record
class Package:
    """What is judged as one.

    Attributes:
        name, version: as its index or package database calls it.
        kind: ``wheel`` of the bundle; ``image`` for a Python project in the image; ``os`` for one of its OS packages,
            or for the files that nothing claims.
        natives: its native files.
        cuda: major of the toolkit it was built for, or 0.
    """

    name: str
    version: str
    kind: str
    natives: tuple[NativeFile, ...]
    cuda: int = 0

    def title(self) -> str:
        """``torch 2.11.0+cu130``."""
        return f"{self.name} {self.version}".strip()


@record
class Target:
    """Where the packages must run.

    Attributes:
        title: of the hardware, for people; with the capability where it has a GPU.
        arch: as `uname -m` prints it.
        where: the GPU's compute capability; None without a GPU.
        gpu_cuda: CUDA version that the lowest allowed driver reports, or empty when not known.
        driver: that driver, or empty when only the CUDA version was given.
        data_centre: whether forward compatibility works.
        image: the image, or None when wheels run on the host itself.
        glibc, glibcxx: highest symbol versions there are, or empty when not known.
        provided: names of libraries there are.
    """

    title: str
    arch: str
    where: tuple[int, int] | None
    gpu_cuda: str
    driver: str
    data_centre: bool
    image: ImageFacts | None
    glibc: str
    glibcxx: str
    provided: frozenset[str] = field(default_factory=frozenset)

    def place(self) -> str:
        """``image NAME`` or ``the host``."""
        return f"image {self.image.name}" if self.image else "the host"


def make_target(
    wheels: Sequence[WheelFacts], profile: HardwareProfile, image: ImageFacts | None, driver_cuda: str | None
) -> Target:
    """Put together what the closure is held against; see `airbundle.prove.closure.prove_closure`."""
    gpu = profile.gpu
    where = cuda.capability(gpu.capability) if gpu else None
    driver = gpu.min_driver if gpu and not driver_cuda else ""
    glibc = image.glibc if image else profile.min_glibc
    return Target(
        title=f"{profile.title} ({cuda.sm(where)})" if where else profile.title,
        arch=profile.arch,
        where=where,
        gpu_cuda=driver_cuda or (cuda.driver_cuda(driver) if driver else ""),
        driver=driver,
        data_centre=bool(gpu) and cuda.is_data_centre((*(gpu.names if gpu else ()), profile.title)),
        image=image,
        glibc=glibc,
        glibcxx=image.glibcxx if image else _host_glibcxx(glibc),
        provided=frozenset(_provided(wheels, image, has_gpu=gpu is not None)),
    )


def _host_glibcxx(glibc: str) -> str:
    """Highest GLIBCXX that every distribution with this glibc has."""
    known: Mapping[str, str] = cuda.table("libraries")["glibcxx"]
    fitting = [key for key in known if glibc and version_key(key) <= version_key(glibc)]
    return known[max(fitting, key=version_key)] if fitting else ""


def _provided(wheels: Sequence[WheelFacts], image: ImageFacts | None, *, has_gpu: bool) -> set[str]:
    natives = [native for wheel in wheels for native in wheel.natives]
    names = {base_name(native.path) for native in natives}
    if image:
        natives += image.natives
        names.update(map(base_name, image.names))
    else:
        names.update(cuda.table("libraries")["system"])
    names.update(native.elf.soname for native in natives if native.elf and native.elf.soname)
    if has_gpu:
        names.update(cuda.table("libraries")["driver"])
    return names


def base_name(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]


def packages_of(wheels: Iterable[WheelFacts], image: ImageFacts | None) -> list[Package]:
    """Packages with native files: wheels by name, then the image's Python projects, then its OS packages."""
    found = [
        Package(wheel.name, wheel.version, "wheel", wheel.natives, wheel.cuda)
        for wheel in sorted(wheels, key=lambda wheel: wheel.name)
        if wheel.natives
    ]
    if image is None:
        return found
    natives = {native.path: native for native in image.natives}
    installed: list[tuple[str, Distribution | OsPackage]] = [("image", each) for each in image.distributions]
    installed += [("os", each) for each in image.os_packages]
    for kind, each in installed:
        own = tuple(natives.pop(path) for path in each.files if path in natives)
        if own:
            requires = each.requires if isinstance(each, Distribution) else ()
            found.append(Package(each.name, each.version, kind, own, cuda_major(each.version, own, requires)))
    if natives:
        rest = tuple(natives.values())
        found.append(Package(f"other files of {image.name}", "", "os", rest, cuda_major("", rest)))
    return found


def some(lines: Sequence[str]) -> tuple[str, ...]:
    """Not more lines than a person reads."""
    return (*lines[:8], f"and {len(lines) - 8} more") if len(lines) > 8 else tuple(lines)


def is_optional(package: Package, native: NativeFile) -> bool:
    """Whether the package is known to do without this file when it cannot be loaded."""
    rules: list[Mapping[str, str]] = cuda.table("libraries")["optional"]
    own = [rule for rule in rules if rule_for([rule], package.name)]
    return any(re.search(rule["file"], native.path) for rule in own)


def rule_for(rules: Iterable[Mapping[str, str]], package: str) -> Mapping[str, str] | None:
    """The first rule whose ``package`` pattern matches the name in full."""
    return next((rule for rule in rules if re.fullmatch(rule["package"], package)), None)
