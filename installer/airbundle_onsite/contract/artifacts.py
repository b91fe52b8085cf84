"""Images, wheels and models: what the files of the payload are to an engine."""

from __future__ import annotations

from typing import Literal

from airbundle_onsite.contract.names import check_digest
from airbundle_onsite.contract.record import record

ModelRole = Literal["model", "draft", "adapter", "projector", "vocabulary"]


@record
class Layer:
    """A layer of an image.

    Attributes:
        digest: of the blob.
        size: bytes of the blob.
        diff_id: digest of the uncompressed tar.
        media_type: of the blob.
    """

    digest: str
    size: int
    diff_id: str
    media_type: str

    def __post_init__(self) -> None:
        check_digest(self.digest)
        check_digest(self.diff_id)


@record
class ImageEntry:
    """A container image in images/.

    Attributes:
        name: plain ``repository:tag``, under which it is loaded and started.
        digest: of its manifest in the payload's OCI layout.
        source_digest: what the registry (or daemon) called it when it was locked.
        config_digest: of its configuration; what docker calls the image id.
        platform: ``linux/amd64`` and the like.
        layers: from the bottom up.
        size: bytes of all its blobs.
        user, entrypoint, env: from its configuration, for people and for checks.
        require_cuda: its NVIDIA_REQUIRE_CUDA, or empty.
    """

    name: str
    digest: str
    source_digest: str
    config_digest: str
    platform: str
    layers: tuple[Layer, ...]
    size: int
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    require_cuda: str = ""

    def __post_init__(self) -> None:
        for value in (self.digest, self.config_digest):
            check_digest(value)


@record
class WheelEntry:
    """A wheel in wheels/.

    Attributes:
        name: normalised project name.
        version: full version with any local part.
        path: inside the payload.
        sha256: of the file.
        index: where it came from: ``pypi`` for the client's default index, else a URL without credentials.
        requested_by: names of the projects that asked for it; ``spec`` for the bundle's spec.
    """

    name: str
    version: str
    path: str
    sha256: str
    index: str = "pypi"
    requested_by: tuple[str, ...] = ()


@record
class ModelEntry:
    """A model in models/.

    Attributes:
        served_name: its name in the API and its directory.
        format: of its weights.
        source: as the spec names it.
        revision: what the source was pinned to (commit, version, digest).
        files: paths inside the payload.
        entry: the file an engine is given when it wants one file (GGUF), inside the model's directory; else empty.
        size: bytes of all files.
        license: SPDX expression or the source's own words; empty when unknown.
        role: ``model`` is what is served; the others stand beside it.
        quantization: how the weights are stored: the method as engines call it, then details (``awq int4 g128``);
            empty for plain floating point.
        chat_template: whether it brings its own form of conversation.
        custom_code: Python files that the engine runs, each with where it comes from.
    """

    served_name: str
    format: Literal["gguf", "safetensors", "pytorch", "other"]
    source: str
    revision: str
    files: tuple[str, ...]
    size: int
    entry: str = ""
    license: str = ""
    role: ModelRole = "model"
    quantization: str = ""
    chat_template: bool = False
    custom_code: tuple[str, ...] = ()
