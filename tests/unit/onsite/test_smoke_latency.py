"""Time to the first token and per token, from streamed answers as engines send them; a figure, never a failure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import runtime_samples as samples
from airbundle_onsite.runtimes.base import Instance
from airbundle_onsite.smoke.http import LoopbackRequests, Streamed
from airbundle_onsite.smoke.latency import Latency, latency_check, measure_latency
from airbundle_onsite.system import Silent
from parts.engine import FakeEngines

PLAN = samples.plan()
MADE = samples.manifest(PLAN)


class Scripted:
    """Streamed answers from a list, the last one repeated; keeps the bodies."""

    def __init__(self, *answers: Streamed) -> None:
        self._answers = list(answers)
        self.bodies: list[Mapping[str, Any]] = []

    def stream(self, path: str, body: Mapping[str, Any], seconds: float) -> Streamed:
        self.bodies.append(body)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def instance(port: int = 1) -> Instance:
    return Instance("demo", "1", "candidate", "127.0.0.1", port)


def piece(text: str | None, **more: Any) -> str:
    delta = {"role": "assistant"} if text is None else {"content": text}
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta}], **more})


def streamed(*events: tuple[float, str], status: int = 200) -> Streamed:
    lines = [line for moment, text in events for line in ((moment, text), (moment, ""))]
    return Streamed(status, (*lines, (9.0, "data: [DONE]"), (9.0, "")))


def measure(*answers: Streamed, made: Any = MADE) -> Any:
    return measure_latency(made, PLAN, instance(), Silent(), Scripted(*answers))


def test_times_are_those_of_pieces_with_text() -> None:
    """The first event only names the role; the last one only counts the tokens, of which a piece may hold several."""
    usage = "data: " + json.dumps({"choices": [], "usage": {"completion_tokens": 5}})
    found = measure(
        streamed(
            (0.1, piece(None)), (0.25, piece("Par")), (0.3, piece("is, of")), (0.45, piece(" course")), (0.5, usage)
        )
    )
    assert found == Latency(0.25, pytest.approx(0.05), 5)
    (check,) = latency_check(found)
    assert (check.id, check.status) == ("smoke.latency", "pass")
    assert check.summary == (
        "one request alone: first token after 250 ms (TTFT), then 50.0 ms for each token (TPOT), 5 tokens"
    )


def test_thinking_counts_and_one_token_has_no_time_between() -> None:
    thought = "data: " + json.dumps({"choices": [{"delta": {"reasoning_content": "Hm"}}]})
    found = measure(streamed((0.2, thought)))
    assert found == Latency(0.2, None, 1)
    assert latency_check(found)[0].summary.endswith("first token after 200 ms (TTFT), 1 token")


def test_an_engine_that_does_not_know_the_option_is_asked_without() -> None:
    requests = Scripted(Streamed(400), streamed((0.1, piece("P")), (0.2, piece("aris"))))
    assert measure_latency(MADE, PLAN, instance(), Silent(), requests) == Latency(0.1, pytest.approx(0.1), 2)
    assert [("stream_options" in body, body["stream"], body["model"]) for body in requests.bodies] == [
        (True, True, "tiny"),
        (False, True, "tiny"),
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Streamed(200, ((0.1, '{"choices": [{"message": {"content": "Paris"}}]}'),)), "did not stream"),
        (Streamed(501), "HTTP 501"),
        (Streamed(0, error="no whole answer within 5 s"), "no whole answer within 5 s"),
        (Streamed(200, ((0.1, "data: []"), (0.1, 'data: {"choices": [1, {"delta": 3}]}'))), "did not stream"),
    ],
)
def test_an_engine_that_cannot_stream_is_no_failure(answer: Streamed, said: str) -> None:
    (check,) = latency_check(measure(answer))
    assert check.status == "skip" and said in check.summary


def test_without_a_test_that_generates_text_nothing_is_asked() -> None:
    other = samples.manifest(PLAN, smoke=[replace(samples.PARIS, path="/v1/embeddings")])
    found = measure(streamed((0.1, piece("P"))), made=other)
    assert found is None and latency_check(found) == []


def test_a_real_stream_over_http(fake_engine: FakeEngines) -> None:
    engine = fake_engine.start()
    found = measure_latency(MADE, PLAN, instance(engine.port), Silent())
    assert isinstance(found, Latency)
    assert 0 < found.ttft < 10 and found.tpot is not None and found.tokens == 6


def _texts(lines: Sequence[tuple[float, str]]) -> list[str]:
    return [line for _, line in lines if line]


def test_nothing_listening_and_hanging_are_said(fake_engine: FakeEngines) -> None:
    assert "connection broke" in LoopbackRequests("127.0.0.1", 1).stream("/", {}, 1).error
    engine = fake_engine.start("hang")
    answer = LoopbackRequests("127.0.0.1", engine.port).stream("/v1/completions", {"stream": True}, 0.5)
    assert (answer.status, answer.error, _texts(answer.lines)) == (0, "no whole answer within 0.5 s", [])
