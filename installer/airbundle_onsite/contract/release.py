"""ReleaseRecord: what the site knows of an installed release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, Optional

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import record


@record
class ReleaseRecord:
    """Written into a release's directory when it is whole, and rewritten when its state changes.

    Attributes:
        name, version, sequence: from the manifest.
        manifest_sha256: of the bundle.json it was installed from.
        installed: seconds since the epoch.
        plan: id of the launch plan taken.
        runtime: ``docker`` or ``venv``.
        host, port: where it answers when active.
        proven: seconds since the epoch of the last passed smoke run; 0 when never.
        smoke: the results of that run.
        instance: what the runtime needs to find what it started (container id, names, pids).
        previous: the version that was active before this one; what `--rollback` goes back to.
    """

    name: str
    version: str
    sequence: int
    manifest_sha256: str
    installed: int
    plan: str
    runtime: Literal["docker", "venv"]
    host: str
    port: int
    proven: int = 0
    smoke: tuple[CheckResult, ...] = ()
    instance: Mapping[str, Any] = field(default_factory=dict)
    previous: Optional[str] = None
