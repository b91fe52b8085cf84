"""The small language of conditions, and the data files that are written in it."""

from __future__ import annotations

import pytest
from packaging.version import Version

from airbundle.choose.conditions import holds, names
from airbundle.choose.rules import rule_engines, rule_file
from airbundle.choose.situation import NAMES, filled
from airbundle.choose.table import row_for, settle_workload, table, workload_names
from airbundle.choose.traps import all_traps
from airbundle.engines.facts import engine_facts, known_engines
from airbundle_onsite.errors import UsageError

FACTS = {
    "capability": Version("7.5"),
    "gpus": 2,
    "link": "pcie",
    "driver": None,
    "latent": False,
    "cuda": Version("13.0"),
}
EXTRA = {"layout", "copies_ending"}  # texts that only templates use


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("", True),
        ("gpus > 1 and link != 'nvlink'", True),
        ("gpus > 1 and not link == 'pcie'", False),
        ("capability < '8.0'", True),
        ("capability < '10.0'", True),  # as versions, not as texts
        ("'7.0' <= capability < '7.6'", True),
        ("link in ('pcie', 'none')", True),
        ("link not in ('pcie',)", False),
        ("gpus * 2 == 4 or latent", True),
        ("driver < '580'", False),  # not known: nothing is claimed
        ("driver >= '580'", False),
        ("driver == None", True),
        ("driver != None", False),
        ("cuda > driver", False),
    ],
)
def test_a_condition(condition: str, expected: bool) -> None:
    assert holds(condition, FACTS) is expected


@pytest.mark.parametrize(
    "condition", ["memory > 1", "__import__('os')", "gpus.real", "gpus if latent else 1", "gpus is 2"]
)
def test_what_is_no_condition(condition: str) -> None:
    with pytest.raises(ValueError, match=r"no fact|more than a condition|compare"):
        holds(condition, FACTS)


def test_a_template_leaves_groups_of_patterns_alone() -> None:
    assert filled(r"<gpus> (?P<link>\w+) <unknown>", {"gpus": "2", "link": "pcie"}) == r"2 (?P<link>\w+) <unknown>"


def conditions() -> list[tuple[str, str]]:
    found = [(f"row {row.workload}", row.when) for row in table().row]
    found += [(f"trap {trap.id}", trap.when) for trap in all_traps()]
    for engine in rule_engines():
        found += [(f"rule {engine} {rule.flag}", rule.when) for rule in rule_file(engine).rule]
        found += [(f"expect {engine} {item.id}", item.when) for item in rule_file(engine).expect]
    return found


@pytest.mark.parametrize(("where", "condition"), conditions())
def test_every_condition_names_facts_there_are(where: str, condition: str) -> None:
    assert names(condition) <= NAMES, where


def test_every_rule_fills_in_facts_there_are() -> None:
    known = dict.fromkeys(NAMES | EXTRA, "x")
    for engine in rule_engines():
        for rule in rule_file(engine).rule:
            text = filled(rule.value + rule.reason, known)
            assert "<" not in text, (engine, rule.flag)
            assert rule.reason, (engine, rule.flag)
            assert rule.source, (engine, rule.flag)
    for trap in all_traps():
        assert "<" not in filled(trap.symptom + trap.found + trap.needed, known), trap.id
        assert trap.cure, trap.id
        assert trap.source, trap.id


def test_the_last_row_of_each_workload_always_holds() -> None:
    for workload in table().workload:
        rows = [row for row in table().row if row.workload == workload.name]
        assert rows[-1].when == "", workload.name


def test_the_table_names_engines_there_are() -> None:
    named = {name for row in table().row for name in row.order}
    assert named == set(known_engines())
    assert all(engine_facts(name).role for name in named)


@pytest.mark.parametrize(
    ("workload", "concurrency", "gpus", "name"),
    [
        ("chat", 1, 1, "interactive"),
        ("chat", 5, 1, "concurrent"),
        ("rag", 5, 1, "shared-prefix"),
        ("structured", 1, 1, "agents"),
        ("offline", 1, 1, "batch"),
        ("concurrent", 9, 0, "cpu"),
        ("cpu", 9, 4, "cpu"),
    ],
)
def test_a_workload_is_settled(workload: str, concurrency: int, gpus: int, name: str) -> None:
    assert settle_workload(workload, concurrency=concurrency, gpus=gpus)[0] == name


def test_an_unknown_workload_is_refused_with_a_near_miss() -> None:
    with pytest.raises(UsageError, match=r"no workload 'agnets' \(did you mean 'agents'"):
        settle_workload("agnets", concurrency=1, gpus=1)
    assert "chat" in workload_names()


@pytest.mark.parametrize(
    ("workload", "facts", "first"),
    [
        ("interactive", {"ttft_ms": 80, "gpus": 1}, "tensorrt-llm"),
        ("interactive", {"ttft_ms": 80, "gpus": 2}, "vllm"),
        ("interactive", {"ttft_ms": 0, "gpus": 1}, "vllm"),
        ("agents", {}, "sglang"),
        ("multi-step", {}, "sglang"),
        ("shared-prefix", {}, "sglang"),
        ("batch", {}, "vllm"),
        ("long-context", {}, "vllm"),
        ("agents", {"format": "gguf"}, "llama.cpp"),
        ("cpu", {"gpus": 0}, "llama.cpp"),
    ],
)
def test_the_table_puts_first(workload: str, facts: dict[str, object], first: str) -> None:
    known = {"format": "safetensors", "gpus": 1, "ttft_ms": 0, "concurrency": 10, **facts}
    assert row_for(workload, known).order[0] == first  # type: ignore[arg-type]
