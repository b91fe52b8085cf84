"""What the documents say of each other is so: links lead somewhere, and every decision is in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
DECISIONS = CHECKOUT / "docs" / "decisions"
PAGES = sorted((*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    lost = [each for each in targets if "://" not in each and not (page.parent / each).exists()]
    assert lost == []


def test_every_decision_is_in_the_index_under_its_number_and_title() -> None:
    index = (DECISIONS / "README.md").read_text()
    for page in sorted(DECISIONS.glob("0*.md")):
        number, _, title = page.read_text().splitlines()[0].removeprefix("# ").partition(". ")
        assert int(number) == int(page.name[:4])
        assert f"{number}. [{title}]({page.name})" in index
