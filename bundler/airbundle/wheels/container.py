"""A Python inside the image that is shipped, through the docker engine at DOCKER_HOST."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from airbundle.contract.lock import LockedFile, LockedImage
from airbundle.oci.engine import archive_chunks
from airbundle.sources.base import SourceContext
from airbundle.wheels.toolbox import SCRIPT, ca_bundle, neutral_environment
from airbundle_onsite.errors import FetchError, UsageError
from airbundle_onsite.system import Completed

DIRECTORY = "/airbundle-resolve"
_CERTIFICATE = f"{DIRECTORY}/ca.pem"
_NETRC = f"{DIRECTORY}/netrc"
_PYTHON = "python3"
_LIFETIME = 3600  # seconds after which a container ends by itself, should this program be killed
_ANSWER = 1800  # seconds the engine may be silent while a command runs
_CHUNK = 1 << 20


class ImageToolbox:
    """A running container of the image. See `airbundle.wheels.toolbox.Toolbox`."""

    directory = DIRECTORY

    def __init__(self, container: Any, place: str, environment: Mapping[str, str], certificate: str) -> None:
        self.place, self.certificate = place, certificate
        self._container, self._environment = container, environment

    def run(self, words: Sequence[str], *, timeout: float = 900) -> Completed:
        argv = [_PYTHON, "-I", f"{DIRECTORY}/{SCRIPT}", *words]
        with _engine_errors(f"running {words[0]} {self.place}"):
            done = self._container.exec_run(argv, demux=True, environment=dict(self._environment), user="0")
        stdout, stderr = ((part or b"").decode("utf-8", "replace") for part in done.output)
        return Completed(tuple(argv), done.exit_code, stdout, stderr)

    def write(self, name: str, data: bytes) -> None:
        with _engine_errors(f"copying {name} {self.place}"):
            self._container.put_archive("/", _archive({f"{DIRECTORY[1:]}/{name}": data}))

    def read(self, name: str) -> Iterator[bytes]:
        with _engine_errors(f"copying {name} {self.place}"):
            pieces, _ = self._container.get_archive(f"{DIRECTORY}/{name}", chunk_size=_CHUNK)
            with tarfile.open(fileobj=cast(IO[bytes], _Pieces(pieces)), mode="r|") as archive:
                for member in archive:
                    handle = archive.extractfile(member)
                    if handle is not None:
                        yield from iter(lambda source=handle: source.read(_CHUNK), b"")  # type: ignore[misc]


@contextmanager
def image_toolbox(
    image: LockedImage, fetch: Callable[[LockedFile], None], context: SourceContext
) -> Iterator[ImageToolbox]:
    """A container of the image, on the host's network (its proxies and index may be on loopback), removed at the end.

    Raises:
        FetchError: the engine does not answer, or a blob cannot be fetched.
        UsageError: the image has no python3.
    """
    with _engine_errors("reaching the docker engine"):
        client = docker.from_env(environment=_engine_environment(context), timeout=_ANSWER)
        client.ping()
    try:
        reference, loaded = _ensure(client, image, fetch, context)
        try:
            container, certificate = _start(client, image, reference, context)
            try:
                yield ImageToolbox(
                    container, f"in image {image.config.path[:19]}", _environment(context, certificate), certificate
                )
            finally:
                _remove(container)
        finally:
            if loaded:
                with _engine_errors(f"removing {reference}"):
                    client.images.remove(reference)
    finally:
        client.close()


def _start(client: Any, image: LockedImage, reference: str, context: SourceContext) -> tuple[Any, str]:
    netrc = Path(context.environ("NETRC") or Path(context.environ("HOME") or "/nonexistent", ".netrc"))
    bundle = ca_bundle(context.environ, system=True)
    files = {f"{DIRECTORY[1:]}/{SCRIPT}": Path(__file__).with_name(SCRIPT).read_bytes()}
    if bundle:
        files[_CERTIFICATE[1:]] = bundle.read_bytes()
    with _engine_errors(f"starting a container of {image.name}"):
        container = client.containers.create(
            reference,
            entrypoint=[_PYTHON, "-I", "-c", f"import time; time.sleep({_LIFETIME})"],
            command=[],
            user="0",
            working_dir="/",
            network_mode="host",
            auto_remove=True,
            labels={"airbundle.purpose": "resolve"},
            volumes={str(netrc): {"bind": _NETRC, "mode": "ro"}} if netrc.is_file() else {},
        )
        try:
            container.put_archive("/", _archive(files))
            container.start()
        except APIError as error:
            _remove(container)
            if "executable file not found" in str(error) or "no such file" in str(error):
                raise UsageError(
                    f"image {image.name} has no {_PYTHON} on its PATH, which resolving inside it needs",
                    remedy="choose an image with Python 3.9 or newer",
                ) from error
            raise
        except BaseException:
            _remove(container)
            raise
    return container, _CERTIFICATE if bundle else ""


def _environment(context: SourceContext, certificate: str) -> dict[str, str]:
    environment = neutral_environment(context.environ)
    environment.pop("SSL_CERT_DIR", None)
    environment.update(
        {"HOME": DIRECTORY, "NETRC": _NETRC, "TMPDIR": "/tmp", "PIP_TOOLS_CACHE_DIR": f"{DIRECTORY}/cache"}
    )
    if certificate:
        environment["REQUESTS_CA_BUNDLE"] = certificate
    return environment


def _engine_environment(context: SourceContext) -> dict[str, str]:
    names = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
    return {name: value for name in names if (value := context.environ(name))}


def _remove(container: Any) -> None:
    """Gone, or going by itself: both are fine."""
    with suppress(NotFound, APIError):
        container.remove(force=True)


# --- getting the image into the engine ---------------------------------------------------------------------------


def _ensure(
    client: Any, image: LockedImage, fetch: Callable[[LockedFile], None], context: SourceContext
) -> tuple[str, bool]:
    """The image's reference in the engine, and whether it was loaded for this purpose."""
    digest = f"sha256:{image.config.sha256}"
    for name in (digest, f"sha256:{image.manifest.sha256}"):  # by config, or by manifest in a containerd store
        try:
            return str(client.images.get(name).id), False
        except ImageNotFound:
            continue
    for blob in (image.config, *image.blobs):
        if not context.cache.has(blob.sha256, blob.size):
            fetch(blob)
    reference = f"airbundle-resolve:{image.config.sha256[:16]}"
    context.talk.say(f"loading {image.name} into the docker engine, to resolve wheels inside it")
    with _engine_errors(f"loading {image.name}"):
        client.api.load_image(archive_chunks(image, reference, context.cache))
        found = client.images.get(reference)
    if found.id not in (digest, f"sha256:{image.manifest.sha256}") and found.attrs.get("Descriptor") is None:
        raise FetchError(f"{image.name}: the engine loaded {found.id}, needed is {digest}")
    return reference, True


class _Pieces:
    """A stream that arrives in pieces, as a file that can only be read on."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = iter(pieces), b""

    def read(self, count: int) -> bytes:
        while len(self._rest) < count and (piece := next(self._pieces, b"")):
            self._rest += piece
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken


def _archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        directory = tarfile.TarInfo(DIRECTORY[1:])
        directory.type, directory.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(directory)
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


@contextmanager
def _engine_errors(what: str) -> Iterator[None]:
    """Whatever the docker client raises, as a FetchError that says what was being done."""
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        raise FetchError(
            f"{what}: {' '.join(str(error).split())[:300]}",
            remedy="see that the docker engine runs (`docker info`) and that DOCKER_HOST is right; "
            'or set wheels.resolve = "cross"',
        ) from error
