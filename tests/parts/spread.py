"""How the test files are spread over processes that run side by side.

A file stays together, for what its tests share. Those that use a docker engine all go to one process: it starts one
engine for them, and two engines never choose the same network for a container at the same moment.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

_DOCKER = re.compile(r'docker_engine|\bdocker\.running|real\([^)]*"docker"')


class _Spread(LoadFileScheduling):
    """By file, and the files with docker as if they were one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "docker" if _DOCKER.search(Path(self.config.rootpath, file).read_text(encoding="utf-8")) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Ours, whatever ``--dist`` says."""
    return _Spread(config, log)
