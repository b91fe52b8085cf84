"""Whether the site has what a bundle builds on, found out before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from airbundle_onsite.contract.base import BaseRelease
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.store.rebuild import FULL_BUNDLE, Found, find_base
from airbundle_onsite.units import human_bytes

CHECK = "preflight.base"
_SHOWN = 10


def check_bases(
    site: Site, manifest: BundleManifest, *, paranoid: bool = False
) -> tuple[Mapping[str, Path], list[CheckResult]]:
    """Look for every file that the bundle takes bytes from; changes nothing.

    Returns:
        Where each is, by SHA-256, and a result for each release that the bundle builds on.
    """
    places: dict[str, Path] = {}
    checks = []
    for base in manifest.bases:
        found = find_base(site.store, base.files, site.talk, paranoid=paranoid)
        places.update((each.file.sha256, each.path) for each in found if each.path is not None)
        checks.append(_check(site, base, found))
    return places, checks


def _check(site: Site, base: BaseRelease, found: Sequence[Found]) -> CheckResult:
    lacking = [each for each in found if each.path is None]
    count, size = len(found), human_bytes(sum(each.file.size for each in found))
    if not lacking:
        return CheckResult(CHECK, "pass", f"what this bundle takes from {base.title} is here: {count} file(s), {size}")
    changed = [line for each in lacking for line in each.changed]
    installed = site.store.has(base.name, base.version)
    if changed:
        actual = "; ".join(changed[:_SHOWN])
    elif installed:
        actual = f"{base.title} is installed under {site.layout.root}, but without {lacking[0].file.path}"
    else:
        actual = f"{base.title} is not installed under {site.layout.root}"
    lines = [f"{each.file.path}, {human_bytes(each.file.size)}, SHA-256 {each.file.sha256}" for each in lacking]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"and {len(lines) - _SHOWN} more"]
    again = " again from its own bundle, with --reinstall" if installed else ""
    return CheckResult(
        CHECK,
        "fail",
        f"this bundle builds on {base.title}, and {len(lacking)} of the {count} file(s) that it takes from there "
        + ("are not as they were installed" if changed else "are not here"),
        expected=f"{lacking[0].file.path} of {base.title} as it was installed",
        actual=actual,
        remedy=f"install {base.title}{again}, then this bundle; or {FULL_BUNDLE}",
        evidence=tuple(lines),
    )
