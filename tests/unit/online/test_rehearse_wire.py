"""The sinkhole without a network: frames in, frames out, and what it writes down of them."""

from __future__ import annotations

import ssl
import struct

import pytest

from airbundle.rehearse import dns, greeting, packets
from airbundle.rehearse.packets import ACK, FIN, PSH, RST, SYN, Arp, Echo, Flow, Tcp, Udp
from airbundle.rehearse.sinkhole import Asker, Contact, Sinkhole

MINE, CLIENT = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
GATEWAY, HOME = "192.0.2.2", "192.0.2.1"
ENGINE = Asker(7, ("python3", "-m", "engine"))


class KnowsOne:
    """Everything is asked by one process."""

    def find(self, kind: str, flow: Flow) -> Asker:
        return ENGINE


class Hole:
    """A sinkhole with a clock, and a client's hand on the wire."""

    def __init__(self, ignored: tuple[str, ...] = ()) -> None:
        self.contacts: list[Contact] = []
        self.time = 1000.0
        self.sinkhole = Sinkhole(MINE, GATEWAY, KnowsOne(), self.contacts.append, lambda: self.time, ignored)

    def send(self, packet: Tcp | Udp | Echo, target: bytes = MINE) -> list[packets.Packet]:
        return [self.read(frame) for frame in self.sinkhole.take(packets.build(target, CLIENT, packet))]

    @staticmethod
    def read(frame: bytes) -> packets.Packet:
        parsed = packets.parse(frame)
        assert parsed is not None
        assert (parsed.target, parsed.source) == (CLIENT, MINE)
        return parsed.packet


@pytest.fixture
def hole() -> Hole:
    return Hole()


class Client:
    """The client's side of one TCP connection."""

    def __init__(self, hole: Hole, address: str = "203.0.113.9", port: int = 443, home: str = HOME) -> None:
        self.hole, self.flow = hole, Flow(home, 40000, address, port)
        self.sequence, self.expected = 4_294_967_290, 0  # close to where sequence numbers begin again
        (reply,) = self.send(SYN)
        assert isinstance(reply, Tcp) and reply.flags == SYN | ACK
        assert reply.acknowledged == (self.sequence + 1) % 2**32
        self.sequence, self.expected = self.sequence + 1, reply.sequence + 1

    def send(self, flags: int, data: bytes = b"") -> list[packets.Packet]:
        replies = self.hole.send(Tcp(self.flow, self.sequence, self.expected, flags, data))
        self.sequence += len(data) + bool(flags & FIN)
        return replies

    def say(self, data: bytes) -> Tcp:
        (reply,) = self.send(ACK | PSH, data)
        assert isinstance(reply, Tcp)
        assert reply.acknowledged == self.sequence % 2**32
        assert reply.sequence == self.expected
        self.expected += len(reply.data) + bool(reply.flags & FIN)
        return reply


def client_hello(name: str | None) -> bytes:
    """What a real TLS client says first."""
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    outgoing = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def query(name: str, kind: int, number: int = 4711) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, kind, 1)


# --- packets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "packet",
    [
        Udp(Flow("192.0.2.1", 5353, "198.51.100.7", 123), b"odd"),
        Udp(Flow("2001:db8::1", 5353, "2001:db8:5::7", 443), b"even"),
        Tcp(Flow("192.0.2.1", 1, "198.51.100.7", 65535), 5, 6, ACK | PSH, b"hello"),
        Tcp(Flow("2001:db8::1", 1, "2001:db8::9", 2), 2**32 - 1, 0, SYN),
    ],
)
def test_what_is_built_is_read_again(packet):
    frame = packets.build(MINE, CLIENT, packet)
    assert packets.parse(frame) == packets.Frame(MINE, CLIENT, packet)


def test_checksums_are_those_of_the_standards():
    frame = packets.build(MINE, CLIENT, Udp(Flow("192.0.2.1", 1000, "198.51.100.7", 53), b"x" * 33))
    assert packets.checksum(frame[14:34]) == 0
    pseudo = frame[26:34] + struct.pack("!BBH", 0, 17, len(frame) - 34)
    assert packets.checksum(pseudo + frame[34:]) == 0
    # The worked example of RFC 1071, section 3.
    assert packets.checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xFFFF - 0xDDF2


@pytest.mark.parametrize("size", range(0, 60, 3))
def test_frames_cut_short_are_dropped(hole, size):
    frame = packets.build(MINE, CLIENT, Tcp(Flow(HOME, 1, GATEWAY, 2), 1, 2, ACK, b"data"))
    assert hole.sinkhole.take(frame[:size]) == []
    assert hole.contacts == []


