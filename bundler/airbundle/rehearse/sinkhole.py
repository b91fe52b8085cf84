"""A sinkhole: every name has an address there, every address and port accepts, and who asked is written down.

A pure state machine: frames of a network interface in, frames to send out. It stands in for everything behind the
default gateway, so it needs no packet filter, no kernel module beyond the interface, and no listening socket.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Literal, Protocol

from airbundle.rehearse import dns, greeting, packets
from airbundle.rehearse.packets import ACK, FIN, PSH, RST, SYN, Flow, Tcp, Udp
from airbundle_onsite.contract.record import record

FIRST_ADDRESS = IPv4Address("198.19.0.1")
"""Names get addresses from here on: a range set apart for tests (RFC 2544), so nothing else is meant by them."""
_ADDRESSES = 65000
_DNS_PORT = 53
_SILENCE = 3.0  # seconds that a client which waits for the server to speak first is listened to
_UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_HANDSHAKE_FAILURE = bytes((21, 3, 3, 0, 2, 2, 40))


@record
class Asker:
    """A process: its id where the engine runs, and its command line. 0 and nothing when it could not be found."""

    pid: int = 0
    argv: tuple[str, ...] = ()


class Askers(Protocol):
    """Finds who a packet is from."""

    def find(self, kind: Literal["tcp", "udp"], flow: Flow) -> Asker:
        """The process whose socket has this flow, seen from its own end."""
        ...


@record
class Contact:
    """One attempt to reach something.

    Attributes:
        at: seconds since the epoch.
        kind: ``dns`` for a question, else how the address was tried.
        name: the name asked; for the others, the name that led to the address, or that was given on connecting.
        address, port: what was tried; for ``dns`` the server that was asked.
        detail: record type, server name or request.
        asker: who.
    """

    at: float
    kind: Literal["dns", "tcp", "udp", "echo"]
    name: str
    address: str
    port: int
    detail: str
    asker: Asker


@dataclass
class _Connection:
    """An accepted connection. `next_in` and `next_out` are sequence numbers: the next of the client, and of ours."""

    mac: bytes
    flow: Flow
    first: int
    next_in: int
    next_out: int
    asker: Asker
    began: float
    active: float
    data: bytes = field(default=b"")
    told: bool = False
    closing: bool = False


class Sinkhole:
    """See the module.

    Args:
        mac: hardware address of the interface it answers on.
        gateway: the address that the default route leads to.
        askers: finds processes.
        heard: called with each contact.
        now: seconds since the epoch.
        ignored: source addresses that are none of its business.
    """

    def __init__(
        self,
        mac: bytes,
        gateway: str,
        askers: Askers,
        heard: Callable[[Contact], None],
        now: Callable[[], float],
        ignored: Container[str] = (),
    ) -> None:
        self._mac, self._gateway, self._askers, self._ignored = mac, gateway, askers, ignored
        self._heard, self._now = heard, now
        self._connections: dict[Flow, _Connection] = {}
        self._addresses: dict[str, IPv4Address] = {}
        self._names: dict[str, str] = {}

    def take(self, data: bytes) -> list[bytes]:
        """One frame from the interface; returns the frames to send."""
        frame = packets.parse(data)
        if frame is None or not (frame.target == self._mac or frame.target[0] & 1):
            return []
        packet = frame.packet
        if isinstance(packet, packets.Arp):
            wanted = packet.target == self._gateway and packet.sender not in self._ignored
            return [packets.build_arp_reply(self._mac, packet)] if wanted else []
        if packet.flow.source in self._ignored:
            return []
        if isinstance(packet, Tcp):
            return self._tcp(frame.source, packet)
        if isinstance(packet, Udp):
            return self._udp(frame.source, packet)
        self._hear("echo", packet.flow, "ping", Asker())
        return [packets.build(frame.source, self._mac, packets.Echo(packet.flow.back(), packet.rest))]

    def tick(self) -> list[bytes]:
        """To be called now and then: ends conversations in which nobody speaks."""
        sent = []
        for connection in list(self._connections.values()):
            if self._now() - connection.active < _SILENCE:
                continue
            if connection.closing:
                del self._connections[connection.flow]
            else:
                sent.append(self._end(connection, greeting.Greeting("other")))
        return sent

    def finish(self) -> None:
        """Write down the conversations that were still open."""
        for connection in self._connections.values():
            self._tell(connection, greeting.Greeting("other"))

    # --- UDP ----------------------------------------------------------------------------------------------

    def _udp(self, mac: bytes, packet: Udp) -> list[bytes]:
        asker = self._askers.find("udp", packet.flow)
        if packet.flow.target_port == _DNS_PORT:
            reply = self._question(packet.data, packet.flow, asker)
            if reply is not None:
                return [packets.build(mac, self._mac, Udp(packet.flow.back(), reply))]
        self._hear("udp", packet.flow, "", asker)
        return []

    def _question(self, message: bytes, flow: Flow, asker: Asker) -> bytes | None:
        question = dns.parse_question(message)
        if question is None:
            return None
        self._hear("dns", flow, question.kind_name, asker, name=question.name)
        found = self._address_of(question.name).packed if question.kind == dns.A else None
        return dns.answer(message, question, found)

    def _address_of(self, name: str) -> IPv4Address:
        if name not in self._addresses:
            address = FIRST_ADDRESS + len(self._addresses) % _ADDRESSES
            self._addresses[name] = address
            self._names[str(address)] = name
        return self._addresses[name]

    # --- TCP ----------------------------------------------------------------------------------------------

    def _tcp(self, mac: bytes, packet: Tcp) -> list[bytes]:
        connection = self._connections.get(packet.flow)
        if packet.flags & SYN and not packet.flags & ACK:
            return self._accept(mac, packet, connection)
        if connection is None:
            refused = packet.flags & RST or not (packet.data or packet.flags & FIN)
            return [] if refused else [self._reset(mac, packet)]
        connection.active = self._now()
        if packet.flags & RST:
            self._tell(connection, greeting.Greeting("other"))
            del self._connections[packet.flow]
            return []
        if packet.sequence != connection.next_in:  # sent again, or a hole: say where we are
            return [self._send(connection, ACK)] if packet.data or packet.flags & FIN else []
        return self._receive(connection, packet)

    def _accept(self, mac: bytes, packet: Tcp, known: _Connection | None) -> list[bytes]:
        if known is None or known.first != packet.sequence:
            # Numbers that differ from one connection to the next, and need no source of randomness.
            number = int.from_bytes(hashlib.sha256(repr(packet).encode()).digest()[:4], "big")
            asker, now = self._askers.find("tcp", packet.flow), self._now()
            after = (packet.sequence + 1) % (1 << 32)
            known = _Connection(mac, packet.flow, packet.sequence, after, number, asker, now, now)
            self._connections[packet.flow] = known
        else:
            known.next_out -= 1
        reply = self._send(known, SYN | ACK)
        known.next_out += 1
        return [reply]

    def _receive(self, connection: _Connection, packet: Tcp) -> list[bytes]:
        ended = bool(packet.flags & FIN)
        connection.next_in = (connection.next_in + len(packet.data) + ended) % (1 << 32)
        connection.data += packet.data
        if connection.closing:
            if ended:
                del self._connections[connection.flow]
            return [self._send(connection, ACK)] if packet.data or ended else []
        if connection.flow.target_port == _DNS_PORT and not ended:
            return self._questions(connection)
        found = greeting.read(connection.data)
        if found is None and (ended or len(connection.data) >= greeting.ENOUGH):
            found = greeting.Greeting("other")
        if found is not None:
            reply = self._end(connection, found)
            if ended:
                del self._connections[connection.flow]
            return [reply]
        return [self._send(connection, ACK)] if packet.data else []

    def _questions(self, connection: _Connection) -> list[bytes]:
        """DNS over TCP: messages with their length before them."""
        replies = b""
        while len(connection.data) >= 2:
            size = int.from_bytes(connection.data[:2], "big")
            if len(connection.data) < 2 + size:
                break
            message, connection.data = connection.data[2 : 2 + size], connection.data[2 + size :]
            reply = self._question(message, connection.flow, connection.asker)
            if reply is None:
                return [self._end(connection, greeting.Greeting("other"))]
            connection.told = True
            replies += len(reply).to_bytes(2, "big") + reply
        return [self._send(connection, ACK | PSH if replies else ACK, replies)]

    def _end(self, connection: _Connection, found: greeting.Greeting) -> bytes:
        """Refuse politely, in the client's own protocol, and close."""
        self._tell(connection, found)
        connection.closing = True
        reply = {"http": _UNAVAILABLE, "tls": _HANDSHAKE_FAILURE}.get(found.protocol, b"")
        return self._send(connection, ACK | FIN | (PSH if reply else 0), reply)

    def _send(self, connection: _Connection, flags: int, data: bytes = b"") -> bytes:
        packet = Tcp(connection.flow.back(), connection.next_out, connection.next_in, flags, data)
        connection.next_out += len(data) + bool(flags & FIN)
        return packets.build(connection.mac, self._mac, packet)

    def _reset(self, mac: bytes, packet: Tcp) -> bytes:
        return packets.build(mac, self._mac, Tcp(packet.flow.back(), packet.acknowledged, 0, RST))

    # --- what was heard -----------------------------------------------------------------------------------

    def _tell(self, connection: _Connection, found: greeting.Greeting) -> None:
        if connection.told:
            return
        connection.told = True
        words = {"tls": "TLS", "http": found.request}.get(found.protocol, "")
        name = found.name or self._names.get(connection.flow.target, "")
        self._hear("tcp", connection.flow, words, connection.asker, name=name, at=connection.began)

    def _hear(
        self,
        kind: Literal["dns", "tcp", "udp", "echo"],
        flow: Flow,
        detail: str,
        asker: Asker,
        *,
        name: str = "",
        at: float = 0.0,
    ) -> None:
        name = name or self._names.get(flow.target, "")
        self._heard(Contact(at or self._now(), kind, name, flow.target, flow.target_port, detail, asker))
