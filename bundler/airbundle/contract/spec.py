"""BundleSpec: what the engineer asks for, in TOML under manifests/."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from airbundle_onsite.contract.launch import RuntimeKind
from airbundle_onsite.contract.names import check_name, check_version
from airbundle_onsite.contract.record import record

ExtraRole = Literal["draft", "adapter", "projector", "vocabulary"]
DowngradePolicy = Literal["warn", "fail"]


_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:=~^_-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?")


@record
class BundleTable:
    """``[bundle]``. An empty version becomes ``YYYYMMDD-v1`` when the spec is locked.

    Attributes:
        compress: ``weights`` to compress weights without loss where they shrink.
    """

    name: str
    version: str = ""
    description: str = ""
    compress: Literal["", "weights"] = ""

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
        driver: version of the site's GPU driver, when it is known to be newer than the profile's lowest.
        python: version of the site's Python for the venv runtime, e.g. ``"3.11"``; empty for the builder's own.
    """

    profile: str = ""
    fingerprint: str = ""
    gpus: int = 0
    driver: str = ""
    python: str = ""

    def __post_init__(self) -> None:
        if self.driver and not re.fullmatch(r"\d+(\.\d+){1,2}", self.driver):
            raise ValueError(f"driver {self.driver!r}: write a version such as 580.95.05, as nvidia-smi prints it")
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
class ImageBuildTable:
    """``[image.build]``: a base image made by the docker engine here, from a Dockerfile that is written for it.

    Attributes:
        base: what it stands on, as a source of images: ``registry:HOST/REPOSITORY:TAG`` and the like.
        packages: packages of the base's distribution, from its own archive (apt, dnf, microdnf or yum).
        pip: whether python3 and pip are wanted too.
        compiler: whether a C and C++ compiler and Python's headers are wanted too.
        env: environment variables of the image.
        user: user that its containers run as; empty for the base's.
        refresh: any text; another one builds anew what is in the cache, with the packages of that day.
    """

    base: str
    packages: tuple[str, ...] = ()
    pip: bool = False
    compiler: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    refresh: str = ""

    def __post_init__(self) -> None:
        if ":" not in self.base:
            raise ValueError(f"base {self.base!r}: write registry:HOST/REPOSITORY:TAG, or another source of images")
        odd = [name for name in self.packages if not _PACKAGE.fullmatch(name)]
        odd += [name for name, value in self.env.items() if not _VARIABLE.fullmatch(name) or not value.isprintable()]
        odd += [self.user] if self.user and not _USER.fullmatch(self.user) else []
        if odd:
            raise ValueError(f"{odd[0]!r} cannot stand in a Dockerfile as a package, variable or user")


@record
class ImageTable:
    """``[image]``.

    Attributes:
        source: ``registry:HOST[:PORT]/REPOSITORY[:TAG|@DIGEST]``, ``daemon:NAME[:TAG]``, ``oci:PATH[:NAME]`` (a
            layout, as directory or tar) or ``docker-archive:PATH[:NAME:TAG]``.
        name: ``repository:tag`` it is loaded under on the site; empty to derive it from the source.
        platform: ``linux/amd64`` and the like; empty for the profile's.
        mirrors: for registry, where to look first: ``HOST[:PORT][/PREFIX]`` each, https unless it is on loopback or
            begins with ``http://``.
        insecure: for registry, whether it may be spoken to without encryption. Loopback always may.
        build: in place of source, an image made here.
    """

    source: str = ""
    name: str = ""
    platform: str = ""
    mirrors: tuple[str, ...] = ()
    insecure: bool = False
    build: ImageBuildTable | None = None

    def __post_init__(self) -> None:
        if bool(self.source) == (self.build is not None):
            raise ValueError("name either source or an [image.build] table, and not both")
        if self.source and ":" not in self.source:
            raise ValueError(f"source {self.source!r}: write registry:HOST/REPOSITORY:TAG or daemon:NAME:TAG")
        if (self.mirrors or self.insecure) and not (self.source or (self.build and self.build.base) or "").startswith(
            "registry:"
        ):
            raise ValueError("mirrors and insecure are for a registry: source")

    @property
    def scheme(self) -> str:
        """Scheme of the source that locks it."""
        return self.source.partition(":")[0] if self.build is None else "build"


@record
class IndexTable:
    """``[[wheels.indexes]]``: a further package index, and the packages that come from it and from nowhere else.

    Attributes:
        name: for people and the lock.
        url: of the index; credentials come from netrc, never from here.
        packages: names of the packages bound to it.
    """

    name: str
    url: str
    packages: tuple[str, ...]


@record
class WheelsTable:
    """``[wheels]``.

    Attributes:
        requirements: requirement lines, as pip takes them.
        resolve: ``image`` resolves inside the image that is shipped; ``host`` with an interpreter on this machine;
            ``cross`` for any target.python and profile, running nothing of the target.
        index: index URL; empty for the client's own default. Credentials come from netrc, never from here.
        indexes: further indexes, each with the packages bound to it.
        constraints: further limits on versions, as requirement lines; they ask for nothing by themselves.
        prereleases: names of packages of which a pre-release may be taken.
        before: take nothing that was uploaded at or after this time, as ``2026-11-30`` or ``2026-11-30T12:00:00Z``.
        build: names of packages that are built from their source distribution, in the image.
    """

    requirements: tuple[str, ...]
    resolve: Literal["host", "image", "cross"] = "host"
    index: str = ""
    indexes: tuple[IndexTable, ...] = ()
    constraints: tuple[str, ...] = ()
    prereleases: tuple[str, ...] = ()
    before: str = ""
    build: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        bound = [name for table in self.indexes for name in table.packages]
        twice = sorted({name for name in bound if bound.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: bound to more than one index in wheels.indexes")
        if self.build and self.resolve != "image":
            raise ValueError('wheels.build needs wheels.resolve = "image": packages are built where they will run')


@record
class RuntimeTable:
    """``[runtime]``."""

    kind: RuntimeKind


@record
class ServingTable:
    """``[serving]``: context in tokens per request, concurrent requests, wanted time to first token, port.

    Attributes:
        downgrade: what an engine's log is judged by when it runs weaker than planned, without saying so to anyone:
            ``warn`` or ``fail``. What cannot serve at all fails in any case.
    """

    context: int = 4096
    concurrency: int = 4
    ttft_ms: int = 0
    workload: str = "chat"
    host: str = "127.0.0.1"
    port: int = 8000
    downgrade: DowngradePolicy = "warn"


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
class RehearsalTable:
    """``[rehearsal]``.

    Attributes:
        allow: names and addresses that the engine may ask for without failing a rehearsal, because it does without
            them; ``*`` stands for any characters.
    """

    allow: tuple[str, ...] = ()


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
    rehearsal: RehearsalTable = RehearsalTable()
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
