"""contents.html tells what a rehearsal showed, and first of all what it did not."""

from __future__ import annotations

import html

from airbundle.rehearse.report import Attempt, RehearsalReport, Step
from airbundle.review.page import render_contents
from airbundle_onsite.contract.checks import CheckResult
from parts import reviews

HOSTILE = "<script>alert(1)</script>"
REPORT = RehearsalReport(
    report_version=1,
    name="demo",
    version="v1",
    parts={},
    runtime="venv",
    isolation="cut in two",
    passed=True,
    steps=(
        Step(
            "verify", "pass", "86 checks of its bytes", checks=(CheckResult("verify.part", "pass", "not of interest"),)
        ),
        Step(
            "try.flags.gpu1",
            "pass",
            "it takes the flags",
            17.3,
            checks=(
                CheckResult("rehearsal.flags", "pass", "the parser takes --max-model-len"),
                CheckResult("rehearsal.engine-config", "skip", f"needs a GPU: {HOSTILE}"),
            ),
        ),
    ),
    attempts=(Attempt("stats.example", "name", allowed="allowed by 'stats.example'"),),
    not_rehearsed=("kernels: they need a GPU", HOSTILE),
    began=1_796_085_639,
    seconds=227.2,
    machine={"system": "Linux 6.1", "memory": "1"},
)


def page(rehearsal: RehearsalReport | None) -> str:
    lock = reviews.lock()
    return render_contents(lock, reviews.manifest(lock), reviews.INVENTORY, rehearsal=rehearsal).decode()


def test_what_was_not_rehearsed_is_said_before_what_was() -> None:
    text = page(REPORT)
    missing, flags = (
        text.index("Not rehearsed: kernels: they need a GPU."),
        text.index("the parser takes --max-model-len"),
    )
    assert missing < flags
    assert "86 checks of its bytes" in text and "not of interest" not in text
    assert "stats.example (allowed by" in html.unescape(text)
    assert "cut in two" in text and "system Linux 6.1" in text
    assert HOSTILE not in text and text.count(html.escape(HOSTILE)) == 2


def test_a_bundle_that_was_not_rehearsed_says_so() -> None:
    assert "This bundle was not rehearsed when it was built" in page(None)
    assert "This bundle was not rehearsed" not in page(REPORT)
