"""A base image made at the office: a Dockerfile is rendered, the docker engine builds it, its layers go into the cache.

The base comes out of the cache as well, so the engine needs no registry of its own. What the build alone needs
(certificates, proxies) is in no layer and no history of the image that is packed: certificates arrive in a layer of
their own, which is left out afterwards, and proxies are build arguments that engines do not record.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import docker
import docker.errors
import jinja2

from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile, LockedImage
from airbundle.contract.spec import ImageBuildTable
from airbundle.data import data_dir
from airbundle.oci import documents, engine
from airbundle.oci.archive import SavedImage, read_saved
from airbundle.oci.documents import Descriptor
from airbundle.sources.base import SourceContext
from airbundle.wheels.toolbox import ca_bundle
from airbundle_onsite.contract.record import decode_json, encode, record
from airbundle_onsite.errors import ContractError, FetchError

SCHEME = "build"
SCRATCH = "/airbundle-build"
TEMPLATE = "Dockerfile.j2"
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_TAIL = 25  # lines of a failed build's log
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PIP = (("python3", "python3-pip", "python3-venv"), ("python3", "python3-pip"))
_COMPILER = (("gcc", "g++", "libc6-dev", "python3-dev"), ("gcc", "gcc-c++", "glibc-devel", "python3-devel"))


@record
class Recipe:
    """What is built.

    Attributes:
        dockerfile: its text.
        key: digest of it, the base's id and the wish for a new build: the same key, the same image from the cache.
    """

    dockerfile: str
    key: str


def recipe(table: ImageBuildTable, base: LockedImage, *, certificates: bool) -> Recipe:
    """Render the Dockerfile for a base that is locked."""
    debian, redhat = list(table.packages), list(table.packages)
    for wanted, (apt, dnf) in ((table.pip, _PIP), (table.compiler, _COMPILER)):
        debian += [name for name in apt if wanted and name not in debian]
        redhat += [name for name in dnf if wanted and name not in redhat]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_dir("templates")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    facts = {
        "base": base,
        "tag": base_tag(base),
        "certificates": certificates and bool(debian),
        "scratch": SCRATCH,
        "env": [(name, _quoted(value)) for name, value in sorted(table.env.items())],
        "debian": debian,
        "redhat": redhat,
        "user": table.user,
    }
    text = environment.get_template(TEMPLATE).render(facts)
    packed = environment.get_template(TEMPLATE).render({**facts, "certificates": False})
    key = hashlib.sha256(f"{packed}\n{table.refresh}".encode()).hexdigest()
    return Recipe(text, key)


def base_tag(base: LockedImage) -> str:
    """What the base is called in the engine while it is built on."""
    return f"airbundle-base:{base.config.sha256[:20]}"


def build(
    table: ImageBuildTable, base: LockedImage, fetch: Callable[[LockedFile], None], context: SourceContext
) -> LockedImage:
    """Build an image, or take the one that was built by the same recipe and is still whole in the cache.

    Args:
        table: what is wanted on top of the base.
        base: locked; the blobs of it that the cache lacks are fetched.
        fetch: brings one of them into the cache.
        context: cache, talk and environment.

    Returns:
        Its lock. The base's layers stay what they were; `LockedImage.dockerfile` has the recipe.

    Raises:
        FetchError: the engine does not answer, or the build fails: with the end of its log.
    """
    bundle = ca_bundle(context.environ, system=True)
    made = recipe(table, base, certificates=bundle is not None)
    known = Known(context.cache, made.key).read()
    if known is not None:
        context.talk.say(f"base image on {base.name}: built before by the same recipe, taken from the cache")
        return known
    for blob in (base.config, *base.blobs):
        if not context.cache.has(blob.sha256, blob.size):
            fetch(blob)
    packages = ", ".join(table.packages) or "no packages of its own"
    context.talk.say(f"building a base image on {base.name} with {packages}; a build elsewhere may come out different")
    tag = f"airbundle-build:{made.key[:20]}"
    label = f"[image.build] on {base.name}"
    with engine.connect(context.environ, label) as client, _cleared(client, base_tag(base), tag):
        api: Any = client.api
        api.load_image(engine.archive_chunks(base, base_tag(base), context.cache))
        _run(client, made, tag, bundle, context, label)
        saved = read_saved(api.get_image(tag), context.cache, label)
    image = _compose(saved, base, made, context.cache, label)
    Known(context.cache, made.key).write(image)
    return image


class Known:
    """What was built by a recipe before: beside the cache's blobs, by the recipe's key."""

    def __init__(self, cache: Cache, key: str) -> None:
        self._cache, self._path = cache, cache.root / "builds" / f"{key}.json"

    def read(self) -> LockedImage | None:
        """The image, when every blob that cannot be fetched again is still there."""
        try:
            image = decode_json(LockedImage, self._path.read_bytes(), str(self._path))
        except (FileNotFoundError, ContractError):
            return None
        own = [blob for blob in image.blobs if blob.origin.get("source") == SCHEME]
        return image if all(self._cache.has(blob.sha256, blob.size) for blob in own) else None

    def write(self, image: LockedImage) -> None:
        """Remember it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        temporary.write_bytes(encode(image))
        temporary.replace(self._path)


@contextmanager
def _cleared(client: docker.DockerClient, *tags: str) -> Iterator[None]:
    """Takes names that were given for the build out of the engine again, whatever happens."""
    try:
        yield
    finally:
        for tag in reversed(tags):
            with suppress(docker.errors.APIError):
                client.images.remove(tag)


