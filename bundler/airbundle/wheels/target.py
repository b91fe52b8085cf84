"""The Python and the system that wheels are resolved for, without either being here: its tags and its markers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # PEP 600: what glibc 2.N used to be called
_OLDEST = {"x86_64": 5, "i686": 5}  # elsewhere there is no manylinux before glibc 2.17
_LEVELS = (17, 28, *range(31, 41))  # the minor versions of glibc that uv has a platform for
_HIGHEST = 99  # no glibc of that minor version is near


@record
class Target:
    """CPython on Linux with glibc.

    Attributes:
        python: as ``3.12``.
        arch: as `uname -m` prints it.
        glibc: as ``2.31``; the highest that a wheel may ask for.
    """

    python: str
    arch: str
    glibc: str

    def __str__(self) -> str:
        return f"Python {self.python} on {self.arch} with glibc {self.glibc}"

    @property
    def version(self) -> tuple[int, int]:
        """``(3, 12)``."""
        major, minor = self.python.split(".")
        return int(major), int(minor)

    @property
    def minor(self) -> int:
        """Minor version of the glibc; its major has been 2 since 1997."""
        return int(self.glibc.split(".")[1])

    def rank(self) -> Mapping[Tag, int]:
        """Every tag that can be installed there, with its place in the order of preference, 0 first."""
        return _rank(self.version, self.arch, self.minor)

    def best(self, names: list[str]) -> str | None:
        """The file name that an installer there would take, or None when none fits."""
        rank = self.rank()
        fitting = [(fit, name) for name in names if (fit := fitness(name, rank)) is not None]
        return min(fitting)[1] if fitting else None

    def uv_platform(self) -> str:
        """The nearest platform of uv that has every tag of this target, and perhaps more."""
        level = next((level for level in _LEVELS if level >= self.minor), _LEVELS[-1])
        return f"{self.arch}-manylinux_2_{level}"

    def environments(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Marker environments of the first and of the last conceivable patch release: which one runs is not known."""
        return self._environment(0), self._environment(99)

    def _environment(self, patch: int) -> Mapping[str, str]:
        full = f"{self.python}.{patch}"
        return {
            "implementation_name": "cpython",
            "implementation_version": full,
            "os_name": "posix",
            "platform_machine": self.arch,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": full,
            "python_version": self.python,
            "sys_platform": "linux",
        }


def make_target(python: str, arch: str, glibc: str) -> Target:
    """A target, checked.

    Raises:
        UsageError: nothing can be resolved for it.
    """
    if arch not in ("x86_64", "aarch64"):
        raise UsageError(
            f'wheels.resolve is "cross", which knows x86_64 and aarch64, not {arch}',
            remedy='resolve on a machine of that kind (wheels.resolve = "host"), or in an image',
        )
    if not glibc.startswith("2."):
        raise UsageError(
            f"the profile says of its glibc: {glibc or 'nothing'}; needed is a version such as 2.31",
            remedy="choose a profile with min_glibc, or take the site's fingerprint",
        )
    return Target(python, arch, ".".join(glibc.split(".")[:2]))


def fitness(name: str, rank: Mapping[Tag, int]) -> int | None:
    """Place of a wheel in the order of preference, by its file name; None when it does not fit."""
    return min((rank[tag] for tag in parse_wheel_filename(name)[3] if tag in rank), default=None)


def needed_glibc(name: str, target: Target) -> str | None:
    """The lowest glibc at which a wheel would fit that Python and architecture; None when none would do."""
    tags = parse_wheel_filename(name)[3]
    if fitness(name, _rank(target.version, target.arch, _HIGHEST)) is None:
        return None
    levels = range(_OLDEST.get(target.arch, 17), _HIGHEST + 1)
    lowest = next(level for level in levels if not tags.isdisjoint(_rank(target.version, target.arch, level)))
    return f"2.{lowest}"


@lru_cache(maxsize=128)
def _rank(version: tuple[int, int], arch: str, minor: int) -> Mapping[Tag, int]:
    platforms = list(_platforms(arch, minor))
    interpreter = f"cp{version[0]}{version[1]}"
    found: dict[Tag, int] = {}
    for tag in (
        *cpython_tags(version, [interpreter], platforms),
        *compatible_tags(version, interpreter, platforms),
    ):
        found.setdefault(tag, len(found))
    return found


def _platforms(arch: str, minor: int) -> Iterator[str]:
    for level in range(minor, _OLDEST.get(arch, 17) - 1, -1):
        yield f"manylinux_2_{level}_{arch}"
        if level in _LEGACY:
            yield f"{_LEGACY[level]}_{arch}"
    yield f"linux_{arch}"
