"""The seam between the deployment of a release and what runs it.

A runtime is one module in this package with a module-level ``create(environment) -> Runtime``; `discover`
finds it. It keeps no state of its own: what it started is found again by deterministic names and labels, so
that a run after a crash can clean up what the crashed one began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, Optional, Protocol

from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.launch import LaunchPlan, RuntimeKind
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import record
from airbundle_onsite.system import Clock, Runner, Talk


@record
class Environment:
    """What a runtime may use of the world.

    Attributes:
        root: installation root.
        runner, clock, talk: the injected rim.
        docker_host: ``unix://…`` or empty for the default; DOCKER_HOST as the CLI read it.
    """

    root: Path
    runner: Runner
    clock: Clock
    talk: Talk
    docker_host: str = ""


@record
class ReleaseFiles:
    """A whole release on disk, as a runtime sees it.

    Attributes:
        directory: the release directory, holding models/, wheels/, config/ as in the payload.
        manifest: its verified manifest.
        plan: the launch plan taken.
    """

    directory: Path
    manifest: BundleManifest
    plan: LaunchPlan


@record
class Instance:
    """Something started. `slot` is ``service``, or ``candidate`` while a new release is proven beside the old one.

    Attributes:
        name, version: of the release.
        host, port: where it listens on this machine.
        details: what the runtime needs to find it again; JSON values only.
    """

    name: str
    version: str
    slot: Literal["service", "candidate"]
    host: str
    port: int
    details: Mapping[str, Any] = field(default_factory=dict)


@record
class InstanceState:
    """What something started does now.

    Attributes:
        status: ``running``, ``paused`` (it holds its port and its memory, and does nothing), ``exited`` (with `code`,
            when known) or ``absent``.
        code: the exit code, negative for a signal.
        problem: what is wrong although it runs; empty for nothing.
        life: tells this run of the engine from the one before it and the one after it; empty when it does not run.
        age: seconds since that run began; None when it is not known.
    """

    status: Literal["running", "paused", "exited", "absent"]
    code: Optional[int] = None
    problem: str = ""
    life: str = ""
    age: Optional[float] = None

    @property
    def up(self) -> bool:
        """Whether it holds its port and its memory."""
        return self.status in ("running", "paused")


@record
class Blob:
    """A verified file of the payload's images/, streamed.

    Attributes:
        path: inside the payload, e.g. ``images/blobs/sha256/<hex>``.
        size: bytes.
        chunks: its content; must be consumed before the next blob is asked for.
    """

    path: str
    size: int
    chunks: Iterable[bytes]


class Runtime(Protocol):
    """How releases are run. Every method raises a subclass of AirbundleError on failure."""

    kind: RuntimeKind

    def preflight(self, manifest: BundleManifest, plan: LaunchPlan, fingerprint: Fingerprint) -> list[CheckResult]:
        """Whether this host can run the plan; changes nothing."""
        ...

    def load_images(self, manifest: BundleManifest, blobs: Iterator[Blob]) -> None:
        """Take the images in as they stream by; with no images listed, does nothing. All blobs are consumed."""
        ...

    def has_images(self, manifest: BundleManifest) -> list[str]:
        """Names of the manifest's images that are not there; an empty list when all are."""
        ...

    def prepare(self, release: ReleaseFiles) -> None:
        """Install wheels and whatever else precedes a start. Idempotent; begins afresh after a crash."""
        ...

    def start(self, release: ReleaseFiles, *, slot: Literal["service", "candidate"], host: str, port: int) -> Instance:
        """Start the plan detached, so that it outlives this process and is restarted when it dies.

        Replaces whatever this release had in the same slot. Returns without waiting for readiness.
        """
        ...

    def find(self, name: str, version: str, slot: Literal["service", "candidate"]) -> Optional[Instance]:
        """The instance in that slot, running or not, or None."""
        ...

    def state(self, instance: Instance) -> InstanceState: ...

    def logs(self, instance: Instance, lines: int = 200) -> str:
        """The end of the engine's log."""
        ...

    def stop(self, instance: Instance) -> None:
        """Stop it and keep it from being restarted; what is needed to start again stays (images are held)."""
        ...

    def remove(self, instance: Instance) -> None:
        """Stop it and remove every trace of it except the release's files."""
        ...

    def sweep(self, kept: Sequence[BundleManifest]) -> list[str]:
        """Remove what this runtime put outside the root, as images, and neither `kept` nor anybody else needs.

        Returns:
            What went, for people: ``image engine:1``.
        """
        ...
