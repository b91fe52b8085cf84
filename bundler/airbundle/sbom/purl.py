"""Package URLs: the names by which other tools, vulnerability scanners above all, know the same things."""

from __future__ import annotations

import re
from collections.abc import Iterable

from packageurl import PackageURL

from airbundle.contract.lock import LockedImage, LockedModel, LockedWheel
from airbundle.sbom.inventory import Package

# The package that holds /etc/os-release names the distribution; these are its names for rpm and apk.
_RELEASES = {
    "rpm": {
        "almalinux-release": "almalinux",
        "azurelinux-release": "azurelinux",
        "centos-stream-release": "centos",
        "fedora-release-common": "fedora",
        "openEuler-release": "openeuler",
        "openSUSE-release": "opensuse",
        "oraclelinux-release": "oracle",
        "redhat-release": "redhat",
        "rocky-release": "rocky",
        "sles-release": "suse",
        "system-release": "amazon",
    },
    "apk": {"alpine-release": "alpine", "alpine-baselayout": "alpine", "wolfi-baselayout": "wolfi"},
}
_DEBIAN_RELEASE = re.compile(r"\+deb(\d+)u\d+$")


def wheel_purl(wheel: LockedWheel) -> PackageURL:
    """``pkg:pypi/…`` with the wheel's file name, and its index when it is not the default one."""
    qualifiers = {"file_name": wheel.file.path}
    if wheel.index != "pypi":
        qualifiers["repository_url"] = wheel.index
    return PackageURL("pypi", None, wheel.name, wheel.version, qualifiers)


def model_purl(model: LockedModel) -> PackageURL | None:
    """``pkg:huggingface/…`` or, for a model file in a wheel, ``pkg:pypi/…``; None for other sources."""
    scheme, _, rest = model.source.partition(":")
    if scheme == "hf":
        namespace, _, name = rest.strip("/").rpartition("/")
        return PackageURL("huggingface", namespace or None, name, model.revision.lower() or None)
    if scheme == "pypi":
        name, _, version = rest.partition("==")
        return PackageURL("pypi", None, name.strip(), version.strip() or model.revision or None)
    return None


def image_purl(image: LockedImage) -> PackageURL:
    """``pkg:oci/…`` with the digest of the manifest that is in the bundle, and the registry it came from."""
    scheme, _, rest = image.source.partition(":")
    repository = re.sub(r":[^/:]*$", "", rest.partition("@")[0])
    name, _, tag = image.name.rpartition(":")
    qualifiers = {"arch": image.platform.split("/")[1]} if "/" in image.platform else {}
    qualifiers["tag"] = tag
    if scheme == "registry":
        qualifiers["repository_url"] = repository.lower()
    last = (repository if scheme == "registry" else name).rpartition("/")[2]
    return PackageURL("oci", None, last.lower(), f"sha256:{image.manifest.sha256}", qualifiers)


def package_purl(package: Package, distribution: str, release: str = "") -> PackageURL:
    """``pkg:deb/debian/…``, ``pkg:rpm/…``, ``pkg:apk/…`` or ``pkg:pypi/…``.

    Args:
        package: of an image.
        distribution, release: as `distribution_of` says.
    """
    if package.kind == "python":
        return PackageURL("pypi", None, package.name, package.version or None)
    qualifiers = {"arch": package.arch} if package.arch else {}
    if release:
        qualifiers["distro"] = f"{distribution}-{release}"
    return PackageURL(package.kind, distribution or None, package.name, package.version or None, qualifiers)


def distribution_of(packages: Iterable[Package]) -> tuple[str, str]:
    """Distribution of an image, and its release where that is certain: ``("debian", "12")``, ``("wolfi", "")``.

    Told from the package that every image of a distribution has. An unknown Debian-like system counts as debian; for
    rpm there is no such guess.
    """
    system = {package.name: package for package in packages if package.kind != "python"}
    kinds = {package.kind for package in system.values()}
    if "deb" in kinds:
        base = system.get("base-files")
        version = base.version if base else ""
        if "ubuntu" in version:
            return "ubuntu", ""
        release = _DEBIAN_RELEASE.search(version)
        return "debian", release[1] if release else ""
    for kind in sorted(kinds):
        for name, distribution in _RELEASES.get(kind, {}).items():
            if name in system:
                return distribution, ""
    return ("alpine" if "apk" in kinds else ""), ""
