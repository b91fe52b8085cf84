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
SWITCH = "switch"
UNKNOWN = "unknown"


@record
class Wired:
    """A whole GPU with the far end of each of its active NVLinks: a bus id, `SWITCH` or `UNKNOWN`."""

    index: int
    handle: Any
    bus: Optional[str]
    remotes: Optional[tuple[str, ...]]


def remotes(session: Session, handle: Any, unread: dict[str, str]) -> Optional[tuple[str, ...]]:
    """Far ends of a GPU's active NVLinks; empty when it has none, None when NVML would not say."""
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
    return GpuLink(
        a=one.index,
        b=other.index,
        topology=_TOPOLOGY.get(ancestor),
        nvlinks=nvlinks_between(one, other),
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
