"""How GPUs reach each other: NVLink, PCIe topology, peer-to-peer access."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Optional

from airbundle_onsite.contract.fingerprint import GpuLink
from airbundle_onsite.contract.record import record
from airbundle_onsite.probes.nvml import Session, text

# NVML's numbers, written out: some versions of the binding define one of these names as a tuple by mistake.
_P2P_READ = 0
_REMOTE_SWITCH = 2
_TOPOLOGY = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
_P2P = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by registry key",
    5: "not supported",
    6: "unknown",
}
_MAX_LINKS = 36
_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
_FIELD_SPEED = 164  # NVML_FI_DEV_NVLINK_GET_SPEED, of the link that the scope names
_FIELD_SPEED_COMMON = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, which older drivers know too
_UNSIGNED = {1: "uiVal", 2: "ulVal", 3: "ullVal"}  # nvmlValueType_t
_MB = 10**6
SWITCH = "switch"
UNKNOWN = "unknown"


@record
class Wired:
    """A whole GPU with the far end of each of its active NVLinks: a bus id, `SWITCH` or `UNKNOWN`.

    Attributes:
        speed: bytes per second of one of its links, in each direction.
    """

    index: int
    handle: Any
    bus: Optional[str]
    remotes: Optional[tuple[str, ...]]
    speed: Optional[int] = None


@record
class Wiring:
    """The NVLinks of one GPU: far ends of the active ones, and version and speed of the first of these."""

    remotes: Optional[tuple[str, ...]] = None
    version: Optional[str] = None
    speed: Optional[int] = None


def wiring(session: Session, handle: Any, unread: dict[str, str]) -> Wiring:
    """What NVML says of a GPU's NVLinks."""
    active: list[int] = []
    ends = remotes(session, handle, unread, active)
    if not active:
        return Wiring(ends)
    number = session.ask("nvlink_version", unread, "nvmlDeviceGetNvLinkVersion", handle, active[0])
    version = _VERSIONS.get(number, str(number)) if number else None
    return Wiring(ends, version, _speed(session, handle, active[0], unread))


def _speed(session: Session, handle: Any, link: int, unread: dict[str, str]) -> Optional[int]:
    """Bytes per second of one link, in each direction."""
    for question in ((_FIELD_SPEED, link), _FIELD_SPEED_COMMON):
        answer = session.ask("nvlink_speed", unread, "nvmlDeviceGetFieldValues", handle, [question])
        if answer is None:
            continue
        kind = _UNSIGNED.get(answer[0].valueType)
        if answer[0].nvmlReturn == 0 and kind and getattr(answer[0].value, kind):
            unread.pop("nvlink_speed", None)
            return int(getattr(answer[0].value, kind)) * _MB
        unread["nvlink_speed"] = f"NVML returned {answer[0].nvmlReturn}"
    return None


def remotes(session: Session, handle: Any, unread: dict[str, str], numbers: list[int]) -> Optional[tuple[str, ...]]:
    """Far ends of a GPU's active NVLinks, whose numbers go into `numbers`; empty when it has none, None when NVML
    would not say."""
    nvml = session.nvml
    ends: list[str] = []
    for link in range(_MAX_LINKS):
        try:
            active = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError as error:
            if session.code(error) in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                break  # no NVLink at all, or past the last one
            unread["nvlinks_active"] = str(error)
            return None
        if active:
            numbers.append(link)
            ends.append(_far_end(session, handle, link))
    return tuple(ends)


def _far_end(session: Session, handle: Any, link: int) -> str:
    ignored: dict[str, str] = {}
    if session.ask("type", ignored, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _REMOTE_SWITCH:
        return SWITCH
    pci = session.ask("pci", ignored, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    return (text(pci.busId) or UNKNOWN).lower() if pci is not None else UNKNOWN


def links(session: Session, gpus: Sequence[Wired]) -> tuple[GpuLink, ...]:
    """Facts for every pair of whole GPUs; MIG slices do not reach each other."""
    return tuple(_link(session, one, other) for one, other in combinations(gpus, 2))


def _link(session: Session, one: Wired, other: Wired) -> GpuLink:
    ignored: dict[str, str] = {}
    ancestor = session.ask("topology", ignored, "nvmlDeviceGetTopologyCommonAncestor", one.handle, other.handle)
    p2p = session.ask("p2p", ignored, "nvmlDeviceGetP2PStatus", one.handle, other.handle, _P2P_READ)
    shared = nvlinks_between(one, other)
    slower = None if one.speed is None or other.speed is None else min(one.speed, other.speed)
    return GpuLink(
        a=one.index,
        b=other.index,
        topology=_TOPOLOGY.get(ancestor),
        nvlinks=shared,
        nvlink_speed=shared * slower if shared and slower else None,
        p2p=_P2P.get(p2p, f"status {p2p}") if p2p is not None else None,
    )


def nvlinks_between(one: Wired, other: Wired) -> Optional[int]:
    """NVLinks from one GPU to the other: direct ones, and those that both have to the switches.

    None when a far end could not be read, since any of those might lead there.
    """
    if one.remotes is None or other.remotes is None:
        return None
    if UNKNOWN in one.remotes or UNKNOWN in other.remotes or one.bus is None or other.bus is None:
        return None if one.remotes and other.remotes else 0
    switched = min(one.remotes.count(SWITCH), other.remotes.count(SWITCH))
    return one.remotes.count(other.bus) + switched
