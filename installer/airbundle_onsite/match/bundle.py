"""A fingerprint against what a bundle as a whole needs: disks, engine, interpreter, port, clock."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Union

from airbundle_onsite.capacity import DiskNeed, choose_python, disk_needs, why_no_python
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import DiskFacts, Fingerprint
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.match.engine import match_engine
from airbundle_onsite.units import human_bytes

_NETWORK_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs")
_CLOCK_SLACK = 24 * 3600  # seconds; a bundle is carried on the day it is built, across time zones set wrongly


def match_bundle(
    manifest: BundleManifest,
    fingerprint: Fingerprint,
    *,
    root: Union[str, Path],
    port: int,
    own_ports: Collection[int] = (),
    present: int = 0,
) -> list[CheckResult]:
    """One result for each need of the bundle.

    Args:
        manifest: of the bundle.
        fingerprint: of the host, taken with the paths that will be used.
        root: installation root.
        port: TCP port of the service; 0 to leave it out.
        own_ports: ports on which this root's own releases listen, which may be taken over.
        present: bytes of the payload that the root holds already.
    """
    checks = [
        *_disks(manifest, fingerprint, present),
        *_root(manifest, fingerprint, str(root)),
        *_port(fingerprint, port, own_ports),
        _clock(manifest, fingerprint),
    ]
    if manifest.needs.runtime == "docker":
        return checks + match_engine(manifest, fingerprint, str(root))
    return checks + _python(manifest, fingerprint)


def _disks(manifest: BundleManifest, fingerprint: Fingerprint, present: int) -> list[CheckResult]:
    needs = disk_needs(manifest, fingerprint, present=present)
    checks = [_disk(need) for need in needs]
    measured = {disk.purpose for disk in fingerprint.disks}
    purposes = ["root"] + (["docker"] if manifest.needs.runtime == "docker" and manifest.images else [])
    checks.extend(
        CheckResult(
            id=f"match.disk.{purpose}",
            status="warn",
            summary=f"free space for {purpose} could not be measured",
            expected="room for the bundle",
            actual="unknown",
            remedy="see df by hand" if purpose == "root" else "make the container engine answer, then run this again",
        )
        for purpose in purposes
        if purpose not in measured
    )
    return checks


def _disk(need: DiskNeed) -> CheckResult:
    place = need.mount or need.disks[0].path
    paths = ", ".join(f"{disk.path} ({disk.purpose})" for disk in need.disks)
    check = f"match.disk.{need.disks[0].purpose}"
    if need.needed <= need.free:
        return CheckResult(
            id=check,
            status="pass",
            summary=f"{place}: {human_bytes(need.needed)} needed at the peak, {human_bytes(need.free)} free",
        )
    return CheckResult(
        id=check,
        status="fail",
        summary=f"{place} has {human_bytes(need.free)} free, {human_bytes(need.needed)} are needed at the peak",
        expected=f"{human_bytes(need.needed)} free on the filesystem of {paths}",
        actual=f"{human_bytes(need.free)} free",
        evidence=tuple(f"{human_bytes(share.size)} {share.what}" for share in need.shares),
        remedy=f"free {human_bytes(need.needed - need.free)} on {place}, "
        + (
            "install elsewhere with --root, or have the engine keep its images on a larger disk"
            if any(disk.purpose == "docker" for disk in need.disks)
            else "or install elsewhere with --root"
        ),
    )


def _root(manifest: BundleManifest, fingerprint: Fingerprint, root: str) -> list[CheckResult]:
    checks = []
    for disk in (disk for disk in fingerprint.disks if disk.purpose == "root"):
        if disk.read_only:
            checks.append(_mounted(disk, root, "read-only", "ro"))
        elif disk.noexec and manifest.needs.runtime == "venv":
            checks.append(_mounted(disk, root, "without permission to execute", "noexec"))
        checks.extend(_selinux(manifest, fingerprint, disk, root))
    return checks


def _mounted(disk: DiskFacts, root: str, how: str, option: str) -> CheckResult:
    return CheckResult(
        id=f"match.root.{option}",
        status="fail",
        summary=f"the installation root {root} lies on {disk.mount}, which is mounted {how}",
        expected=f"a mount without the option {option}",
        actual=f"{disk.mount} ({disk.filesystem}) is mounted with {option}",
        remedy="install elsewhere with --root, or have the administrator mount it without that option",
    )


def _selinux(manifest: BundleManifest, fingerprint: Fingerprint, disk: DiskFacts, root: str) -> list[CheckResult]:
    if fingerprint.os.selinux != "enforcing" or manifest.needs.runtime != "docker":
        return []
    if disk.filesystem in _NETWORK_FILESYSTEMS:
        return [
            CheckResult(
                id="match.selinux",
                status="warn",
                summary=f"SELinux is enforcing, and {root} lies on {disk.filesystem}, where files cannot be relabelled",
                expected="a local filesystem, or a mount with a container context",
                actual=f"{disk.mount} ({disk.filesystem})",
                remedy="install on a local disk with --root, or mount the share with "
                "context=system_u:object_r:container_file_t:s0; leave SELinux on",
            )
        ]
    return [
        CheckResult(
            id="match.selinux",
            status="pass",
            summary="SELinux is enforcing; the directories shown to the container will be labelled for it",
        )
    ]


def _port(fingerprint: Fingerprint, port: int, own_ports: Collection[int]) -> list[CheckResult]:
    if not port:
        return []
    if port in own_ports or port not in fingerprint.ports_in_use:
        own = " (held by this installation's own release)" if port in own_ports else ""
        return [CheckResult(id="match.port", status="pass", summary=f"port {port} can be used{own}")]
    return [
        CheckResult(
            id="match.port",
            status="fail",
            summary=f"port {port} is in use by another program",
            expected=f"port {port} free",
            actual="something listens on it",
            remedy=f"see what it is with ss -ltnp 'sport = :{port}' and stop it, or choose another port with --port",
        )
    ]


def _clock(manifest: BundleManifest, fingerprint: Fingerprint) -> CheckResult:
    behind = manifest.created - fingerprint.taken
    if behind <= _CLOCK_SLACK:
        return CheckResult(id="match.clock", status="pass", summary="the host's clock is later than the bundle")
    return CheckResult(
        id="match.clock",
        status="warn",
        summary=f"the host's clock is {behind // 86400} day(s) behind the time the bundle was built",
        expected="a clock later than the bundle",
        actual=f"{behind} s behind",
        remedy="set it (timedatectl set-time 'YYYY-MM-DD HH:MM:SS', or an NTP server of the site): wrong times spoil "
        "logs and certificates",
    )


def _python(manifest: BundleManifest, fingerprint: Fingerprint) -> list[CheckResult]:
    """Some plan must find an interpreter; which one is taken is for the choice of the plan."""
    tags = manifest.needs.wheel_tags
    wanted = list(dict.fromkeys(plan.needs.python for plan in manifest.launch if plan.runtime == "venv"))
    for specifier in wanted:
        found = choose_python(specifier, tags, fingerprint)
        if found:
            summary = f"Python {found.version} at {found.path} fits the bundle's wheels"
            return [CheckResult(id="match.python", status="pass", summary=summary)]
    if not wanted:
        return []
    looked_at = why_no_python(wanted[0], tags, fingerprint)
    return [
        CheckResult(
            id="match.python",
            status="fail",
            summary=f"no Python {wanted[0]} was found that the bundle's wheels fit".replace("  ", " "),
            expected=f"CPython {wanted[0]} with venv on glibc".replace("  ", " "),
            actual=f"{len(looked_at)} interpreter(s), none fits" if looked_at else "no Python 3.9 or newer",
            evidence=tuple(looked_at),
            remedy="install one from the distribution's packages (python3 with python3-venv) and put it on PATH, or "
            "have the bundle built for the version that is here",
        )
    ]
