"""Readiness, smoke tests and log patterns, against an engine that goes wrong in every known way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import runtime_samples as samples
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.launch import LogPattern, Readiness, SmokeTest
from airbundle_onsite.runtimes.base import Instance, InstanceState
from airbundle_onsite.smoke import run_smoke, scan_log, wait_ready
from airbundle_onsite.smoke.answers import generated, longest_repeat
from airbundle_onsite.smoke.http import LoopbackRequests, Reply
from airbundle_onsite.system import Silent, SystemClock
from parts.engine import FakeEngine, FakeEngines

PLAN = samples.plan(readiness=Readiness(load_seconds=8, request_seconds=1))


class Watched:
    """The part of a runtime that readiness uses: a process of the test's own, or a story told in states."""

    def __init__(self, states: Sequence[InstanceState] = (), engine: FakeEngine | None = None) -> None:
        self._states, self._engine = list(states), engine

    def state(self, _instance: Instance) -> InstanceState:
        if self._engine is not None:
            code = self._engine.process.poll()
            return InstanceState("running") if code is None else InstanceState("exited", code)
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def logs(self, _instance: Instance, lines: int = 200) -> str:
        return self._engine.process.log_tail(lines) if self._engine is not None else "CUDA error: no kernel image\n"


class Scripted:
    """Requests answered from a list; the last answer is repeated."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.sent: list[tuple[str, str, Mapping[str, Any] | None]] = []

    def send(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> Reply:
        self.sent.append((method, path, body))
        return self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]


REFUSED = Reply(0, error="nothing listens", refused=True)
TOKEN = Reply(200, json.dumps({"choices": [{"text": " Paris"}], "usage": {"completion_tokens": 1}}))
RUNNING = InstanceState("running")


def instance(port: int = 1, host: str = "127.0.0.1") -> Instance:
    return Instance("demo", "1", "candidate", host, port)


def ready(engine: FakeEngine, **readiness: Any) -> list[CheckResult]:
    plan = replace(PLAN, readiness=replace(PLAN.readiness, **readiness))
    return wait_ready(instance(engine.port), plan, Watched(engine=engine), SystemClock(), Silent())  # type: ignore[arg-type]


def climb(requests: Scripted, states: Sequence[InstanceState] = (RUNNING,), **readiness: Any) -> list[CheckResult]:
    plan = replace(PLAN, readiness=replace(PLAN.readiness, **readiness))
    clock = samples.FakeClock()
    return wait_ready(instance(), plan, Watched(states), clock, Silent(), requests)  # type: ignore[arg-type]


# --- readiness --------------------------------------------------------------------------------------------


def test_all_rungs_in_order(fake_engine: FakeEngines) -> None:
    checks = ready(fake_engine.start())
    assert [(check.id, check.status) for check in checks] == [
        ("ready.process", "pass"),
        ("ready.health", "pass"),
        ("ready.token", "pass"),
    ]


def test_loading_is_waited_for(fake_engine: FakeEngines) -> None:
    begun = time.monotonic()
    checks = ready(fake_engine.start("loading", "--load-seconds", "1.5"))
    assert checks[-1].status == "pass"
    assert time.monotonic() - begun > 1


def test_loading_that_takes_too_long_names_the_limit_and_the_last_answer(fake_engine: FakeEngines) -> None:
    check = ready(fake_engine.start("loading", "--load-seconds", "60"), load_seconds=1)[-1]
    assert (check.id, check.status) == ("ready.health", "fail")
    assert "not ready within 1 s" in check.summary
    assert check.actual == "last answer: HTTP 503: Loading model"
    assert any("listening on" in line for line in check.evidence)


def test_green_health_with_hanging_generation_is_not_ready(fake_engine: FakeEngines) -> None:
    begun = time.monotonic()
    checks = ready(fake_engine.start("hang"))
    assert [(check.id, check.status) for check in checks] == [("ready.health", "pass"), ("ready.token", "fail")]
    assert checks[-1].actual == "no whole answer within 1 s"
    assert time.monotonic() - begun < 20


def test_an_engine_that_exits_ends_the_wait_at_once(fake_engine: FakeEngines) -> None:
    begun = time.monotonic()
    check = ready(fake_engine.start("exit-at-start", wait=False), load_seconds=60)[-1]
    assert (check.id, check.status, check.actual) == ("ready.process", "fail", "exited with code 3")
    assert any("cannot load the model" in line for line in check.evidence)
    assert time.monotonic() - begun < 40


def test_an_engine_that_crashes_at_the_first_token_is_told_from_one_that_hangs(fake_engine: FakeEngines) -> None:
    checks = ready(fake_engine.start("crash"))
    assert checks[-1].status == "fail"
    assert checks[-1].id in ("ready.process", "ready.token")
    assert any("listening on" in line for line in checks[-1].evidence)


def test_an_engine_that_never_listens(fake_engine: FakeEngines) -> None:
    check = ready(fake_engine.start("no-listen", wait=False), load_seconds=1)[-1]
    assert (check.id, check.status) == ("ready.health", "fail")
    assert "nothing listens at 127.0.0.1" in check.actual


@pytest.mark.parametrize(
    ("fault", "summary", "actual"),
    [
        ("empty", "the engine answers, but generates nothing", "an answer without any token"),
        ("error", "the engine refuses to generate", "HTTP 500: internal error"),
    ],
)
def test_answers_that_are_not_a_token(fake_engine: FakeEngines, fault: str, summary: str, actual: str) -> None:
    check = ready(fake_engine.start(fault))[-1]
    assert (check.id, check.summary, check.actual) == ("ready.token", summary, actual)


def test_without_a_health_path_the_token_alone_counts() -> None:
    requests = Scripted(REFUSED, Reply(503), TOKEN)
    checks = climb(requests, health_path="")
    assert [check.id for check in checks] == ["ready.process", "ready.token"]
    assert [path for _, path, _ in requests.sent] == ["/v1/completions"] * 3


def test_an_engine_with_chat_only_is_asked_there() -> None:
    requests = Scripted(Reply(404), Reply(200, '{"choices": [{"message": {"content": "P"}}]}'))
    assert climb(requests, health_path="")[-1].status == "pass"
    assert [path for _, path, _ in requests.sent] == ["/v1/completions", "/v1/chat/completions"]


def test_an_engine_that_dies_while_loading_keeps_its_code() -> None:
    check = climb(Scripted(REFUSED), [RUNNING, RUNNING, InstanceState("exited", -9)], load_seconds=600)[-1]
    assert check.summary == "the engine ended with code -9 before it was ready"
    assert check.evidence == ("CUDA error: no kernel image",)


def test_a_token_without_text_still_counts() -> None:
    reply = Reply(200, '{"choices": [{"text": ""}], "usage": {"completion_tokens": 1}}')
    assert climb(Scripted(reply), health_path="")[-1].status == "pass"


# --- smoke tests ------------------------------------------------------------------------------------------


def smoke(engine: FakeEngine, test: SmokeTest = samples.PARIS, **changes: Any) -> CheckResult:
    made = samples.manifest(PLAN, smoke=[replace(test, **changes)])
    (check,) = run_smoke(made, PLAN, instance(engine.port), SystemClock(), Silent())
    return check


def test_a_good_answer_passes_with_its_rate(fake_engine: FakeEngines) -> None:
    check = smoke(fake_engine.start(), concurrency=4)
    assert (check.id, check.status, check.actual) == ("smoke.capital", "pass", "The capital of France is Paris.")
    assert "4 answers good" in check.summary
    assert "tokens/s" in check.summary


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("garbage", "the same piece comes 64 times in a row"),
        ("empty", "nothing was generated"),
        ("wrong", "'paris' is not in the answer"),
        ("error", "HTTP 500: internal error"),
        ("hang", "no whole answer within 1 s"),
        ("crash", "the connection broke"),
    ],
)
def test_every_fault_is_named(fake_engine: FakeEngines, fault: str, found: str) -> None:
    check = smoke(fake_engine.start(fault), seconds=1)
    assert check.status == "fail"
    assert check.actual.startswith(found)
    assert check.remedy


@pytest.mark.parametrize("text", ["the the " * 40, "lol" * 30, "好" * 40, "ha ha ha " * 20, "a b c " * 30, "=" * 64])
def test_a_repeated_token_is_not_language(fake_engine: FakeEngines, text: str) -> None:
    check = smoke(fake_engine.start("none", "--answer", f"Paris {text}"))
    assert check.status == "fail"
    assert "times in a row" in check.actual


def test_words_that_must_not_come(fake_engine: FakeEngines) -> None:
    check = smoke(fake_engine.start(), reject=("as an ai",))
    assert check.status == "pass"
    check = smoke(fake_engine.start(), reject=("PARIS",), expect=())
    assert check.actual.startswith("'PARIS' must not be in the answer")


def test_the_engine_s_own_message_leads_to_the_cure() -> None:
    said = '{"message": "As of transformers v4.44, default chat template is no longer allowed", "code": 400}'
    made = samples.manifest(PLAN)
    (check,) = run_smoke(made, PLAN, instance(), samples.FakeClock(), Silent(), Scripted(Reply(400, said)))
    assert check.actual.startswith("HTTP 400: As of transformers v4.44")
    assert "chat_template.jinja" in check.remedy


@pytest.mark.parametrize(
    "said",
    ["CUDA error: unknown error", "no CUDA-capable device is detected", "Failed to initialize NVML: Unknown Error"],
)
def test_an_engine_that_loses_its_gpu_after_it_was_proven_is_named_and_comes_back_with_a_new_start(said: str) -> None:
    """As after `systemctl daemon-reload`: the process and its health stay, every generation fails until a restart."""
    good = Reply(200, '{"choices": [{"message": {"content": "Paris"}}]}')
    lost = Reply(500, json.dumps({"error": {"message": said}}))
    requests = Scripted(good, lost, good)
    found = [
        run_smoke(samples.manifest(PLAN), PLAN, instance(), samples.FakeClock(), Silent(), requests)[0]
        for _moment in ("proven", "after the reload", "after --start")
    ]
    assert [check.status for check in found] == ["pass", "fail", "pass"]
    assert said in found[1].actual and "airbundlectl --start" in found[1].remedy


def test_the_served_name_is_filled_in_and_every_answer_must_pass() -> None:
    good = '{"choices": [{"message": {"content": "Paris, of course"}}]}'
    requests = Scripted(Reply(200, good), Reply(200, good.replace("Paris", "Rome")), Reply(200, good))
    made = samples.manifest(PLAN, smoke=[replace(samples.PARIS, concurrency=3)])
    (check,) = run_smoke(made, PLAN, instance(), samples.FakeClock(), Silent(), requests)
    assert (check.status, check.summary) == ("fail", "capital: 1 of 3 answers not good")
    assert {body["model"] for _, _, body in requests.sent if body} == {"tiny"}


def test_no_smoke_tests_is_a_warning() -> None:
    (check,) = run_smoke(samples.manifest(PLAN, smoke=[]), PLAN, instance(), samples.FakeClock(), Silent())
    assert (check.id, check.status) == ("smoke.none", "warn")


def test_concurrent_requests_are_really_concurrent() -> None:
    together = threading.Barrier(3, timeout=5)

    class Meeting:
        def send(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> Reply:
            together.wait()
            return Reply(200, '{"choices": [{"text": "Paris it is"}]}')

    made = samples.manifest(PLAN, smoke=[replace(samples.PARIS, concurrency=3)])
    (check,) = run_smoke(made, PLAN, instance(), samples.FakeClock(), Silent(), Meeting())
    assert check.status == "pass"


# --- HTTP -------------------------------------------------------------------------------------------------


def test_a_proxy_in_the_environment_is_ignored(fake_engine: FakeEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine.start()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ready(engine)[-1].status == "pass"
    assert smoke(engine).status == "pass"


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost", ""])
def test_an_engine_bound_to_everything_is_asked_at_loopback(fake_engine: FakeEngines, host: str) -> None:
    engine = fake_engine.start()
    assert LoopbackRequests(host, engine.port).send("GET", "/health", None, 5).status == 200


def _serve(reply: Callable[[Any], None]) -> int:
    import socket

    server = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        connection, _ = server.accept()
        with connection, server:
            connection.recv(65536)
            reply(connection)

    threading.Thread(target=run, daemon=True).start()
    port: int = server.getsockname()[1]
    return port


def test_an_answer_that_trickles_ends_at_the_deadline() -> None:
    def trickle(connection: Any) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(50):
            try:
                connection.sendall(b"x")
            except OSError:
                return
            time.sleep(0.1)

    begun = time.monotonic()
    reply = LoopbackRequests("127.0.0.1", _serve(trickle)).send("GET", "/", None, 0.7)
    assert (reply.status, reply.error) == (0, "no whole answer within 0.7 s")
    assert time.monotonic() - begun < 20


def test_an_answer_cut_short_or_no_http_at_all_is_a_broken_connection() -> None:
    short = _serve(lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"))
    assert LoopbackRequests("127.0.0.1", short).send("GET", "/", None, 2).status == 0
    other = _serve(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH\r\n"))
    reply = LoopbackRequests("127.0.0.1", other).send("GET", "/", None, 2)
    assert (reply.status, reply.refused) == (0, False)


# --- pure parts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("!", 1),
        ("!" * 64, 64),
        ("ha ha ha", 3),
        ("The capital of France is Paris.", 2),
        ("    indented\n        more", 2),
        ("1 2 3 4 5", 1),
        ("Paris Paris paris", 3),
    ],
)
def test_longest_repeat(text: str, count: int) -> None:
    assert longest_repeat(text) <= max(count, 2) if count <= 2 else longest_repeat(text) == count


def test_generated_reads_the_shapes_that_engines_use() -> None:
    assert generated({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}) == generated(
        {"choices": [{"message": {"content": "a"}}], "usage": {"completion_tokens": 1}}
    )
    thinking = generated({"choices": [{"message": {"content": None, "reasoning_content": "hm"}}]})
    assert thinking is not None
    assert (thinking.text, thinking.tokens) == ("hm", None)
    for nothing in (None, [], {}, {"choices": []}, {"error": {}}):
        assert generated(nothing) is None


def test_log_patterns() -> None:
    patterns = (
        LogPattern("threads", r"n_threads = (?P<threads>\d+)", "fact", "threads used"),
        LogPattern("fallback", r"no usable GPU found", "warn", "the engine runs on the CPU", "install the driver"),
        LogPattern("eager", r"enforce_eager=True", "fail", "CUDA graphs are off", "drop the flag"),
        LogPattern("unseen", r"never", "fail", "not there"),
        LogPattern("broken", r"(", "fact", "not usable"),
    )
    log = "system_info: n_threads = 2\n"
    log += "\x1b[33mwarning: no usable GPU\x1b[0m found, ignored\nn_threads = 4\nenforce_eager=True\n"
    found = {check.id: check for check in scan_log(replace(PLAN, log_patterns=patterns), log)}
    assert set(found) == {"log.threads", "log.fallback", "log.eager", "log.broken"}
    assert found["log.threads"].status == "pass"
    assert found["log.threads"].actual == "threads=4"
    assert (found["log.fallback"].status, found["log.fallback"].remedy) == ("warn", "install the driver")
    assert found["log.fallback"].evidence == ("warning: no usable GPU found, ignored",)
    assert found["log.eager"].status == "fail"
    assert found["log.broken"].status == "warn"
