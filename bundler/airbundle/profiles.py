"""Hardware profiles: the data in profiles/, and which of them a host's fingerprint meets."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from airbundle.data import data_dir
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import Fingerprint, Gpu
from airbundle_onsite.contract.profile import GpuProfile, HardwareProfile
from airbundle_onsite.contract.record import decode, encode, near_miss
from airbundle_onsite.errors import ContractError, UsageError
from airbundle_onsite.match import match_profile

# CPU flags that engines choose kernels by; the rest of /proc/cpuinfo comes and goes with kernels and hypervisors.
_TELLING_FLAGS = re.compile(r"avx2|avx_vnni|avx512\w+|amx_\w+|bmi2|f16c|fma|asimd\w*|sve\w*|i8mm|bf16")

# The same host says a little less after an update of its kernel or of its GPU driver.
_HOST_MEMORY_SHARE = 0.95
_GPU_MEMORY_SHARE = 0.98


def load(profile_id: str) -> HardwareProfile:
    """The profile of that id.

    Raises:
        UsageError: there is none, or its file is not a profile.
    """
    known = _files()
    if profile_id not in known:
        # h200 means h200-sxm, although h20 is spelled more alike.
        longer = " or ".join(repr(each) for each in known if each.startswith(f"{profile_id}-"))
        hint = f" (did you mean {longer}?)" if longer else near_miss(profile_id, known)
        raise UsageError(
            f"no hardware profile {profile_id!r}{hint}",
            remedy=f"choose one of: {', '.join(known)}; or give target.fingerprint, the file that "
            "`bash install.sh --fingerprint FILE` wrote at the site",
        )
    return read(known[profile_id])


def all_profiles() -> list[HardwareProfile]:
    """Every profile that airbundle brings, by id. Raises UsageError like `load`."""
    return list(_shipped())


@cache
def _shipped() -> tuple[HardwareProfile, ...]:
    """Read once: a plan asks for them a dozen times."""
    return tuple(read(path) for path in _files().values())


def read(path: Path) -> HardwareProfile:
    """A profile from a TOML file; its id is the file's name.

    Raises:
        UsageError: the file is not TOML, or not a profile; `details` has every problem.
    """
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return decode(HardwareProfile, {**table, "id": path.stem}, path.name)
    except (OSError, ValueError) as error:
        raise UsageError(f"hardware profile {path}: {error}", remedy="correct the file") from error
    except ContractError as error:
        raise UsageError(
            f"hardware profile {path}: {len(error.problems)} problem(s)",
            details=error.problems,
            remedy="correct the file; the fields are those of HardwareProfile",
        ) from error


def _files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(data_dir("profiles").glob("*.toml"))}


def match_fingerprint(fingerprint: Fingerprint) -> list[tuple[HardwareProfile, list[CheckResult]]]:
    """Every profile with the results of holding the host against it, best first.

    A profile for GPUs comes last where none answers. Then the order is: fewest failures; one that uses the host's
    GPUs; fewest warnings; the most demanding of those that fit, the least demanding of those that do not.
    """
    matched = [(profile, match_profile(profile, fingerprint)) for profile in all_profiles()]
    without_gpus = fingerprint.gpu.state != "ok"
    return sorted(matched, key=lambda pair: (pair[0].gpu is not None and without_gpus, *_badness(*pair)))


def _badness(profile: HardwareProfile, checks: Sequence[CheckResult]) -> tuple[int, bool, int, int, int, str]:
    failures = _count(checks, "fail")
    towards = 1 if failures else -1
    return (
        failures,
        profile.gpu is None,
        _count(checks, "warn"),
        towards * (profile.gpu.memory if profile.gpu else 0),
        towards * len(profile.cpu_flags),
        profile.id,
    )


def _count(checks: Sequence[CheckResult], status: str) -> int:
    return sum(check.status == status for check in checks)


def explain(matches: Sequence[tuple[HardwareProfile, list[CheckResult]]], others: int = 3) -> list[str]:
    """Why the first of `match_fingerprint`'s results comes first, what its data says, and what speaks against others.

    Args:
        matches: as `match_fingerprint` gives them.
        others: how many of the rest are explained.
    """
    (best, checks), rest = matches[0], matches[1 : 1 + others]
    failures, warnings = _count(checks, "fail"), _count(checks, "warn")
    if failures:
        reason = f"no profile fits this host; of all, this one fails least ({failures})"
    elif best.gpu is None:
        reason = "no profile with GPUs fits this host; of the others that fit, this one asks most"
    else:
        reason = f"nothing speaks against it ({warnings} warnings); of the profiles of which that is true it asks most"
    lines = [f"why: {reason}"]
    if best.gpu is not None:
        lines.append(f"from its data: {_data(best.gpu)}")
    lines += [f"note: {note}" for note in best.notes]
    return lines + [f"not {profile.id}: {_against(profile, best, found)}" for profile, found in rest]


def _data(gpu: GpuProfile) -> str:
    types = ", ".join(gpu.dtypes)
    return (
        f"{gpu.bandwidth / 1e9:.0f} GB/s of memory bandwidth, {gpu.l2 / 2**20:.0f} MiB of L2, computes {types}, "
        f"link {gpu.link}, driver {gpu.min_driver} or newer"
    )


def _against(profile: HardwareProfile, best: HardwareProfile, checks: Sequence[CheckResult]) -> str:
    for status in ("fail", "warn"):
        found = [check.summary for check in checks if check.status == status]
        if found:
            return f"{found[0]}{f' (and {len(found) - 1} more)' if len(found) > 1 else ''}"
    if profile.gpu is None and best.gpu is not None:
        return "it would leave the GPUs unused"
    return "it fits too, and asks less"


def from_fingerprint(fingerprint: Fingerprint) -> HardwareProfile:
    """The profile of one real host, which a bundle can be built for.

    What a fingerprint does not tell (bandwidth, cache, data types) is taken from the known profile that the GPUs meet,
    if there is one. On a host with several models of GPU, the most numerous counts.

    Raises:
        UsageError: the host's GPUs could not be read well enough to build for them.
    """
    made = HardwareProfile(
        id="host",
        title=_title(fingerprint),
        arch=fingerprint.os.machine,
        gpu=_gpu(fingerprint),
        cpu_flags=tuple(sorted(flag for flag in fingerprint.cpu.flags if _TELLING_FLAGS.fullmatch(flag))),
        min_memory=int((fingerprint.memory.total or 0) * _HOST_MEMORY_SHARE),
        min_glibc=fingerprint.os.glibc or "",
        numa_nodes=fingerprint.cpu.numa_nodes or 0,
        sources={"fingerprint": f"taken {fingerprint.taken} s after the epoch, by the host's clock"},
    )
    return _with_id(made)


def _with_id(profile: HardwareProfile) -> HardwareProfile:
    """Hosts alike get one id: it is made of the facts, not of when they were read."""
    facts = {
        name: getattr(profile, name) for name in ("arch", "gpu", "cpu_flags", "min_memory", "min_glibc", "numa_nodes")
    }
    short = hashlib.sha256(encode(facts)).hexdigest()[:8]
    return HardwareProfile(id=f"host-{short}", title=profile.title, sources=profile.sources, **facts)


def _title(fingerprint: Fingerprint) -> str:
    names = [gpu.name for gpu in fingerprint.gpu.devices if gpu.name]
    what = f"{len(names)} × {names[0]}" if names else fingerprint.cpu.model or fingerprint.os.machine
    return f"{what}, {fingerprint.os.distribution or fingerprint.os.kernel}"


def _gpu(fingerprint: Fingerprint) -> GpuProfile | None:
    facts = fingerprint.gpu
    if facts.state in ("no-driver", "no-gpu"):
        return None
    if facts.state == "failed":
        raise UsageError(
            f"the fingerprint says that asking the GPU driver failed: {facts.error}",
            remedy="put the driver right at the site and take the fingerprint again, or name a profile by its id",
        )
    alike = _most_alike(facts.devices)
    if not alike:
        raise UsageError(
            "the fingerprint does not tell name, compute capability and memory of any GPU",
            remedy="name a profile by its id instead; `airbundle profiles` lists them",
        )
    first, known = alike[0], _known(alike[0])
    return GpuProfile(
        names=(re.escape(str(first.name)),),
        capability=str(first.capability),
        memory=min(map(_dependable_memory, alike)),
        count=len(alike),
        min_driver=facts.driver or "",
        bandwidth=known.bandwidth if known else 0,
        l2=known.l2 if known else 0,
        link=_link(fingerprint, {gpu.index for gpu in alike}),
        dtypes=known.dtypes if known else (),
    )


def _dependable_memory(gpu: Gpu) -> int:
    """Bytes that an engine finds: what is free while nothing runs, as the driver's own share counts in the total."""
    total = gpu.memory_total or 0
    if gpu.processes == 0 and gpu.memory_free and total * _GPU_MEMORY_SHARE < gpu.memory_free <= total:
        return gpu.memory_free
    return int(total * _GPU_MEMORY_SHARE)


def _most_alike(devices: Sequence[Gpu]) -> list[Gpu]:
    groups: dict[str, list[Gpu]] = {}
    for gpu in devices:
        if gpu.name and gpu.capability and gpu.memory_total:
            groups.setdefault(gpu.name, []).append(gpu)
    return max(groups.values(), key=len, default=[])


def _known(gpu: Gpu) -> GpuProfile | None:
    profiles = (profile.gpu for profile in all_profiles() if profile.gpu is not None)
    return next(
        (one for one in profiles if any(re.fullmatch(pattern, str(gpu.name)) for pattern in one.names)),
        None,
    )


def _link(fingerprint: Fingerprint, used: set[int]) -> str:
    pairs = [link for link in fingerprint.gpu.links if link.a in used and link.b in used]
    if not pairs:
        return "none"
    return "nvlink" if all(link.nvlinks for link in pairs) else "pcie"
