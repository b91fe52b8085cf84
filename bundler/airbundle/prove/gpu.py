"""Judges GPU code and CUDA versions of a package against the target."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from airbundle.prove import cuda
from airbundle.prove.facts import GpuCode, NativeFile, arch_key, version_key
from airbundle.prove.target import Package, Target, base_name, is_optional, rule_for, some
from airbundle.prove.wheel import linked_cuda
from airbundle_onsite.contract.checks import CheckResult, Status

_TESTS = re.compile(r"(^|/)(tests?|testdata|test_data)/")

Fit = Literal["native", "ptx", "refused", "none"]
"""How GPU code runs: as it is; compiled by the driver; refused by a driver too old for the PTX; not at all."""


def fit(code: GpuCode, target: Target) -> Fit:
    """How one file's GPU code runs on the target, which has a GPU."""
    assert target.where is not None
    if any(cuda.sass_runs(arch, target.where) for arch in code.sass):
        return "native"
    usable = [ptx for ptx in code.ptx if cuda.ptx_runs(ptx.arch, target.where)]
    if not usable:
        return "none"
    if not target.gpu_cuda:
        return "ptx"
    have = version_key(target.gpu_cuda)
    return "ptx" if any(version_key(cuda.ptx_cuda(ptx.isa)) <= have for ptx in usable) else "refused"


def _having_code(package: Package) -> list[NativeFile]:
    """Files with GPU code that can run; bare code among a package's tests is test data."""
    return [
        native
        for native in package.natives
        if (native.gpu.sass or native.gpu.ptx) and not (native.elf is None and _TESTS.search(native.path))
    ]


def gpu_text(package: Package) -> str:
    """``sm_75 80 86 90, PTX 80``, or empty without GPU code."""
    having = _having_code(package)
    sass = sorted({arch for native in having for arch in native.gpu.sass}, key=arch_key)
    ptx = sorted({each.arch for native in having for each in native.gpu.ptx}, key=arch_key)
    parts = [f"sm_{' '.join(sass)}"] if sass else []
    return ", ".join(parts + ([f"PTX {' '.join(ptx)}"] if ptx else []))


def check_gpu(package: Package, target: Target) -> list[CheckResult]:
    """Whether the package's GPU code runs on the target's GPU; nothing to say without GPU code or without a GPU.

    Many packages carry files for some architectures only and choose at run time, so machine code in one file is enough;
    which files have none is said as evidence.
    """
    having = _having_code(package)
    if target.where is None or not having:
        return _unread(package)
    fits = {native.path: fit(native.gpu, target) for native in having}
    if "native" in fits.values():
        return [_with_native(package, target, fits), *_unread(package)]
    return [_without_native(package, target, fits, having), *_unread(package)]


def _with_native(package: Package, target: Target, fits: Mapping[str, Fit]) -> CheckResult:
    others = {native.path for native in package.natives if is_optional(package, native)}
    by_ptx = [path for path, how in fits.items() if how == "ptx" and path not in others]
    refused = [path for path, how in fits.items() if how == "refused" and path not in others]
    evidence = some([f"{path}: no code for this GPU" for path, how in fits.items() if how == "none"])
    if refused:
        text = f"{target.title} runs it but for {_listed(refused)}, PTX too new for a driver of CUDA {target.gpu_cuda}"
        return _result(package, target, "warn", text, _remedy(package, target), evidence)
    if by_ptx:
        text = f"{target.title} runs it, {_listed(by_ptx)} from PTX that the driver compiles at first use"
        return _result(package, target, "warn", text, _SLOW_START, evidence)
    return _result(package, target, "pass", f"{target.title} runs it", evidence=evidence)


def _without_native(
    package: Package, target: Target, fits: Mapping[str, Fit], having: Sequence[NativeFile]
) -> CheckResult:
    """The verdict when no file has machine code for this GPU."""
    optional = rule_for(cuda.table("packages")["optional_gpu"], package.name)
    if "ptx" in fits.values():
        text = f"{target.title} runs it only from PTX, which the driver compiles at first use"
        return _result(package, target, "pass" if optional else "warn", text, "" if optional else _SLOW_START)
    if optional:
        return _result(package, target, "warn", f"{target.title} cannot run it, nor need it: {optional['reason']}")
    if "refused" in fits.values():
        isa = min((ptx.isa for native in having for ptx in native.gpu.ptx), key=version_key)
        text = f"only its PTX fits {target.title}, and needs a driver of CUDA {cuda.ptx_cuda(isa) or 'unknown'}"
        return _result(package, target, "fail", f"{text}, not {target.gpu_cuda}", _remedy(package, target))
    text = f"{target.title} cannot run it"
    if package.kind == "os":
        return _result(package, target, "warn", f"{text}; what uses these libraries will fail")
    return _result(package, target, "fail", text, _remedy(package, target))


