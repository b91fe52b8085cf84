"""BundleSpec: what the engineer asks for, in TOML under manifests/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from airbundle_onsite.contract.launch import RuntimeKind
from airbundle_onsite.contract.manifest import check_name, check_version
from airbundle_onsite.contract.record import record

ExtraRole = Literal["draft", "adapter", "projector", "vocabulary"]


@record
class BundleTable:
    """``[bundle]``. An empty version becomes ``YYYYMMDD-v1`` when the spec is locked."""

    name: str
    version: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.version:
            check_version(self.version)


@record
class TargetTable:
    """``[target]``: a profile by id, or the fingerprint file that came back from the site.

    Attributes:
        profile: id of a profile in profiles/.
        fingerprint: path of a fingerprint, relative to the spec.
        gpus: GPUs to use; 0 for what the profile says.
        python: version of the site's Python for the venv runtime, e.g. ``"3.11"``; empty for the builder's own.
    """

    profile: str = ""
    fingerprint: str = ""
    gpus: int = 0
    python: str = ""

    def __post_init__(self) -> None:
        if bool(self.profile) == bool(self.fingerprint):
            raise ValueError("name either profile or fingerprint, and not both")


@record
class ExtraTable:
    """``[[model.extra]]``: something that is packed beside the model, in its own directory.

    Attributes:
        role: ``draft`` a smaller model that guesses ahead · ``adapter`` a LoRA adapter · ``projector`` what turns
            images into tokens (mmproj) · ``vocabulary`` token tables that an engine would otherwise download.
        source, revision, file, allow, ignore, license: as in ``[model]``.
        served_name: its directory in the bundle, and an adapter's name in the API.
    """

    role: ExtraRole
    source: str
    served_name: str
    revision: str = ""
    file: str = ""
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    license: str = ""

    def __post_init__(self) -> None:
        _check_model(self.source, self.served_name)


@record
class ModelTable:
    """``[model]``.

    Attributes:
        source: ``hf:ORG/NAME``, ``modelscope:ORG/NAME``, ``pypi:PROJECT==VERSION``, ``url:https://…/FILE`` or
            ``local:PATH`` (relative to the spec).
        revision: branch, tag or commit for hf and modelscope; the lock pins the commit.
        served_name: the model's name in the API.
        file: for one-file models the file wanted inside the source (GGUF), or a glob pattern for it such as
            ``*Q4_K_M*``; empty to choose by format.
        allow, ignore: glob patterns on file names.
        license: overrides what the source says.
        trust_remote_code: what to do with a model that brings Python code: true packs it, pinned, and lets the engine
            run it; false leaves it out (the engine must know the model by itself); without it such a model is refused.
        extra: what is packed beside it.
    """

    source: str
    served_name: str
    revision: str = ""
    file: str = ""
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    license: str = ""
    trust_remote_code: bool | None = None
    extra: tuple[ExtraTable, ...] = ()

    def __post_init__(self) -> None:
        _check_model(self.source, self.served_name)
        names = [self.served_name, *(extra.served_name for extra in self.extra)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"served_name {twice[0]!r} is given to two of the models: each needs its own")


def _check_model(source: str, served_name: str) -> None:
    check_name(served_name)
    if ":" not in source:
        raise ValueError(f"source {source!r}: write hf:ORG/NAME, pypi:PROJECT==VERSION or local:PATH")


@record
class EngineTable:
    """``[engine]``: which inference engine, and which version of it (empty: what the image or the wheels hold)."""

    name: str
    version: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)


@record
class ImageTable:
    """``[image]``.

    Attributes:
        source: ``registry:HOST[:PORT]/REPOSITORY[:TAG|@DIGEST]`` or ``daemon:NAME[:TAG]``.
        name: plain ``repository:tag`` it is loaded under on the site; empty to derive it from the source.
        platform: ``linux/amd64`` and the like; empty for the profile's.
    """

    source: str
    name: str = ""
    platform: str = ""

    def __post_init__(self) -> None:
        if ":" not in self.source:
            raise ValueError(f"source {self.source!r}: write registry:HOST/REPOSITORY:TAG or daemon:NAME:TAG")


@record
class WheelsTable:
    """``[wheels]``.

    Attributes:
        requirements: requirement lines, as pip takes them.
        resolve: ``image`` resolves inside the image that is shipped; ``host`` with an interpreter on this machine.
        index: index URL; empty for the client's own default. Credentials come from netrc, never from here.
    """

    requirements: tuple[str, ...]
    resolve: Literal["host", "image"] = "host"
    index: str = ""


@record
class RuntimeTable:
    """``[runtime]``."""

    kind: RuntimeKind


@record
class ServingTable:
    """``[serving]``: context in tokens per request, concurrent requests, wanted time to first token, port."""

    context: int = 4096
    concurrency: int = 4
    ttft_ms: int = 0
    workload: str = "chat"
    host: str = "127.0.0.1"
    port: int = 8000


@record
class SmokeTable:
    """``[[smoke]]``: a question and what its answer must contain (regular expressions, case ignored)."""

    question: str
    expect: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    max_tokens: int = 48
    concurrency: int = 1
    id: str = ""


@record
class BundleSpec:
    """A whole spec. `gateway` and `monitoring` are read by the modules that render them."""

    bundle: BundleTable
    target: TargetTable
    model: ModelTable
    engine: EngineTable
    runtime: RuntimeTable
    image: ImageTable | None = None
    wheels: WheelsTable | None = None
    serving: ServingTable = ServingTable()
    smoke: tuple[SmokeTable, ...] = ()
    gateway: Mapping[str, Any] = field(default_factory=dict)
    monitoring: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.runtime.kind == "docker" and self.image is None:
            raise ValueError("runtime.kind is docker, so an [image] table is needed")
        if self.runtime.kind == "venv" and self.image is not None:
            raise ValueError("runtime.kind is venv, which uses no image: remove [image] or choose docker")
        if self.runtime.kind == "venv" and self.wheels is None:
            raise ValueError("runtime.kind is venv, so a [wheels] table with the engine's requirements is needed")
        if self.wheels is not None and self.wheels.resolve == "image" and self.image is None:
            raise ValueError('wheels.resolve is "image", so an [image] table is needed')
