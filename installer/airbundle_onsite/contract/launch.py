"""LaunchPlan: how an engine is started, said so that the site half need not know the engine."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, Optional

from airbundle_onsite.contract.record import record

RuntimeKind = Literal["docker", "venv"]

PLACEHOLDERS = frozenset(
    {
        "python",  # interpreter of the runtime (venv's python, or python3 inside the container)
        "site",  # directory of the installed wheels, as the engine sees it
        "model",  # the model's directory, as the engine sees it
        "models",  # the directory that holds every model of the bundle by its served name, as the engine sees it
        "config",  # the release's config/ directory, as the engine sees it
        "state",  # a writable directory that outlives restarts (caches), as the engine sees it
        "host",  # address the engine binds to
        "port",  # port the engine binds to
        "served_name",  # the model's name in the API
        "threads",  # physical CPU cores to use
    }
)
"""The closed set of ``{names}`` allowed in `LaunchPlan.argv` and `LaunchPlan.env` values."""


@record
class Mount:
    """One more directory of the release shown to a container, besides the model and config.

    Attributes:
        source: path inside the release directory.
        target: absolute path inside the container.
        read_only: whether the container may write there.
    """

    source: str
    target: str
    read_only: bool = True


@record
class PlanNeeds:
    """What a host must have for this plan; the first plan of the manifest whose needs are met is taken.

    Attributes:
        gpus: number of GPUs used; 0 for a CPU plan.
        gpu_memory: bytes of memory needed on each of them.
        memory: bytes of host memory needed.
        capability: lowest CUDA compute capability, e.g. ``"8.0"``; empty when no GPU is used.
        architectures: compute capabilities the engine holds code for, as torch spells them: ``8.0``, ``9.0a``
            (that one alone), ``12.0+PTX`` (that one and later ones); empty when unknown.
        cpu_flags: CPU flags as in /proc/cpuinfo.
        python: version specifier such as ``">=3.10"`` for the venv runtime; empty for docker.
    """

    gpus: int = 0
    gpu_memory: int = 0
    memory: int = 0
    capability: str = ""
    architectures: tuple[str, ...] = ()
    cpu_flags: tuple[str, ...] = ()
    python: str = ""


@record
class Readiness:
    """The readiness ladder: process up, health path answers 200, one token is generated.

    Attributes:
        health_path: HTTP path that answers 200 when loaded; empty to skip that rung.
        load_seconds: how long loading may take, start to first generated token.
        request_seconds: how long one generation may take.
    """

    health_path: str = "/health"
    load_seconds: int = 600
    request_seconds: int = 60


@record
class LogPattern:
    """A line of the engine's log that matters.

    Attributes:
        id: stable name, e.g. ``llama.cpu-fallback``.
        regex: searched in each line; named groups are reported as found values.
        level: ``fact`` reports the value; ``warn`` and ``fail`` mean a silent downgrade.
        meaning: sentence for a person.
        remedy: what to change.
        at_least: with it a line matters only when the number in its first named group, which may have commas, is lower.
    """

    id: str
    regex: str
    level: Literal["fact", "warn", "fail"]
    meaning: str
    remedy: str = ""
    at_least: Optional[int] = None


@record
class Flag:
    """Why a flag has its value: for people and for `plan`; the value itself stands in argv or env."""

    name: str
    value: str
    reason: str
    source: str = ""


@record
class Knob:
    """A value that the site may tune.

    Attributes:
        flag: the argv flag it changes.
        values: candidates, in the order to try.
        goal: what it trades.
    """

    flag: str
    values: tuple[str, ...]
    goal: str = ""


@record
class LaunchPlan:
    """How to start one engine on one class of hosts.

    Attributes:
        id: unique in the manifest, e.g. ``cpu``.
        engine: engine's name, for people only.
        engine_version: for people only.
        runtime: which runtime starts it.
        argv: command with ``{placeholders}`` from `PLACEHOLDERS`. For docker it replaces the image's
            entry point and command.
        model: served_name of the model it serves.
        image: name of the image (as in `ImageEntry.name`) for docker; None for venv.
        wheels: whether the bundle's wheels are installed first: into a virtual environment for venv, into a
            directory mounted at ``{site}`` and put on PYTHONPATH for docker.
        env: environment variables; values may hold placeholders.
        mounts: further mounts for docker.
        gpus: ``"none"`` or ``"all"`` or a count as text.
        shm_bytes: size of /dev/shm in a container; 0 leaves the default.
        ipc_host: share the host's IPC namespace.
        port: port the engine listens on inside a container; ignored for venv.
        needs: see `PlanNeeds`.
        readiness: see `Readiness`.
        log_patterns: see `LogPattern`.
        knobs: see `Knob`.
        flags: reasons for the flags chosen.
    """

    id: str
    engine: str
    engine_version: str
    runtime: RuntimeKind
    argv: tuple[str, ...]
    model: str
    image: Optional[str] = None
    wheels: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    gpus: str = "none"
    shm_bytes: int = 0
    ipc_host: bool = False
    port: int = 8000
    needs: PlanNeeds = PlanNeeds()
    readiness: Readiness = Readiness()
    log_patterns: tuple[LogPattern, ...] = ()
    knobs: tuple[Knob, ...] = ()
    flags: tuple[Flag, ...] = ()

    def __post_init__(self) -> None:
        for text in (*self.argv, *self.env.values()):
            unknown = _names(text) - PLACEHOLDERS
            if unknown:
                raise ValueError(f"launch plan {self.id!r}: unknown placeholder {sorted(unknown)} in {text!r}")
        if (self.runtime == "docker") != (self.image is not None):
            raise ValueError(f"launch plan {self.id!r}: an image is for the docker runtime, and required there")


def _names(text: str) -> set[str]:
    try:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; write literal braces as {{{{ and }}}}") from error


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace placeholders; ``{{`` and ``}}`` are literal braces."""
    return text.format_map(dict(values))


@record
class SmokeTest:
    """One request whose answer proves that the model really answers.

    Attributes:
        id: unique in the manifest.
        path: HTTP path, e.g. ``/v1/chat/completions``.
        body: JSON body; the string ``{served_name}`` as value of ``model`` is replaced.
        expect: regular expressions that must be found in the generated text, ignoring case.
        reject: regular expressions that must not be found.
        min_chars: shortest acceptable generated text.
        max_repeat: longest acceptable run of one repeated token-like word or character.
        concurrency: how many times the request is sent at once; every answer must pass.
        seconds: deadline for each answer.
    """

    id: str
    path: str
    body: Mapping[str, Any]
    expect: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    min_chars: int = 1
    max_repeat: int = 16
    concurrency: int = 1
    seconds: int = 120
