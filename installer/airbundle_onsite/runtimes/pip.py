"""How a bundle's wheels are installed: with the bundle's own pip, from its own files, by hash, and nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Optional

from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.runtimes.failures import EngineError
from airbundle_onsite.runtimes.values import PROXIES

_CREDENTIAL = re.compile(r"(?i)token|secret|passw|credential|(api|access|private|auth)_?key")


def pip_wheel(manifest: BundleManifest) -> str:
    """Path of pip's own wheel inside the release. Raises EngineError when the bundle has none."""
    for wheel in manifest.wheels:
        if wheel.name == "pip":
            return wheel.path
    raise EngineError(
        f"bundle {manifest.name}-{manifest.version} has wheels, but no wheel of pip to install them with",
        remedy="build the bundle again with this version of airbundle",
    )


def install_argv(python: str, pip: PurePath, wheels: PurePath, target: Optional[PurePath] = None) -> list[str]:
    """The command that installs ``requirements.txt`` from `wheels`.

    Args:
        python: interpreter to install with.
        pip: pip's wheel; it runs from inside the file, so the host needs no pip of its own.
        wheels: directory with the wheels and their requirements.txt.
        target: install there; None for the interpreter's own environment.
    """
    return [
        python,
        *("-I", str(pip / "pip"), "install"),
        *("--isolated", "--no-index", "--no-cache-dir", "--disable-pip-version-check", "--no-input"),
        *("--only-binary=:all:", "--require-hashes", "--progress-bar=off", "--no-warn-script-location"),
        *(() if target is None else ("--target", str(target))),
        *("--find-links", str(wheels), "--requirement", str(wheels / "requirements.txt")),
    ]


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without anything that could change what pip or Python do, and with pip's files switched off.

    Without credentials too: an engine that runs for months is not to hold the token of whoever installed it.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("PIP_", "PYTHON", "VIRTUAL_ENV", "CONDA_", "UV_"))
        and name not in PROXIES
        and not _CREDENTIAL.search(name)
    }
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PYTHONNOUSERSITE": "1", "PYTHONUTF8": "1"}
