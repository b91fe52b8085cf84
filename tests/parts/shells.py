"""Runs a bundle's install.sh under real shells, with as much or as little around it as a test wants."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from parts import need

SHELLS = ("bash", "dash", "busybox sh")
"""POSIX shells that sites have; dash stands for Debian's sh, busybox for small systems."""

_TOOLS = ("sha256sum", "tr", "cut", "cat", "bash", "dash", "busybox", "env", "sh")


def shell(name: str) -> list[str]:
    """The words that start this shell; the test fails or is skipped when it is missing."""
    program, *applet = name.split()
    return [need.program(program), *applet]


def install_sh(
    bundle: Path,
    *words: str,
    shell_name: str = "bash",
    python: str | None = sys.executable,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    script: str | None = None,
    umask: int = -1,
) -> subprocess.CompletedProcess[str]:
    """Run ``SHELL BUNDLE/install.sh WORDS``.

    Args:
        python: interpreter named by AIRBUNDLE_PYTHON; None leaves that unset.
        cwd: working directory; the bundle's by default.
        env: replaces the environment, but for AIRBUNDLE_PYTHON.
        script: how to name install.sh; its absolute path by default.
        umask: -1 leaves it.
    """
    environment = dict(os.environ if env is None else env)
    environment.pop("AIRBUNDLE_PYTHON", None)
    if python is not None:
        environment["AIRBUNDLE_PYTHON"] = python
    return subprocess.run(
        [*shell(shell_name), script or str(bundle / "install.sh"), *words],
        cwd=cwd or bundle,
        env=environment,
        umask=umask,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def bare_path(directory: Path) -> str:
    """A PATH that holds the few tools install.sh uses, and no Python."""
    directory.mkdir(parents=True, exist_ok=True)
    for tool in _TOOLS:
        found = shutil.which(tool, path=need.SEARCH)
        if found and not (directory / tool).exists():
            (directory / tool).symlink_to(found)
    return str(directory)
