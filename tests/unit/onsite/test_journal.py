"""The journal survives what a crash does to a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.store.journal import KEPT, Journal
from airbundle_onsite.system import SystemClock


def _journal(folder: Path) -> Journal:
    return Journal(folder / "journal.jsonl", SystemClock())


def test_steps_are_there_for_the_next_process(tmp_path: Path) -> None:
    tx = _journal(tmp_path).begin("install", "demo", "v2", "v1", {"runtime": "venv"})
    tx.step("staging")
    left = _journal(tmp_path).unfinished()
    assert left is not None
    assert (left.op, left.version, left.previous, left.step) == ("install", "v2", "v1", "staging")
    assert left.facts == {"runtime": "venv"}


def test_a_closed_transaction_leaves_nothing_unfinished(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    for last in ("done", "undone"):
        tx = journal.begin("install", "demo", "v1", None, {})
        tx.step(last)
        assert journal.unfinished() is None


def test_a_torn_last_line_was_never_written(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    tx = journal.begin("install", "demo", "v1", None, {})
    path = tmp_path / "journal.jsonl"
    with path.open("ab") as file:
        file.write(b'{"tx": "1", "op": "inst')
    assert [entry.step for entry in journal.entries()] == ["begin"]
    tx.step("staging")
    assert [entry.step for entry in journal.entries()] == ["begin", "staging"]


def test_a_damaged_line_in_the_middle_is_reported_with_its_number(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    journal.begin("install", "demo", "v1", None, {})
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"\0\0\0\n" + path.read_bytes())
    with pytest.raises(IntegrityError, match="line 1"):
        journal.entries()


def test_finished_transactions_shrink_to_one_line_each(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    for number in range(3):
        tx = journal.begin("install", "demo", f"v{number}", None, {})
        for step in ("staging", "staged", "done"):
            tx.step(step)
    entries = journal.entries()
    assert len({entry.tx for entry in entries}) == len(entries) == 3 <= KEPT
    assert all(entry.closed for entry in entries)


def test_the_hook_sees_both_sides_of_each_line(tmp_path: Path) -> None:
    seen: list[str] = []
    journal = Journal(tmp_path / "journal.jsonl", SystemClock(), seen.append)
    journal.begin("install", "demo", "v1", None, {}).step("staging")
    assert seen == ["before begin", "begin", "before staging", "staging"]
