"""From contacts to attempts, from steps to a report, and from a report to an error that says who asked for what."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from airbundle.rehearse import attempts
from airbundle.rehearse.notebook import LineWriter, Notebook, read_line
from airbundle.rehearse.report import RehearsalFailed, RehearsalReport, Step, report_text
from airbundle.rehearse.run import failure
from airbundle.rehearse.sinkhole import Asker, Contact
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import decode_json, encode
from airbundle_onsite.errors import ExitCode
from airbundle_onsite.system import Silent

ENGINE = Asker(7, ("/tmp/x/venv/bin/python", "serve.py"))
OTHER = Asker(8, ("curl", "huggingface.co"))
REPORT = RehearsalReport(
    report_version=1,
    name="demo",
    version="v1",
    parts={"payload.tar.000": "0" * 64},
    runtime="venv",
    isolation="a room",
    passed=True,
    steps=(Step("verify", "pass", "7 checks", 1.0), Step("install", "pass", "answers", 2.0)),
)


def contact(name: str, kind: str = "dns", *, at: float = 100.0, asker: Asker = ENGINE, **more: object) -> Contact:
    values: dict[str, object] = {"address": "198.19.0.1", "port": 53, "detail": "", **more}
    return Contact(at=at, kind=kind, name=name, asker=asker, **values)  # type: ignore[arg-type]


def gather(*contacts: Contact, allow: tuple[str, ...] = (), own: tuple[str, ...] = ()) -> list[attempts.Attempt]:
    noted = [(each, "install") for each in contacts]
    return list(attempts.gather(noted, began=90.0, allow=allow, own_names=own, shorten="/tmp/x/"))


def test_tries_for_one_target_by_one_process_are_one_attempt():
    first, second = gather(
        contact("huggingface.co", at=102.5, detail="AAAA"),
        contact("huggingface.co", "tcp", at=103, port=443, detail="TLS"),
        contact("huggingface.co", at=101.25, detail="A"),
        contact("huggingface.co", at=104, asker=OTHER),
        contact("huggingface.co", "tcp", at=105, port=443, detail="TLS"),
    )
    assert (first.target, first.kind, first.count, first.ports) == ("huggingface.co", "name", 4, ("443/tcp",))
    assert first.details == ("A", "AAAA", "TLS")
    assert (first.at, first.seconds, first.step) == ("1970-01-01T00:01:41Z", 11.25, "install")
    assert (first.pid, first.argv) == (7, ("venv/bin/python", "serve.py"))
    assert (second.argv, second.count, second.ports) == (("curl", "huggingface.co"), 1, ())


def test_an_address_nobody_asked_the_name_of_stands_for_itself():
    (found,) = gather(contact("", "udp", address="203.0.113.7", port=123))
    assert (found.target, found.kind, found.ports, found.allowed) == ("203.0.113.7", "address", ("123/udp",), "")


@pytest.mark.parametrize(
    ("name", "allow", "allowed"),
    [
        ("stats.example.com", ("stats.example.com",), True),
        ("stats.example.com", ("STATS.example.com.",), True),
        ("stats.example.com", ("*.example.com",), True),
        ("example.com", ("*.example.com",), False),
        ("stats.example.com.evil.test", ("stats.example.com",), False),
        ("stats.example.com", (), False),
        ("builder7", (), True),
        ("localhost", (), True),
        ("1.2.0.192.in-addr.arpa", (), True),
    ],
)
def test_what_is_allowed(name, allow, allowed):
    (found,) = gather(contact(name), allow=allow, own=("Builder7", ""))
    assert bool(found.allowed) is allowed


def test_known_hosts_have_their_own_cure():
    said = "; ".join(attempts.cures(gather(contact("huggingface.co"), contact("cdn-lfs.hf.co"), contact("x.test"))))
    assert "HF_HUB_OFFLINE=1" in said
    assert said.count("[rehearsal] allow") == 1
    assert all(each.source.startswith("https://") for each in attempts.known_cures())


def test_the_error_names_who_asked_for_what_and_when():
    made = replace(REPORT, passed=False, attempts=tuple(gather(contact("huggingface.co"), contact("ok.test", at=101))))
    error = failure(made)
    assert isinstance(error, RehearsalFailed)
    assert error.exit_code == ExitCode.FETCH
    assert "demo-v1" in error.summary and "huggingface.co" in error.summary
    assert "process 7: venv/bin/python serve.py, at 1970-01-01T00:01:40Z" in error.details[0]
    assert '[rehearsal] allow = ["huggingface.co"]' in error.remedy
    assert error.report is made


@pytest.mark.parametrize(("code", "expected"), [(5, 5), (8, 8), (3, 3), (124, 1), (0, 1)])
def test_a_failed_step_gives_its_own_exit_code(code, expected):
    step = Step("install", "fail", "no answer", exit_code=code, evidence=("the engine died",))
    error = failure(replace(REPORT, passed=False, steps=(REPORT.steps[0], step)))
    assert error is not None
    assert error.exit_code == expected
    assert "install" in error.summary
    assert any("the engine died" in line for line in error.details)


def test_no_error_when_it_passed():
    assert failure(REPORT) is None


def test_the_text_says_everything():
    checks = (CheckResult("log.x", "warn", "fell back to the CPU"), CheckResult("log.y", "pass", "fine"))
    steps = (*REPORT.steps, Step("log", "warn", "9 lines", checks=checks))
    allowed = gather(contact("stats.test"), allow=("stats.test",))
    text = report_text(replace(REPORT, steps=steps, attempts=tuple(allowed), not_rehearsed=("a start",)))
    for part in ("demo-v1", "fell back to the CPU", "stats.test (allowed by 'stats.test')", "not rehearsed: a start"):
        assert part in text
    assert "passed" in text and "fine" not in text
    assert "nothing was asked" in report_text(REPORT)


def test_a_report_is_read_again():
    made = replace(REPORT, attempts=tuple(gather(contact("a.test", "tcp", port=443, detail="TLS"))))
    assert decode_json(RehearsalReport, encode(made), "rehearsal.json") == made


def test_what_is_sent_line_by_line_arrives():
    stream, notebook = io.StringIO(), Notebook(Silent())
    writer = LineWriter(stream)
    writer.begin("install", "install it")
    writer.heard(contact("a.test", "tcp", port=443))
    writer.done(replace(REPORT.steps[1], checks=(CheckResult("x", "warn", "w"),)))
    writer.left_out("a start")
    for line in stream.getvalue().splitlines():
        assert json.loads(line)
        read_line(line, notebook)
    assert notebook.contacts == [(contact("a.test", "tcp", port=443), "install")]
    assert [step.checks[0].id for step in notebook.steps] == ["x"]
    assert notebook.not_rehearsed == ["a start"]
