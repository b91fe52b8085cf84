"""The closure proof: every package with native files held against the hardware profile, from facts alone."""

from __future__ import annotations

from collections.abc import Sequence

from airbundle.prove import cuda
from airbundle.prove.facts import ImageFacts, WheelFacts
from airbundle.prove.gpu import check_cuda, check_gpu, cuda_majors, gpu_text
from airbundle.prove.linking import (
    check_glibc,
    check_machine,
    check_needed,
    check_readable,
    missing_libraries,
    needed_names,
    needed_version,
)
from airbundle.prove.target import Package, Target, make_target, packages_of
from airbundle_onsite.contract.checks import CheckResult, Status
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError


@record
class ProofRow:
    """One line of the table: a package and what was found, as text.

    Attributes:
        kind: ``wheel``, ``image`` (a Python project in the image) or ``os``.
        gpu: architectures; cuda: toolkit majors; glibc: highest version needed; missing: libraries not found.
        status: worst of its checks.
    """

    package: str
    version: str
    kind: str
    gpu: str
    cuda: str
    glibc: str
    missing: str
    status: Status


@record
class Proof:
    """The table, and what is to be said: every check that did not pass, and one that passed for each other package."""

    rows: tuple[ProofRow, ...]
    checks: tuple[CheckResult, ...]

    def require(self) -> None:
        """Raise FetchError, listing every check that failed, unless none did."""
        failed = [check for check in self.checks if check.status == "fail"]
        if failed:
            raise FetchError(
                f"the closure proof failed: {len(failed)} finding(s) say that this cannot run on the target",
                details=[check.summary for check in failed],
                remedy="; ".join(dict.fromkeys(check.remedy for check in failed if check.remedy)),
            )


def prove_closure(
    wheels: Sequence[WheelFacts],
    profile: HardwareProfile,
    image: ImageFacts | None = None,
    *,
    driver_cuda: str | None = None,
) -> Proof:
    """Hold everything native in a bundle against the hardware it is for.

    Args:
        wheels: of the bundle, pure ones too.
        profile: the hardware; its ``min_driver`` and ``min_glibc`` are what counts.
        image: in which the wheels run, or None when they run on the host itself.
        driver_cuda: CUDA version that the real driver reports, e.g. ``12.4`` from a fingerprint; from the profile's
            lowest driver otherwise.
    """
    target = make_target(wheels, profile, image, driver_cuda)
    packages = packages_of(wheels, image)
    wanted = needed_names(packages)
    rows, checks = [], _image_checks(target)
    for package in packages:
        found = [
            *check_readable(package),
            *check_machine(package, target),
            *check_gpu(package, target),
            *check_cuda(package, target),
            *check_glibc(package, target),
            *check_needed(package, target, wanted),
        ]
        status = _worst(found)
        checks += (
            [check for check in found if check.status != "pass"] if status != "pass" else [_passed(package, found)]
        )
        rows.append(_row(package, target, status))
    return Proof(tuple(rows), tuple(checks))


def _worst(checks: Sequence[CheckResult]) -> Status:
    statuses = {check.status for check in checks}
    return "fail" if "fail" in statuses else "warn" if "warn" in statuses else "pass"


def _passed(package: Package, found: Sequence[CheckResult]) -> CheckResult:
    """The most telling check that passed, or a line that says there was nothing to object to."""
    if found:
        return found[0]
    files = f"{len(package.natives)} native file{'s' if len(package.natives) != 1 else ''}"
    return CheckResult("prove.package", "pass", f"{package.title()}: {files}, everything they need is there")


def _row(package: Package, target: Target, status: Status) -> ProofRow:
    missing = {name for names in missing_libraries(package, target).values() for name in names}
    return ProofRow(
        package=package.name,
        version=package.version,
        kind=package.kind,
        gpu=gpu_text(package),
        cuda=" ".join(map(str, sorted(cuda_majors(package)))),
        glibc=needed_version(package, target, "GLIBC_")[0],
        missing=" ".join(sorted(missing)),
        status=status,
    )


def _image_checks(target: Target) -> list[CheckResult]:
    """What the image itself asks of the driver, and whether its packages could be read."""
    image, results = target.image, []
    if image is None:
        return []
    if target.where and image.require_cuda and target.gpu_cuda:
        results.append(_requirement(image, target))
    if image.unread:
        results.append(
            CheckResult(
                id="prove.image.packages",
                status="warn",
                summary=f"image {image.name}: its list of OS packages cannot be read",
                remedy="its files were checked all the same; only the names of their packages are not known",
                evidence=image.unread,
            )
        )
    return results


def _requirement(image: ImageFacts, target: Target) -> CheckResult:
    driver = target.driver or cuda.table("cuda")["drivers"].get(target.gpu_cuda, "")
    met = cuda.requirement_met(image.require_cuda, cuda=target.gpu_cuda, driver=driver, data_centre=target.data_centre)
    there = f"CUDA {target.gpu_cuda}, driver {driver or 'unknown'}"
    return CheckResult(
        id="prove.image.require",
        status="pass" if met else "fail",
        summary=f"image {image.name} {'starts with' if met else 'refuses to start with'} {there}",
        expected=f"NVIDIA_REQUIRE_CUDA: {image.require_cuda}",
        actual=there,
        remedy=""
        if met
        else "update the driver and raise min_driver in the profile, or take an image for an older CUDA",
    )


_HEADS = ("", "package", "version", "GPU code", "CUDA", "glibc", "missing")
_WIDEST = 48


def table_text(rows: Sequence[ProofRow]) -> str:
    """The rows as a plain table, worst first; OS packages only where there is something to see in them."""
    order = {"fail": 0, "warn": 1, "skip": 2, "pass": 3}
    shown = [row for row in rows if row.kind != "os" or row.status != "pass" or row.gpu]
    shown.sort(key=lambda row: (order[row.status], row.package))
    cells: list[tuple[str, ...]] = [_HEADS]
    cells += [
        (row.status.upper(), row.package, row.version, row.gpu or "-", row.cuda or "-", row.glibc or "-", row.missing)
        for row in shown
    ]
    cells = [tuple(_short(cell) for cell in line) for line in cells]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    hidden = len(rows) - len(shown)
    if hidden:
        lines.append(f"and {hidden} OS packages of the image without GPU code, nothing missing")
    return "\n".join(lines) + "\n"


def _short(cell: str) -> str:
    return cell if len(cell) <= _WIDEST else cell[: _WIDEST - 1] + "…"