_SLOW_START = "allow for a slow first start, and keep the driver's cache (CUDA_CACHE_PATH) on a disk that stays"


def _result(
    package: Package, target: Target, status: Status, verdict: str, remedy: str = "", evidence: Iterable[str] = ()
) -> CheckResult:
    """In the form "torch 2.11.0 has sm_75 80: V100 (sm_70) cannot run it"."""
    has = gpu_text(package)
    return CheckResult(
        id="prove.gpu",
        status=status,
        summary=f"{package.title()} has {has}: {verdict}",
        expected=cuda.sm(target.where) if target.where else "",
        actual=has,
        remedy=remedy,
        evidence=tuple(evidence),
    )


def _remedy(package: Package, target: Target) -> str:
    assert target.where is not None
    wanted = f"{target.where[0]}.{target.where[1]}"
    for known in cuda.table("packages")["newest"]:
        if known["package"] == package.name and known["capability"] == wanted:
            return f"the newest that can is {package.name} {known['version']}: ask for it in the spec"
    return f"choose a version of {package.name} built for {cuda.sm(target.where)}, or another profile"


def _unread(package: Package) -> list[CheckResult]:
    strange = [f"{native.path}: {native.gpu.unread} bytes" for native in package.natives if native.gpu.unread]
    if not strange:
        return []
    return [
        CheckResult(
            id="prove.gpu.unread",
            status="warn",
            summary=f"{package.title()} has GPU code in a form that this version cannot read",
            remedy="a newer airbundle may know it; else see that it runs in a rehearsal on such a GPU",
            evidence=some(strange),
        )
    ]


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(map(base_name, paths[:3]))
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown


def cuda_majors(package: Package) -> set[int]:
    """Toolkit majors the package has builds for."""
    return {package.cuda} if package.cuda else {linked_cuda(native) for native in package.natives} - {0}


def check_cuda(package: Package, target: Target) -> list[CheckResult]:
    """Whether the driver runs the toolkit's major version; minor versions do not matter from the major's floor on."""
    majors = cuda_majors(package)
    if target.where is None or not majors:
        return []
    lowest = min(majors)
    needs = f"CUDA {lowest}, driver {cuda.lowest_driver(lowest) or 'unknown'} or newer"
    title = package.title()
    if not target.gpu_cuda:
        return [
            CheckResult(
                id="prove.cuda",
                status="warn",
                summary=f"{title} needs {needs}; the profile does not say which driver there is",
                expected=needs,
                remedy="set min_driver in the profile, or build for the host's fingerprint",
            )
        ]
    there = f"CUDA {target.gpu_cuda}" + (f" (driver {target.driver}, the lowest allowed)" if target.driver else "")
    if version_key(target.gpu_cuda)[0] >= lowest:
        text = f"{title} needs {needs}; there is {there}"
        return [CheckResult("prove.cuda", "pass", text, expected=needs, actual=there)]
    compat = target.image.compat_driver if target.image else ""
    if version_key(cuda.driver_cuda(compat))[:1] < (lowest,):
        compat = ""
    if compat and target.data_centre:
        return [
            CheckResult(
                id="prove.cuda",
                status="warn",
                summary=f"{title} needs {needs}; there is {there}, and the image's forward compatibility ({compat})",
                expected=needs,
                actual=there,
                remedy="see on the real host that CUDA starts with the image's compat libraries, or update the driver",
            )
        ]
    unhelped = "; the image's forward compatibility works on data-centre cards only" if compat else ""
    return [
        CheckResult(
            id="prove.cuda",
            status="fail",
            summary=f"{title} needs {needs}; the driver gives {there}{unhelped}",
            expected=needs,
            actual=there,
            remedy=f"take a build of {package.name} for CUDA {version_key(target.gpu_cuda)[0]}, or update the driver "
            f"to {cuda.lowest_driver(lowest) or 'a newer one'} and raise min_driver in the profile",
        )
    ]
