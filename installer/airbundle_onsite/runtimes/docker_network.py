"""Networks of the engines' containers: reachable from this machine, with no way out of it.

On the sealed network the containers' default route leads to an address of their own subnet that nobody has:
docker reserves it when it is listed under the name ``DefaultGatewayIPv4``. The published port still works,
because docker's own proxy on this machine speaks to the container directly. No firewall rule is ours, and the
network is docker's own, so it is there again after a restart of the engine or of the machine.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

from airbundle_onsite.dockerapi import DockerClient, DockerError

SEALED = "airbundle"
OPEN = "airbundle-lan"

CONTAINER_LABEL = "airbundle.root"
"""Every container of ours has it."""

_LABEL = "airbundle.network"
_IN_USE = (403, 409)  # docker's and podman's answers when somebody's container is on it
_GATEWAY_KEY = "DefaultGatewayIPv4"
_PREFIX = 26  # 61 containers

# Blocks that no site routes come first: benchmarking (RFC 2544) and documentation (RFC 5737). An address of the
# site's own network would become unreachable from this machine, even where it is only known to a router.
_BLOCKS = (
    "198.18.0.0/22",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "172.31.252.0/22",
    "10.254.252.0/22",
    "192.168.252.0/22",
)


def ensure_network(client: DockerClient, *, sealed: bool, routes: Path = Path("/proc/net/route")) -> str:
    """Create the network unless it is there; returns its name.

    Args:
        sealed: with no way out. Not sealed, for a port that other machines may use: answers need a route back,
            so packets can leave, but under an address that no answer finds.
        routes: the kernel's routing table.

    Raises:
        DockerError: a network of that name is not ours, or no free subnet was found.
    """
    name = SEALED if sealed else OPEN
    found = client.find_json(f"/networks/{name}", operation=f"look at network {name}")
    if found is not None:
        _check_ours(name, found, sealed)
        return name
    refused = ""
    for subnet in _free_subnets(_taken(client, routes)):
        try:
            client.post("/networks/create", _network_body(name, subnet, sealed), operation=f"create network {name}")
            return name
        except DockerError as error:
            if error.status == 409:  # another process made it meanwhile
                return name
            if "overlap" not in error.message.lower():
                raise
            refused = error.message
    raise DockerError(
        f"create network {name}",
        0,
        f"every subnet known to airbundle is in use on this machine ({', '.join(_BLOCKS)}); {refused}".rstrip("; "),
        remedy=f"remove an unused network (docker network ls), or create one by hand and call it {name}",
    )


def remove_networks(client: DockerClient) -> list[str]:
    """Remove our networks unless some container of ours is left, of whatever installation; the names of those gone.

    A container that is stopped needs its network for its next start, and the engine would not say so.
    """
    query = {"all": "1", "filters": json.dumps({"label": [CONTAINER_LABEL]})}
    if client.get_json("/containers/json", operation="list the containers", query=query):
        return []
    gone = []
    for name in (SEALED, OPEN):
        found = client.find_json(f"/networks/{name}", operation=f"look at network {name}")
        if found is None or _LABEL not in (found.get("Labels") or {}):
            continue
        try:
            client.delete(f"/networks/{name}", operation=f"remove network {name}")
            gone.append(name)
        except DockerError as error:
            if error.status not in _IN_USE:
                raise
    return gone


def check_sealed(client: DockerClient, operation: str, container: Any) -> None:
    """Raise DockerError unless a running container's only default route is the dead one.

    Args:
        operation: for the message.
        container: what the engine says of it.
    """
    networks = (container.get("NetworkSettings") or {}).get("Networks") or {}
    gateways = {str(name): str(item.get("Gateway", "")) for name, item in networks.items()}
    network = client.get_json(f"/networks/{SEALED}", operation=f"look at network {SEALED}")
    if gateways != {SEALED: _dead_gateway(network)}:
        raise DockerError(
            operation,
            0,
            f"its container would not be sealed: its default routes are {gateways}",
            remedy=f"stop what uses it and remove the network (docker network rm {SEALED}), then start again",
        )


def _dead_gateway(network: Any) -> str:
    """The unused address that containers of a network are routed to; empty when there is none."""
    pools = (network.get("IPAM") or {}).get("Config") or [{}]
    return str((pools[0].get("AuxiliaryAddresses") or {}).get(_GATEWAY_KEY, ""))


def _network_body(name: str, subnet: ipaddress.IPv4Network, sealed: bool) -> dict[str, Any]:
    pool: dict[str, Any] = {"Subnet": str(subnet), "Gateway": str(subnet.network_address + 1)}
    if sealed:
        pool["AuxiliaryAddresses"] = {_GATEWAY_KEY: str(subnet.network_address + 2)}
    return {
        "Name": name,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "EnableIPv6": False,
        "Options": {"com.docker.network.bridge.enable_ip_masquerade": "false"},
        "IPAM": {"Driver": "default", "Config": [pool]},
        "Labels": {_LABEL: "sealed" if sealed else "open"},
    }


def _check_ours(name: str, found: Any, sealed: bool) -> None:
    if not sealed:
        return
    if not _dead_gateway(found) or found.get("EnableIPv6"):
        raise DockerError(
            f"use network {name}",
            0,
            "a network of that name is there, but containers on it can reach the outside",
            remedy=f"remove it (docker network rm {name}); the next start makes the right one",
        )


def _taken(client: DockerClient, routes: Path) -> list[ipaddress.IPv4Network]:
    networks = client.get_json("/networks", operation="list the networks") or []
    texts: list[Optional[str]] = [
        pool.get("Subnet") for item in networks for pool in ((item.get("IPAM") or {}).get("Config") or [])
    ]
    taken = [ipaddress.IPv4Network(text, strict=False) for text in texts if text and ":" not in text]
    return taken + list(kernel_routes(routes))


def kernel_routes(table: Path) -> Iterator[ipaddress.IPv4Network]:
    """Networks in the kernel's IPv4 routing table, without the default route."""
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        words = line.split()
        if len(words) > 7 and words[7] != "00000000":
            address, mask = (int.from_bytes(bytes.fromhex(words[index]), "little") for index in (1, 7))
            yield ipaddress.IPv4Network((address & mask, bin(mask).count("1")))


def _free_subnets(taken: Iterable[ipaddress.IPv4Network]) -> Iterator[ipaddress.IPv4Network]:
    taken = tuple(taken)
    for block in _BLOCKS:
        for subnet in ipaddress.IPv4Network(block).subnets(new_prefix=_PREFIX):
            if not any(subnet.overlaps(other) for other in taken):
                yield subnet
