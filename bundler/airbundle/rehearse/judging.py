"""What templates/rehearse/airbundle_probe.py wrote, as checks: passed, failed, or not known here and why."""

from __future__ import annotations

import importlib.resources
import json
import re
import signal
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.system import Completed

MARK = "@airbundle-rehearsal "
_TIMED_OUT = 124
_CUT = 600  # characters of an error's words
_TRACE = 8
_SIGNALS = {
    signal.SIGKILL: "it was killed by the system, most likely for want of memory",
    signal.SIGILL: "this machine's processor lacks instructions that the engine uses",
}
"""Ends that tell of this machine, and nothing of the bundle."""


@cache
def _gpu_signs() -> tuple[re.Pattern[str], ...]:
    text = importlib.resources.files("airbundle.rehearse").joinpath("data", "nogpu.toml").read_text(encoding="utf-8")
    return tuple(re.compile(row["regex"]) for row in tomllib.loads(text)["sign"])


def for_want_of_a_gpu(text: str) -> str:
    """The line that says that a GPU or its driver was missing; empty when none does."""
    for line in text.splitlines():
        if any(sign.search(line) for sign in _gpu_signs()):
            return line.strip()[:_CUT]
    return ""


def facts(output: str) -> Iterator[Mapping[str, Any]]:
    """What was written after the mark, in order."""
    for line in output.splitlines():
        if line.startswith(MARK):
            yield json.loads(line[len(MARK) :])


def checks_of(done: Completed) -> tuple[CheckResult, ...]:
    """The checks of a probe that has ended, in whatever way; one that it was about when it crashed among them."""
    made: list[CheckResult] = []
    begun: Mapping[str, Any] | None = None
    ended = False
    for fact in facts(done.stdout):
        if "begin" in fact:
            begun = fact
        elif "id" in fact:
            begun = None
            made.append(_check(fact))
        else:
            ended = True
    if not ended:
        made.append(_crash(done, begun))
    return tuple(made)


def _check(fact: Mapping[str, Any]) -> CheckResult:
    name, outcome = f"rehearsal.{fact['id']}", fact["outcome"]
    if outcome == "pass":
        return CheckResult(name, "pass", fact["summary"])
    if outcome == "remark":
        return CheckResult(name, "warn", fact["summary"])
    error = " ".join(str(fact["error"]).split())[:_CUT]
    if outcome == "unknown":
        return CheckResult(name, "skip", error)
    trace = tuple(fact["trace"][-_TRACE:])
    missing = for_want_of_a_gpu(fact["error"])
    if missing:
        return CheckResult(name, "skip", f"needs a GPU: {missing}", evidence=trace)
    if not fact["refused"]:
        return CheckResult(name, "skip", f"cannot be known on this machine: {error}", evidence=trace)
    return CheckResult(name, "fail", error, remedy=_REMEDIES.get(fact["id"].partition(".")[0], ""), evidence=trace)


_REMEDIES = {
    "import": "the wheels or the image lack what the engine imports: resolve them again, or choose another version",
    "flags": "correct it under engine.flags, or name the engine.version that is really in the bundle",
    "architecture": "choose an engine or a version that knows this architecture",
    "config": "pack the model's code (model.trust_remote_code), or choose a version that knows its config.json",
    "shapes": "the weights do not belong to this config.json: fetch both from one revision",
    "weights": "fetch the file again; its header does not fit its length",
    "tokenizer": "pack the tokenizer that belongs to these weights",
}


def _crash(done: Completed, begun: Mapping[str, Any] | None) -> CheckResult:
    name = f"rehearsal.{begun['begin']}" if begun else "rehearsal.start"
    what = str(begun["does"]) if begun else "the program that asks the engine"
    said = tuple(line for line in (done.stdout + done.stderr).splitlines() if not line.startswith(MARK))[-_TRACE:]
    if done.code == _TIMED_OUT:
        return CheckResult(name, "skip", f"{what}: not done in time on this machine", evidence=said)
    # As Python's subprocess reports a signal, and as a shell or a container engine does.
    number = -done.code if done.code < 0 else done.code - 128
    ended = next((words for each, words in _SIGNALS.items() if number == each), "")
    if ended:
        return CheckResult(name, "skip", f"{what}: {ended}", evidence=said)
    missing = for_want_of_a_gpu("\n".join(said))
    if missing:
        return CheckResult(name, "skip", f"needs a GPU: {missing}", evidence=said)
    return CheckResult(name, "fail", f"{what}: it ended with exit code {done.code}", evidence=said)
