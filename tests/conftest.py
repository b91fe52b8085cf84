"""Loads the real parts, and settles the environment before any test module is imported."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from parts import ambient

pytest_plugins = ["parts.fixtures", "parts.spread"]

# Here and not in a fixture: clients read these when they are imported.
_HOME = Path(tempfile.mkdtemp(prefix="ab-tests-"))
_SETTLED = ambient.settled(os.environ, _HOME)
for _name in set(os.environ) - set(_SETTLED):
    del os.environ[_name]
os.environ.update(_SETTLED)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what is started here is sent some, and inherits what nohup has set


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes what the run left in its temporary home."""
    shutil.rmtree(_HOME, ignore_errors=True)
