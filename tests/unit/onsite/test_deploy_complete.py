"""What is looked for before anything is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from airbundle_onsite.contract.release import ReleaseRecord
from airbundle_onsite.deploy.activate import require_complete
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.store.releases import StagedRelease
from unit.onsite.hosts import image, manifest


class Engine:
    """A container engine that has lost images."""

    def __init__(self, *lost: str) -> None:
        self.lost = list(lost)

    def has_images(self, _manifest: object) -> list[str]:
        return self.lost


class Whole:
    """A store in which every file is there."""

    def missing_files(self, _release: object) -> list[str]:
        return []


class Host:
    """A site with that store and that engine."""

    def __init__(self, engine: Engine) -> None:
        self.store, self._engine = Whole(), engine

    def runtime(self, kind: str) -> Engine:
        assert kind == "docker"
        return self._engine


def release(tmp_path: Path) -> StagedRelease:
    made: dict[str, Any] = {"name": "sample", "version": "1", "sequence": 1, "manifest_sha256": "0" * 64}
    made |= {"installed": 1, "plan": "main", "runtime": "docker", "host": "127.0.0.1", "port": 8000, "previous": None}
    return StagedRelease(tmp_path, manifest(runtime="docker", images=(image(),)), ReleaseRecord(**made))


def test_an_image_that_was_pruned_is_named_and_nothing_is_stopped(tmp_path: Path) -> None:
    require_complete(cast(Site, Host(Engine())), release(tmp_path))
    with pytest.raises(IntegrityError, match="what runs was not touched") as caught:
        require_complete(cast(Site, Host(Engine("engine:1"))), release(tmp_path))
    assert caught.value.details == ("image engine:1",)
    assert "from its bundle" in caught.value.remedy