def test_only_the_gateway_is_answered_for(hole):
    def ask(target: str) -> list[bytes]:
        question = struct.pack("!HHHH", 1, 0x0800, 0x0604, 1) + CLIENT + bytes([192, 0, 2, 1]) + bytes(6)
        address = bytes(int(part) for part in target.split("."))
        return hole.sinkhole.take(b"\xff" * 6 + CLIENT + b"\x08\x06" + question + address)

    (reply,) = ask(GATEWAY)
    assert reply[:6] == CLIENT
    assert reply[20:22] == b"\0\x02"
    assert reply[22:28] == MINE
    assert ask("192.0.2.3") == []
    assert packets.parse(reply) is None, "a reply is no question"
    assert isinstance(Arp(CLIENT, HOME, GATEWAY), Arp)


# --- names ------------------------------------------------------------------------------------------------


def test_every_name_has_an_address_of_its_own_and_the_same_again(hole):
    def address(name: str) -> str:
        (reply,) = hole.send(Udp(Flow(HOME, 5000, "203.0.113.53", 53), query(name, dns.A)))
        assert isinstance(reply, Udp)
        assert reply.flow == Flow("203.0.113.53", 53, HOME, 5000)
        assert reply.data[:2] == struct.pack("!H", 4711)
        assert reply.data[2:4] == b"\x81\x80"
        return ".".join(str(part) for part in reply.data[-4:])

    first, second = address("huggingface.co"), address("Stats.Example.COM")
    assert first != second
    assert address("HuggingFace.co") == first
    assert [(contact.name, contact.kind, contact.detail) for contact in hole.contacts] == [
        ("huggingface.co", "dns", "A"),
        ("stats.example.com", "dns", "A"),
        ("huggingface.co", "dns", "A"),
    ]
    assert hole.contacts[0].asker == ENGINE


def test_other_records_are_answered_with_none(hole):
    for kind in (dns.AAAA, 65, 16):
        (reply,) = hole.send(Udp(Flow(HOME, 5000, GATEWAY, 53), query("a.example", kind)))
        assert isinstance(reply, Udp)
        assert struct.unpack_from("!HH", reply.data, 4) == (1, 0)
    assert [contact.detail for contact in hole.contacts] == ["AAAA", "HTTPS", "TXT"]


@pytest.mark.parametrize("data", [b"", b"\0" * 11, query("a.example", 1)[:-3], b"\0\1\x81\x80" + query("a", 1)[4:]])
def test_what_is_no_question_is_a_datagram(hole, data):
    assert hole.send(Udp(Flow(HOME, 5000, GATEWAY, 53), data)) == []
    assert [(contact.kind, contact.port) for contact in hole.contacts] == [("udp", 53)]


def test_names_over_tcp(hole):
    client = Client(hole, GATEWAY, 53)
    message = query("over-tcp.example", dns.A)
    framed = struct.pack("!H", len(message)) + message
    assert client.say(framed[:7]).data == b""
    reply = client.say(framed[7:])
    assert struct.unpack_from("!H", reply.data)[0] == len(reply.data) - 2
    assert not reply.flags & FIN
    client.send(ACK | FIN)
    assert [(contact.kind, contact.name) for contact in hole.contacts] == [("dns", "over-tcp.example")]


# --- connections ------------------------------------------------------------------------------------------


def test_a_tls_client_is_refused_and_its_server_name_kept(hole):
    client = Client(hole)
    hello = client_hello("cdn.example.com")
    assert client.say(hello[:50]).data == b""
    reply = client.say(hello[50:])
    assert reply.data[0] == 21, "an alert"
    assert reply.flags & FIN
    (contact,) = hole.contacts
    assert (contact.kind, contact.name, contact.address, contact.port) == ("tcp", "cdn.example.com", "203.0.113.9", 443)
    assert (contact.detail, contact.asker) == ("TLS", ENGINE)


def test_an_http_client_is_told_and_its_request_kept_without_the_query(hole):
    client = Client(hole, port=80)
    reply = client.say(b"POST /v1/stats?key=secret HTTP/1.1\r\nUser-Agent: x\r\nHost: Stats.example:80\r\n\r\n{}")
    assert reply.data.startswith(b"HTTP/1.1 503")
    (contact,) = hole.contacts
    assert (contact.name, contact.detail) == ("stats.example", "POST /v1/stats")


def test_a_connection_to_a_name_asked_before_has_that_name(hole):
    (reply,) = hole.send(Udp(Flow(HOME, 5000, GATEWAY, 53), query("db.example", dns.A)))
    assert isinstance(reply, Udp)
    address = ".".join(str(part) for part in reply.data[-4:])
    Client(hole, address, 5432).say(b"\0\0\0\x08\x04\xd2\x16\x2f")
    assert (hole.contacts[-1].name, hole.contacts[-1].address) == ("db.example", address)


def test_who_waits_for_the_server_is_let_go(hole):
    client = Client(hole, port=22)
    assert hole.sinkhole.tick() == []
    hole.time += 4
    (frame,) = hole.sinkhole.tick()
    reply = hole.read(frame)
    assert isinstance(reply, Tcp)
    assert reply.flags & FIN
    client.expected += 1
    (answer,) = client.send(ACK | FIN)
    assert isinstance(answer, Tcp)
    assert answer.flags == ACK
    assert [contact.port for contact in hole.contacts] == [22]
    hole.time += 4
    assert hole.sinkhole.tick() == []


