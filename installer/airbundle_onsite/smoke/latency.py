"""Time to the first token and time per token, from one streamed answer to a smoke test's question.

A figure for people, never a reason to fail: an engine that cannot stream gets none. The question was asked before, so
the engine is warm, and may have the prompt in its cache: what is told is how soon a running service begins to answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Optional, Protocol, Union

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.launch import LaunchPlan, SmokeTest
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import record
from airbundle_onsite.runtimes.base import Instance
from airbundle_onsite.smoke.answers import choice_text
from airbundle_onsite.smoke.http import LoopbackRequests, Streamed
from airbundle_onsite.smoke.run import request_body
from airbundle_onsite.system import Talk

CHECK = "smoke.latency"
_ANSWERS = ("/v1/chat/completions", "/v1/completions")
_REFUSED = (400, 422)  # of a word in the body that the engine does not know


class Streams(Protocol):
    """Sends requests whose answers come piece by piece."""

    def stream(self, path: str, body: Mapping[str, Any], seconds: float) -> Streamed:
        """One request; never raises for what the engine does."""
        ...


@record
class Latency:
    """What one streamed answer took.

    Attributes:
        ttft: seconds from the request to the first token.
        tpot: seconds for each token after it; None when there was one only.
        tokens: in the answer, as the engine counts them, or pieces that it came in.
    """

    ttft: float
    tpot: Optional[float]
    tokens: int


def measure_latency(
    manifest: BundleManifest, plan: LaunchPlan, instance: Instance, talk: Talk, streams: Optional[Streams] = None
) -> Union[Latency, str, None]:
    """Ask the first smoke test that generates text once more, streamed.

    Returns:
        What it took; a sentence when the engine does not stream; None when no smoke test generates text.
    """
    test = next((each for each in manifest.smoke if each.path in _ANSWERS), None)
    if test is None:
        return None
    talk.say("measuring the time to the first token")
    return _read(_ask(test, plan, streams or LoopbackRequests(instance.host, instance.port)))


def latency_check(found: Union[Latency, str, None]) -> list[CheckResult]:
    """What `measure_latency` found, as results: one, or none."""
    if found is None:
        return []
    if isinstance(found, str):
        return [CheckResult(CHECK, "skip", f"the time to the first token is not known: {found}")]
    each = "" if found.tpot is None else f", then {found.tpot * 1000:.1f} ms for each token (TPOT)"
    count = f"{found.tokens} token{'s' if found.tokens != 1 else ''}"
    summary = f"one request alone: first token after {found.ttft * 1000:.0f} ms (TTFT){each}, {count}"
    return [CheckResult(CHECK, "pass", summary)]


def _ask(test: SmokeTest, plan: LaunchPlan, streams: Streams) -> Streamed:
    body = {**request_body(test.body, plan), "stream": True}
    counted = {**body, "stream_options": {"include_usage": True}}
    answer = streams.stream(test.path, counted, test.seconds)
    return streams.stream(test.path, body, test.seconds) if answer.status in _REFUSED else answer


def _read(answer: Streamed) -> Union[Latency, str]:
    if answer.error:
        return answer.error
    if answer.status != 200:
        return f"a streamed request gets HTTP {answer.status}"
    times, told = [], None
    for moment, event in _events(answer):
        usage = event.get("usage")
        if isinstance(usage, dict) and type(usage.get("completion_tokens")) is int:
            told = usage["completion_tokens"]
        if _has_text(event):
            times.append(moment)
    if not times:
        return "the engine did not stream its answer"
    tokens = max(told or 0, len(times))
    tpot = (times[-1] - times[0]) / (tokens - 1) if tokens > 1 and len(times) > 1 else None
    return Latency(times[0], tpot, tokens)


def _events(answer: Streamed) -> Iterator[tuple[float, dict[str, Any]]]:
    """The JSON objects of server-sent events, each with the second at which it came."""
    for moment, line in answer.lines:
        if line.startswith("data:"):
            try:
                event = json.loads(line[len("data:") :])
            except (ValueError, RecursionError):  # ``[DONE]``
                continue
            if isinstance(event, dict):
                yield moment, event


def _has_text(event: Mapping[str, Any]) -> bool:
    choices = event.get("choices")
    return isinstance(choices, list) and any(choice_text(each) for each in choices if isinstance(each, dict))
