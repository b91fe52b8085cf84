"""`airbundle plan` of every manifest that comes with the project, from a lock; hubs and registries have stand-ins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parts import journeys
from parts.manifests import MANIFESTS, StandIns


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> StandIns:
    return StandIns(tmp_path_factory.mktemp("stand-ins"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_plan_says_sources_bytes_cache_parts_and_disk(manifest: Path, stand_ins: StandIns, tmp_path: Path) -> None:
    words = [manifest, "--lock", tmp_path / "lock.json", *stand_ins.words(manifest)]
    words += ["--cache", journeys.store.root() / "airbundle"]
    journeys.airbundle("lock", *words).check()
    said = journeys.airbundle("plan", *words).check()
    assert "locking again" not in said.err
    for line in (
        r"^To fetch +",
        r"^Payload +about .* in \d+ part",
        r"^Peak disk +about .* here",
        r"at the site",
        r"^Launch plan ",
    ):
        assert re.search(line, said.out, re.M), f"no {line!r} in\n{said.out}"
    assert re.search(r"^  model .*(in the cache|to fetch)", said.out, re.M)
    told = journeys.airbundle("plan", *words, "--json").check().json
    assert told["payload"] > 0 and sum(told["parts"]) == told["payload"] and told["peak"]