def test_a_connection_given_up_or_still_open_is_written_down(hole):
    Client(hole, port=1).send(RST)
    Client(hole, port=2)
    hole.sinkhole.finish()
    assert [(contact.port, contact.kind) for contact in hole.contacts] == [(1, "tcp"), (2, "tcp")]


def test_segments_sent_again_do_no_harm(hole):
    client = Client(hole, port=80)
    part = b"GET /model HTTP/1.1\r\n"
    client.say(part)
    (again,) = hole.send(Tcp(client.flow, client.sequence - len(part), client.expected, ACK, part))
    assert isinstance(again, Tcp)
    assert again.acknowledged == client.sequence % 2**32
    client.say(b"Host: h.example\r\n\r\n")
    assert [contact.name for contact in hole.contacts] == ["h.example"]


def test_a_repeated_opening_gets_the_same_answer(hole):
    opening = Tcp(Flow(HOME, 40001, "203.0.113.9", 443), 77, 0, SYN)
    assert hole.send(opening) == hole.send(opening)


def test_segments_of_no_connection_are_reset(hole):
    (reply,) = hole.send(Tcp(Flow(HOME, 40002, "203.0.113.9", 443), 5, 99, ACK, b"late"))
    assert isinstance(reply, Tcp)
    assert (reply.flags, reply.sequence) == (RST, 99)
    assert hole.send(Tcp(Flow(HOME, 40002, "203.0.113.9", 443), 5, 99, RST)) == []


def test_ipv6_and_pings_are_answered(hole):
    Client(hole, "2001:db8:9::1", 443, home="2001:db8::1").say(client_hello(None))
    for source, target in ((HOME, "8.8.4.4"), ("2001:db8::1", "2001:db8:9::2")):
        request = packets.build(MINE, CLIENT, Udp(Flow(source, 1, target, 2), b""))
        protocol, kind, at = (1, 8, 14 + 20) if "." in target else (58, 128, 14 + 40)
        frame = bytearray(request[:at] + bytes((kind, 0, 0, 0)) + b"\0\x01\0\x01payload!")
        frame[23 if "." in target else 20] = protocol
        length = len(frame) - 14 - (0 if "." in target else 40)
        frame[16 if "." in target else 18 : 18 if "." in target else 20] = struct.pack("!H", length)
        (reply,) = hole.sinkhole.take(bytes(frame))
        assert reply[at] == (0 if "." in target else 129)
        assert reply[at + 4 :] == b"\0\x01\0\x01payload!"
    assert [(contact.kind, contact.address) for contact in hole.contacts] == [
        ("tcp", "2001:db8:9::1"),
        ("echo", "8.8.4.4"),
        ("echo", "2001:db8:9::2"),
    ]


def test_what_was_there_before_is_let_alone():
    hole = Hole(ignored=(HOME,))
    assert hole.send(Tcp(Flow(HOME, 1, "203.0.113.9", 443), 1, 0, SYN)) == []
    assert hole.send(Udp(Flow(HOME, 1, GATEWAY, 53), query("a.example", 1))) == []
    assert hole.contacts == []


def test_frames_for_others_are_let_alone(hole):
    assert hole.send(Udp(Flow(HOME, 1, "203.0.113.9", 9), b"x"), target=bytes.fromhex("020000000003")) == []
    assert hole.contacts == []
    hole.send(Udp(Flow(HOME, 1, "224.0.0.251", 5353), b"x"), target=bytes.fromhex("01005e0000fb"))
    assert [contact.address for contact in hole.contacts] == ["224.0.0.251"]


# --- greetings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", None),
        (b"GET / HT", None),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", greeting.Greeting("http", "x", "GET /")),
        (b"GET / HTTP/1.1\r\nhost:  [2001:DB8::1]:8\r\n\r\n", greeting.Greeting("http", "2001:db8::1", "GET /")),
        (
            b"CONNECT hub.example:443 HTTP/1.1\r\n\r\n",
            greeting.Greeting("http", "hub.example", "CONNECT hub.example:443"),
        ),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", greeting.Greeting("http", "", "HTTP/2 without TLS")),
        (b"SSH-2.0-x\r\n", greeting.Greeting("other")),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", greeting.Greeting("tls")),
        (b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", greeting.Greeting("tls")),
        (b"GET nonsense\r\n\r\n", greeting.Greeting("other")),
    ],
)
def test_first_words(data: bytes, expected: greeting.Greeting | None) -> None:
    assert greeting.read(data) == expected


def test_a_hello_in_several_records_is_read() -> None:
    hello = client_hello("split.example")
    body = hello[5:]
    split = b"".join(
        b"\x16\x03\x01" + struct.pack("!H", len(body[at : at + 100])) + body[at : at + 100]
        for at in range(0, len(body), 100)
    )
    assert greeting.read(split) == greeting.Greeting("tls", "split.example")
    assert greeting.read(split[:150]) is None
