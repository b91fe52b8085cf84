"""Smoke tests: requests with a known answer, whose generated text must look like one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.launch import LaunchPlan, SmokeTest
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import record
from airbundle_onsite.runtimes.base import Instance
from airbundle_onsite.smoke.answers import Generated, generated, longest_repeat
from airbundle_onsite.smoke.http import LoopbackRequests, Reply, Requests
from airbundle_onsite.system import Clock, Talk

_SHOWN = 200  # characters of an answer shown
# What CUDA and NVML say of a device that was there and is gone: errors 100 and 999, and NVML's own words.
LOST_GPU = re.compile(
    r"no cuda-capable device|cuda error: unknown error|nvml.*unknown error|gpu is lost|fallen off the bus"
)
"""Searched in what an engine says, in small letters."""


@record
class _Verdict:
    """One answer judged; no problems means it passed."""

    reply: Reply
    answer: Optional[Generated]
    problems: tuple[str, ...]


def run_smoke(
    manifest: BundleManifest,
    plan: LaunchPlan,
    instance: Instance,
    clock: Clock,
    talk: Talk,
    requests: Optional[Requests] = None,
) -> list[CheckResult]:
    """Run every smoke test of the manifest against a started engine; a result for each, ``smoke.<id>``.

    An engine that was never asked proves nothing, so a manifest without smoke tests gives a warning.
    """
    if not manifest.smoke:
        return [
            CheckResult(
                "smoke.none",
                "warn",
                "the bundle has no smoke tests",
                remedy="nothing but a generated token was proven; build the bundle with a known question and answer",
            )
        ]
    sender = requests or LoopbackRequests(instance.host, instance.port)
    results = []
    for test in manifest.smoke:
        talk.say(f"smoke test {test.id}: {test.concurrency} request{'s' if test.concurrency > 1 else ''}")
        begun = clock.monotonic()
        verdicts = _run(test, plan, sender)
        results.append(_result(test, verdicts, clock.monotonic() - begun))
    return results


def _run(test: SmokeTest, plan: LaunchPlan, sender: Requests) -> list[_Verdict]:
    body = request_body(test.body, plan)
    count = max(1, test.concurrency)
    with ThreadPoolExecutor(max_workers=count) as pool:
        sent = [pool.submit(sender.send, "POST", test.path, body, test.seconds) for _ in range(count)]
        return [_judge(test, future.result()) for future in sent]


def request_body(body: Mapping[str, Any], plan: LaunchPlan) -> dict[str, Any]:
    """What a smoke test sends: its body with the model's name filled in, for an answer in one piece."""
    made = {**body, "stream": False}
    if made.get("model") == "{served_name}":
        made["model"] = plan.model
    return made


def _judge(test: SmokeTest, reply: Reply) -> _Verdict:
    if reply.status != 200:
        return _Verdict(reply, None, (reply.reason(),))
    answer = generated(reply.json())
    if answer is None:
        return _Verdict(reply, None, (f"the answer is not a completion: {reply.body[:_SHOWN]!r}",))
    return _Verdict(reply, answer, tuple(_problems(test, answer.text)))


def _problems(test: SmokeTest, text: str) -> Iterator[str]:
    shown = repr(text[:_SHOWN])
    length = len(text.strip())
    if length < test.min_chars:
        yield f"only {length} characters were generated: {shown}" if length else "nothing was generated"
        return
    repeat = longest_repeat(text)
    if repeat > test.max_repeat:
        yield f"the same piece comes {repeat} times in a row: {shown}"
        return
    for pattern in test.expect:
        if not re.search(pattern, text, re.IGNORECASE):
            yield f"{pattern!r} is not in the answer: {shown}"
    for pattern in test.reject:
        if re.search(pattern, text, re.IGNORECASE):
            yield f"{pattern!r} must not be in the answer: {shown}"


def _result(test: SmokeTest, verdicts: list[_Verdict], seconds: float) -> CheckResult:
    bad = [verdict for verdict in verdicts if verdict.problems]
    expected = _expected(test)
    if not bad:
        answer = verdicts[0].answer
        return CheckResult(
            f"smoke.{test.id}",
            "pass",
            f"{test.id}: {_count(verdicts)} good ({_rate(verdicts, seconds)})",
            expected,
            actual=answer.text.strip()[:_SHOWN] if answer else "",
        )
    problems = tuple(dict.fromkeys(problem for verdict in bad for problem in verdict.problems))
    return CheckResult(
        f"smoke.{test.id}",
        "fail",
        f"{test.id}: {len(bad)} of {_count(verdicts)} not good",
        expected,
        actual=problems[0],
        remedy=_remedy(bad[0].reply),
        evidence=problems[1:6],
    )


def _expected(test: SmokeTest) -> str:
    words = [f"an answer from {test.path} within {test.seconds} s"]
    words += [f"with {pattern!r}" for pattern in test.expect] + [f"without {pattern!r}" for pattern in test.reject]
    return ", ".join(words)


def _count(verdicts: list[_Verdict]) -> str:
    return f"{len(verdicts)} answer{'s' if len(verdicts) != 1 else ''}"


def _rate(verdicts: list[_Verdict], seconds: float) -> str:
    slowest = max(verdict.reply.seconds for verdict in verdicts)
    tokens = [verdict.answer.tokens for verdict in verdicts if verdict.answer and verdict.answer.tokens]
    text = f"slowest after {slowest:.2f} s"
    return f"{text}, {sum(tokens) / seconds:.1f} tokens/s together" if tokens and seconds > 0 else text


def _remedy(reply: Reply) -> str:
    said = reply.reason().lower() if reply.status != 200 else ""
    if "template" in said:
        return (
            "the model has no chat template: build the bundle with one (tokenizer_config.json or chat_template.jinja)"
        )
    if reply.status in (401, 403):
        return "the engine wants a key: the smoke test must be sent with it"
    if reply.status == 404:
        return "the engine does not offer this path or model: compare the launch plan's served name with /v1/models"
    if LOST_GPU.search(said):
        return (
            "the engine lost its GPU, as containers do when systemd reloads its units: airbundlectl --start starts it "
            "afresh with its GPU; if it comes again, see dmesg for lines with NVRM or Xid"
        )
    if reply.status == 0:
        return "see the engine's log; a request that never ends often means an engine that lost its GPU or its workers"
    if reply.status != 200:
        return "see the engine's log for the request"
    return "do not activate this release: the engine serves, but not sense (wrong kernels, precision or template)"