def _run(
    client: docker.DockerClient, made: Recipe, tag: str, bundle: Path | None, context: SourceContext, label: str
) -> None:
    """Have the engine build it, on the host's network: proxies and archives may be on loopback."""
    names = [*_PROXIES, *(name.upper() for name in _PROXIES)]
    proxies = {name: value for name in names if (value := context.environ(name))}
    log: list[str] = []
    events = client.api.build(
        fileobj=io.BytesIO(_build_context(made, bundle)),
        custom_context=True,
        tag=tag,
        network_mode="host",
        buildargs=proxies,
        nocache=True,
        rm=True,
        forcerm=True,
        decode=True,
    )
    for event in events:
        log += [line for line in _ANSI.sub("", event.get("stream", "")).splitlines() if line.strip()]
        if "error" in event:
            raise FetchError(
                f"{label}: the build failed: {_scrubbed(str(event['error']), proxies)}",
                details=[_scrubbed(line, proxies) for line in log[-_TAIL:]],
                remedy="correct [image.build]; packages have the names of the base's distribution",
            )


def _scrubbed(text: str, proxies: dict[str, str]) -> str:
    """A line of the log without the proxies, which may have passwords in them."""
    for name, value in proxies.items():
        text = text.replace(value, f"${name}")
    return text


def _build_context(made: Recipe, bundle: Path | None) -> bytes:
    files = {"Dockerfile": made.dockerfile.encode()}
    if bundle is not None:
        files["ca.pem"] = bundle.read_bytes()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _compose(saved: SavedImage, base: LockedImage, made: Recipe, cache: Cache, label: str) -> LockedImage:
    """The base's own layers, the new ones without what was there for the build alone, and a configuration to fit."""
    document = documents.load(cache.path(saved.config.sha256).read_bytes(), label)
    diff_ids = [str(each) for each in document["rootfs"]["diff_ids"]]
    below = [layer.diff_id for layer in base.layers]
    if diff_ids[: len(below)] != below or len(diff_ids) != len(saved.layers):
        raise FetchError(
            f"{label}: what was built does not stand on its base", remedy="the engine squashes layers: turn that off"
        )
    for layer in saved.layers[: len(below)]:
        if layer.digest not in {each.digest for each in base.layers}:
            cache.drop(layer.sha256)
    kept = [
        index for index in range(len(below), len(diff_ids)) if not _is_scratch(cache, saved.layers[index].sha256, label)
    ]
    config = _config(document, [*range(len(below)), *kept])
    config_sha256 = cache.add_bytes(config)
    config_blob = Descriptor(documents.OCI_CONFIG, f"sha256:{config_sha256}", len(config))
    layers = [
        *(documents.as_oci(Descriptor(layer.media_type, layer.digest, layer.size)) for layer in base.layers),
        *(saved.layers[index] for index in kept),
    ]
    data = documents.write_manifest(config_blob, layers)
    manifest = documents.Manifest(documents.OCI_MANIFEST, config_blob, tuple(layers))
    dockerfile_sha256 = hashlib.sha256(made.dockerfile.encode()).hexdigest()
    origin = documents.Origin({"source": SCHEME, "dockerfile": f"sha256:{dockerfile_sha256}"})
    fetched = {f"sha256:{blob.sha256}": blob for blob in base.blobs}
    image = documents.locked_image(
        f"airbundle/base:{config_sha256[:12]}",
        f"{SCHEME}:{base.source}",
        config_blob.digest,
        origin.made(data, cache.add_bytes(data)),
        manifest,
        documents.read_config(config, manifest, base.platform, label),
        origin.made(config, config_sha256),
        {layer.digest: fetched.get(layer.digest) or origin.file(layer) for layer in layers},
    )
    return dataclasses.replace(image, dockerfile=made.dockerfile)


def _is_scratch(cache: Cache, sha256: str, label: str) -> bool:
    """Whether a layer holds what was there for the build alone, and nothing else.

    Raises:
        FetchError: it holds that beside other things, so leaving it out is not possible.
    """
    with tarfile.open(cache.path(sha256)) as archive:
        names = [(posixpath.normpath(member.name), member.isreg()) for member in archive]
    own = [(name, is_file) for name, is_file in names if name.split("/")[0] == SCRATCH[1:]]
    if own and len(own) == len(names):
        cache.drop(sha256)
        return True
    if any(is_file for _, is_file in own):
        raise FetchError(
            f"{label}: the certificates of the build are in one layer with the packages",
            remedy="build with an engine that makes a layer of each step",
        )
    return False


def _config(document: dict[str, Any], kept: Sequence[int]) -> bytes:
    """The configuration with these layers only, and without what the engine notes of its own."""
    plain = {key: value for key, value in document.items() if key not in ("container", "container_config")}
    diff_ids = document["rootfs"]["diff_ids"]
    plain["rootfs"] = {"type": "layers", "diff_ids": [diff_ids[index] for index in kept]}
    history, number = [], -1
    for step in document.get("history") or ():
        number += not step.get("empty_layer", False)
        if step.get("empty_layer", False) or number in kept:
            history.append(step)
    if number + 1 == len(diff_ids):
        plain["history"] = history
    else:
        plain.pop("history", None)
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def _quoted(value: str) -> str:
    """For between the quotes of a Dockerfile."""
    return re.sub(r'(["\\$])', r"\\\1", value)
