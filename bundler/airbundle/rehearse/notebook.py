"""What a rehearsal writes down as it goes, in this process or sent from another one line by line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol, TextIO

from airbundle.rehearse.report import Step
from airbundle.rehearse.sinkhole import Contact
from airbundle_onsite.contract.record import decode, to_plain
from airbundle_onsite.system import Talk


class Recorder(Protocol):
    """Takes what happens, in order; called from several threads."""

    def begin(self, step: str, words: str) -> None:
        """A step begins: its id, and what it does in words."""
        ...

    def done(self, step: Step) -> None:
        """It has ended."""
        ...

    def heard(self, contact: Contact) -> None:
        """Something was asked of the network."""
        ...

    def left_out(self, sentence: str) -> None:
        """Something cannot be rehearsed here."""
        ...


class Notebook:
    """A `Recorder` that keeps everything.

    Attributes:
        steps: that have ended.
        contacts: each with the id of the step during which it came.
        not_rehearsed: sentences.
    """

    def __init__(self, talk: Talk) -> None:
        self.steps: list[Step] = []
        self.contacts: list[tuple[Contact, str]] = []
        self.not_rehearsed: list[str] = []
        self._talk, self._step = talk, "start"

    def begin(self, step: str, words: str) -> None:
        self._step = step
        self._talk.say(f"rehearsal: {words}")

    def done(self, step: Step) -> None:
        self.steps.append(step)
        if step.status == "fail":
            self._talk.say(f"rehearsal: {step.id} failed: {step.summary}")

    def heard(self, contact: Contact) -> None:
        self.contacts.append((contact, self._step))

    def left_out(self, sentence: str) -> None:
        self.not_rehearsed.append(sentence)
        self._talk.say(f"not rehearsed: {sentence}")


class LineWriter:
    """A `Recorder` that sends everything as lines of JSON, for `read_line` at the other end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, step: str, words: str) -> None:
        self._send("begin", [step, words])

    def done(self, step: Step) -> None:
        self._send("done", to_plain(step))

    def heard(self, contact: Contact) -> None:
        self._send("heard", to_plain(contact))

    def left_out(self, sentence: str) -> None:
        self._send("left_out", sentence)

    def _send(self, kind: str, value: object) -> None:
        # One call, so that lines of two threads do not mix.
        self._stream.write(json.dumps([kind, value]) + "\n")
        self._stream.flush()


def read_line(line: str, recorder: Recorder) -> None:
    """Pass on what a `LineWriter` sent."""
    kind, value = json.loads(line)
    pass_on: dict[str, Callable[[], None]] = {
        "begin": lambda: recorder.begin(*value),
        "done": lambda: recorder.done(decode(Step, value, "a step of the rehearsal")),
        "heard": lambda: recorder.heard(decode(Contact, value, "a contact of the rehearsal")),
        "left_out": lambda: recorder.left_out(value),
    }
    pass_on[kind]()
