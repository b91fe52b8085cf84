"""The little of DNS that a sinkhole speaks: read one question, answer it with an address or with nothing."""

from __future__ import annotations

import struct

from airbundle_onsite.contract.record import record

A, PTR, AAAA = 1, 12, 28
_TYPES = {A: "A", 2: "NS", 5: "CNAME", 6: "SOA", PTR: "PTR", 15: "MX", 16: "TXT", AAAA: "AAAA", 33: "SRV", 65: "HTTPS"}
_IN = 1
_ANSWER = 0x8180  # a response, recursion asked for and available, no error
_TTL = 60  # seconds


@record
class Question:
    """One question: `name` in lower case without the final dot; `end` is where it ends in the message."""

    name: str
    kind: int
    end: int

    @property
    def kind_name(self) -> str:
        """``A``, ``AAAA`` and the like."""
        return _TYPES.get(self.kind, f"type {self.kind}")


def parse_question(message: bytes) -> Question | None:
    """The first question of a query; None when it is not one."""
    if len(message) < 12:
        return None
    flags, questions = struct.unpack_from("!HH", message, 2)
    if flags & 0x8000 or not questions:
        return None
    labels, at = [], 12
    while at < len(message) and (size := message[at]):
        if size > 63 or at + 1 + size > len(message):  # compression has no place in a first question
            return None
        labels.append(message[at + 1 : at + 1 + size].decode("ascii", "backslashreplace"))
        at += 1 + size
    if at + 5 > len(message):
        return None
    (kind,) = struct.unpack_from("!H", message, at + 1)
    return Question(".".join(labels).lower(), kind, at + 5)


def answer(message: bytes, question: Question, address: bytes | None) -> bytes:
    """The response to a query.

    Args:
        address: four bytes for an A question; None says that the name has no such record.
    """
    head = message[:2] + struct.pack("!HHHHH", _ANSWER, 1, 1 if address else 0, 0, 0)
    body = message[12 : question.end]
    if address:
        # 0xC00C points at the name in the question.
        body += struct.pack("!HHHIH", 0xC00C, A, _IN, _TTL, len(address)) + address
    return head + body
