"""Readiness, rung by rung: the process is up, its health path answers, one token is generated."""

from __future__ import annotations

from typing import Any, Optional

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.runtimes.base import Instance, Runtime
from airbundle_onsite.smoke.answers import generated
from airbundle_onsite.smoke.http import LoopbackRequests, Reply, Requests
from airbundle_onsite.system import Clock, Talk
from airbundle_onsite.units import human_seconds

_POLL = 0.5  # seconds between looks
_HEALTH_SECONDS = 10.0
_REMARK = 30.0  # seconds between remarks while loading
_LOADING = (429, 503)
_LOG_LINES = 40
_PROMPT = "The capital of France is"


def wait_ready(
    instance: Instance,
    plan: LaunchPlan,
    runtime: Runtime,
    clock: Clock,
    talk: Talk,
    requests: Optional[Requests] = None,
) -> list[CheckResult]:
    """Wait until the engine has generated a token, or it is clear that it will not.

    A health path that answers 200 is not readiness: engines have served it while every generation hung.

    Returns:
        The rungs climbed; when the last has failed, its evidence is the end of the engine's log.
    """
    return _Ladder(
        instance, plan, runtime, clock, talk, requests or LoopbackRequests(instance.host, instance.port)
    ).climb()


class _Ladder:
    def __init__(
        self, instance: Instance, plan: LaunchPlan, runtime: Runtime, clock: Clock, talk: Talk, requests: Requests
    ) -> None:
        self._instance, self._plan, self._runtime = instance, plan, runtime
        self._clock, self._talk, self._requests = clock, talk, requests
        self._begun = clock.monotonic()
        self._remarked = self._begun
        self._results: list[CheckResult] = []

    def climb(self) -> list[CheckResult]:
        health = self._plan.readiness.health_path
        if (not health or self._wait_health(health)) and self._wait_token():
            self._results.insert(0, CheckResult("ready.process", "pass", "the engine's process is up"))
        return self._results

    def _wait_health(self, path: str) -> bool:
        reply = Reply(0, error="not asked yet")
        while self._alive() and self._in_time("ready.health", f"{path} answers 200", reply):
            reply = self._requests.send("GET", path, None, min(_HEALTH_SECONDS, max(1.0, self._remaining())))
            if reply.status == 200:
                waited = human_seconds(self._elapsed())
                self._results.append(CheckResult("ready.health", "pass", f"{path} answers 200 after {waited}"))
                return True
            self._wait()
        return False

    def _wait_token(self) -> bool:
        expected = "one generated token"
        reply = Reply(0, error="not asked yet")
        while self._alive() and self._in_time("ready.token", expected, reply):
            reply = self._generate(self._plan.readiness.request_seconds)
            if reply.status == 200:
                return self._judge_token(reply, expected)
            if reply.status and reply.status not in _LOADING:
                return self._fail("ready.token", "the engine refuses to generate", expected, reply.reason())
            if not reply.status and not reply.refused and self._alive():
                return self._fail("ready.token", "the engine is up, but does not generate", expected, reply.reason())
            self._wait()
        return False

    def _generate(self, seconds: float) -> Reply:
        body: dict[str, Any] = {"model": self._plan.model, "max_tokens": 1, "temperature": 0, "stream": False}
        reply = self._requests.send("POST", "/v1/completions", {**body, "prompt": _PROMPT}, seconds)
        if reply.status in (404, 405):
            messages = [{"role": "user", "content": _PROMPT}]
            reply = self._requests.send("POST", "/v1/chat/completions", {**body, "messages": messages}, seconds)
        return reply

    def _judge_token(self, reply: Reply, expected: str) -> bool:
        answer = generated(reply.json())
        if answer is None or not (answer.text or answer.tokens):
            found = "an answer without any token" if answer else f"not a completion: {reply.body[:200]}"
            return self._fail("ready.token", "the engine answers, but generates nothing", expected, found)
        summary = f"a token was generated in {reply.seconds:.1f} s, {human_seconds(self._elapsed())} after the start"
        self._results.append(CheckResult("ready.token", "pass", summary, expected=expected, actual=repr(answer.text)))
        return True

    def _alive(self) -> bool:
        if self._results and self._results[-1].status == "fail":
            return False
        state = self._runtime.state(self._instance)
        if state.status == "running":
            return True
        code = "" if state.code is None else f" with code {state.code}"
        said = {"exited": f"the engine ended{code} before it was ready", "paused": "the engine is paused"}
        return self._fail(
            "ready.process",
            said.get(state.status, "the engine is gone"),
            "a running process",
            f"{state.status}{code}",
        )

    def _in_time(self, rung: str, expected: str, last: Reply) -> bool:
        if self._remaining() > 0:
            return True
        limit = human_seconds(self._plan.readiness.load_seconds)
        return self._fail(rung, f"the engine was not ready within {limit}", expected, f"last answer: {last.reason()}")

    def _wait(self) -> None:
        if self._clock.monotonic() - self._remarked >= _REMARK:
            self._remarked = self._clock.monotonic()
            limit = human_seconds(self._plan.readiness.load_seconds)
            self._talk.say(f"the engine is loading: {human_seconds(self._elapsed())} of at most {limit}")
        self._clock.sleep(_POLL)

    def _elapsed(self) -> float:
        return self._clock.monotonic() - self._begun

    def _remaining(self) -> float:
        return self._plan.readiness.load_seconds - self._elapsed()

    def _fail(self, rung: str, summary: str, expected: str, actual: str) -> bool:
        log = self._runtime.logs(self._instance, _LOG_LINES)
        self._results.append(
            CheckResult(
                rung,
                "fail",
                summary,
                expected,
                actual,
                remedy="the end of the engine's log, below, says why"
                if log
                else "the engine wrote no log; see the supervisor's or the container engine's",
                evidence=tuple(log.splitlines()[-_LOG_LINES:]),
            )
        )
        return False
