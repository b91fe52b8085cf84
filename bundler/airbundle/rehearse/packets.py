"""Ethernet frames, and the ARP, IPv4, IPv6, TCP, UDP and echo messages in them: bytes to values and back."""

from __future__ import annotations

import ipaddress
import struct

from airbundle_onsite.contract.record import record

_ARP, _IPV4, _IPV6 = 0x0806, 0x0800, 0x86DD  # EtherTypes
_ICMP, _TCP, _UDP, _ICMPV6 = 1, 6, 17, 58  # protocol numbers
_ECHO = {_ICMP: 8, _ICMPV6: 128}
_ECHO_REPLY = {_ICMP: 0, _ICMPV6: 129}
_HOP_LIMIT = 64
_MSS = bytes((2, 4)) + (1360).to_bytes(2, "big")

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
_SEQUENCES = 1 << 32


@record
class Arp:
    """A question who has `target`, asked by `sender` with hardware address `mac`."""

    mac: bytes
    sender: str
    target: str


@record
class Flow:
    """Two ends of a conversation: `source` and `target` are addresses as text."""

    source: str
    source_port: int
    target: str
    target_port: int

    def back(self) -> Flow:
        """The same, seen from the other end."""
        return Flow(self.target, self.target_port, self.source, self.source_port)


@record
class Tcp:
    """A TCP segment."""

    flow: Flow
    sequence: int
    acknowledged: int
    flags: int
    data: bytes = b""


@record
class Udp:
    """A UDP datagram."""

    flow: Flow
    data: bytes


@record
class Echo:
    """An ICMP or ICMPv6 echo request ("ping"); ports of its flow are 0. `rest` is everything after the checksum."""

    flow: Flow
    rest: bytes


Packet = Arp | Tcp | Udp | Echo


@record
class Frame:
    """A frame: hardware addresses and what it carries."""

    target: bytes
    source: bytes
    packet: Packet


def parse(data: bytes) -> Frame | None:
    """What a frame carries; None for what this module does not know, and for what is broken or cut short."""
    try:
        (kind,) = struct.unpack_from("!H", data, 12)
        packet = _PARSERS[kind](data[14:]) if kind in _PARSERS else None
    except (struct.error, ValueError, IndexError):
        return None
    return None if packet is None else Frame(data[:6], data[6:12], packet)


def _parse_arp(data: bytes) -> Arp | None:
    hardware, protocol, sizes, operation, mac, sender, _, target = struct.unpack_from("!HHHH6s4s6s4s", data)
    if (hardware, protocol, sizes, operation) != (1, _IPV4, 0x0604, 1):
        return None
    return Arp(mac, _address(sender), _address(target))


def _parse_ipv4(data: bytes) -> Packet | None:
    header = (data[0] & 15) * 4
    (total,) = struct.unpack_from("!H", data, 2)
    (fragment,) = struct.unpack_from("!H", data, 6)
    if data[0] >> 4 != 4 or header < 20 or total > len(data) or fragment & 0x1FFF:  # a later fragment tells nothing new
        return None
    # A length of 0 is a segment bigger than its field can say, before the network card would cut it up.
    return _parse_upper(data[9], data[12:16], data[16:20], data[header : total or len(data)])


def _parse_ipv6(data: bytes) -> Packet | None:
    if data[0] >> 4 != 6 or len(data) < 40:
        return None
    (length,) = struct.unpack_from("!H", data, 4)
    if 40 + length > len(data):
        return None
    return _parse_upper(data[6], data[8:24], data[24:40], data[40 : 40 + length if length else len(data)])


def _parse_upper(protocol: int, source: bytes, target: bytes, data: bytes) -> Packet | None:
    ends = (_address(source), _address(target))
    if protocol == _TCP:
        source_port, target_port, sequence, acknowledged, offset, flags = struct.unpack_from("!HHIIBB", data)
        flow = Flow(ends[0], source_port, ends[1], target_port)
        return Tcp(flow, sequence, acknowledged, flags, data[(offset >> 4) * 4 :])
    if protocol == _UDP:
        source_port, target_port, length = struct.unpack_from("!HHH", data)
        return Udp(Flow(ends[0], source_port, ends[1], target_port), data[8 : length or len(data)])
    if protocol in _ECHO and data[0] == _ECHO[protocol]:
        return Echo(Flow(ends[0], 0, ends[1], 0), data[4:])
    return None


def _address(data: bytes) -> str:
    return str(ipaddress.ip_address(data))


_PARSERS = {_ARP: _parse_arp, _IPV4: _parse_ipv4, _IPV6: _parse_ipv6}


def build_arp_reply(mine: bytes, question: Arp) -> bytes:
    """The frame that says: `question.target` is at hardware address `mine`."""
    answered, asker = (ipaddress.IPv4Address(text).packed for text in (question.target, question.sender))
    head = question.mac + mine + struct.pack("!H", _ARP)
    return head + struct.pack("!HHHH6s4s6s4s", 1, _IPV4, 0x0604, 2, mine, answered, question.mac, asker)


def build(target: bytes, source: bytes, packet: Tcp | Udp | Echo) -> bytes:
    """The frame of a packet, checksums filled in. An `Echo` becomes an echo reply."""
    flow = packet.flow
    ends = ipaddress.ip_address(flow.source), ipaddress.ip_address(flow.target)
    four = ends[0].version == 4
    pair = ends[0].packed + ends[1].packed
    if isinstance(packet, Echo):
        protocol = _ICMP if four else _ICMPV6
        body = bytes((_ECHO_REPLY[protocol], 0, 0, 0)) + packet.rest
        at, pseudo = 2, b"" if four else _pseudo(pair, protocol, len(body))
    elif isinstance(packet, Udp):
        protocol, at = _UDP, 6
        size = 8 + len(packet.data)
        body = struct.pack("!HHHH", flow.source_port, flow.target_port, size, 0) + packet.data
        pseudo = _pseudo(pair, protocol, size)
    else:
        protocol, at, body = _TCP, 16, _tcp_bytes(packet)
        pseudo = _pseudo(pair, protocol, len(body))
    body = body[:at] + struct.pack("!H", checksum(pseudo + body)) + body[at + 2 :]
    if four:
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0x4000, _HOP_LIMIT, protocol, 0) + pair
        header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    else:
        header = struct.pack("!IHBB", 6 << 28, len(body), protocol, _HOP_LIMIT) + pair
    return target + source + struct.pack("!H", _IPV4 if four else _IPV6) + header + body


def _tcp_bytes(packet: Tcp) -> bytes:
    options = _MSS if packet.flags & SYN else b""
    flow, offset = packet.flow, (20 + len(options)) // 4
    head = struct.pack(
        "!HHIIBBHHH",
        flow.source_port,
        flow.target_port,
        packet.sequence % _SEQUENCES,
        packet.acknowledged % _SEQUENCES,
        offset << 4,
        packet.flags,
        65535,  # window
        0,
        0,
    )
    return head + options + packet.data


def _pseudo(pair: bytes, protocol: int, size: int) -> bytes:
    if len(pair) == 8:
        return pair + struct.pack("!BBH", 0, protocol, size)
    return pair + struct.pack("!II", size, protocol)


def checksum(data: bytes) -> int:
    """The internet checksum (RFC 1071); over data that holds its own checksum it is 0."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
