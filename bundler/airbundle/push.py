"""A bundle as an artifact in an OCI registry, as `oras` and others read it: one layer per file, called by its title."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from airbundle.bundledir import counter, publish, require_absent, require_space, set_mode
from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile
from airbundle.oci.client import Place, RegistryClient
from airbundle.oci.documents import OCI_MANIFEST
from airbundle.oci.reference import Reference, parse
from airbundle.oci.upload import Outgoing, RegistryUploader
from airbundle.repair import small_files
from airbundle.splitting import part_blocks
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError, IntegrityError, UsageError
from airbundle_onsite.system import Talk
from airbundle_onsite.verify.bundle import TrustedManifest, trust

ARTIFACT = "application/vnd.airbundle.bundle.v1"
PART = "application/vnd.airbundle.part.v1"
FILE = "application/vnd.airbundle.file.v1"
TITLE = "org.opencontainers.image.title"
_VERSION = "org.opencontainers.image.version"
_EMPTY_TYPE, _EMPTY = "application/vnd.oci.empty.v1+json", b"{}"
_SCHEME = "registry:"
_MOST_FILES = 100_000

Environ = Callable[[str], str | None]


@record
class Pushed:
    """Where a bundle is now.

    Attributes:
        reference: by tag.
        digest: of its manifest.
        sent: bytes that were sent.
        known: bytes that were there already.
    """

    reference: str
    digest: str
    sent: int
    known: int


@record
class Pulled:
    """A bundle fetched from a registry: its directory, the digest it had there, bytes of everything."""

    directory: str
    digest: str
    size: int


def read_reference(text: str) -> Reference:
    """``registry:HOST/REPOSITORY:TAG`` taken apart. Raises UsageError."""
    if not text.startswith(_SCHEME):
        raise UsageError(f"{text!r} is no place for a bundle", remedy="write registry:HOST/REPOSITORY:TAG")
    return parse(text.removeprefix(_SCHEME))


def push(bundle: Path, target: str, *, environ: Environ, talk: Talk, insecure: bool = False) -> Pushed:
    """Push every file of a bundle, each byte proven on the way, and a manifest that lists them.

    What the repository has is not sent again, so an interrupted push goes on where it stopped.

    Args:
        bundle: its directory.
        target: ``registry:HOST/REPOSITORY:TAG``.
        environ: reads one variable: proxies, certificates and logins as for pulling images.
        talk: told about progress.
        insecure: speak http to a registry that is not on this machine.

    Raises:
        UsageError: no such reference.
        TrustError, IntegrityError: the bundle is not good.
        FetchError: the registry does not take it.
    """
    reference = read_reference(target)
    if reference.digest:
        raise UsageError(f"{target}: a digest cannot be chosen", remedy="write registry:HOST/REPOSITORY:TAG")
    trusted = trust(bundle)
    uploader = RegistryUploader(_place(reference, insecure), environ)
    blobs = list(_blobs(trusted))
    total, sent = sum(blob.size for blob, _ in blobs), 0
    advance = counter(talk, "pushing", total)
    for blob, _ in blobs:
        sent += blob.size if uploader.blob(blob, advance) else 0
    uploader.blob(_bytes_blob("the empty configuration", _EMPTY), lambda _: None)
    data = _manifest(trusted, blobs)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    uploader.manifest(reference.tag, data, OCI_MANIFEST)
    return Pushed(str(reference), digest, sent, total - sent)


def pull(source: str, output: Path, *, environ: Environ, talk: Talk, insecure: bool = False) -> Pulled:
    """Fetch a bundle into ``<output>/<name>-<version>/``, every blob held against its digest.

    Args:
        source: ``registry:HOST/REPOSITORY:TAG``, or with ``@sha256:…``.
        output: a directory; what is under way is kept in it, for the next try.
        environ, talk, insecure: as for `push`.

    Raises:
        UsageError: no such reference, or the directory exists already.
        FetchError: the registry does not give it, or something else.
        TrustError, IntegrityError: what came is no good bundle.
    """
    reference = read_reference(source)
    key = hashlib.sha256(str(reference).encode()).hexdigest()[:16]
    under_way = output / f".pull-{key}"
    cache = Cache(under_way / "cache")
    client, place = RegistryClient(cache, environ, talk), _place(reference, insecure)
    data, _ = client.manifest([place], reference.wanted)
    files = _listed(data, str(reference))
    total = sum(each.size for each in files)
    advance = counter(talk, "pulling", total)
    output.mkdir(parents=True, exist_ok=True)
    require_space(output, sum(each.size for each in files if not cache.has(each.sha256, each.size)))
    for each in files:
        if cache.has(each.sha256, each.size):
            advance(each.size)
        else:
            client.blob([place], each, advance)
    final = _settle(files, cache, under_way / "bundle", output)
    shutil.rmtree(under_way, ignore_errors=True)
    return Pulled(str(final), f"sha256:{hashlib.sha256(data).hexdigest()}", total)


def _settle(files: list[LockedFile], cache: Cache, directory: Path, output: Path) -> Path:
    """Give the blobs their names, prove that they are a bundle, and give that its name."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    placed: dict[str, Path] = {}
    hashes: dict[str, str] = {}
    for each in files:
        target = directory / each.path
        hashes[each.path] = each.sha256
        if each.sha256 in placed:
            shutil.copyfile(placed[each.sha256], target)
        else:
            cache.path(each.sha256).rename(target)
            placed[each.sha256] = target
        set_mode(target, 0o755 if each.path == layout.INSTALLER else 0o644)
    manifest = trust(directory).manifest
    wrong = [part.name for part in manifest.payload.parts if hashes[part.name] != part.sha256]
    if wrong:
        raise IntegrityError(
            f"the registry's {', '.join(wrong)} is not what {layout.MANIFEST} lists",
            remedy="whoever pushed it mixed up two bundles: have it pushed again",
        )
    final = output / f"{manifest.name}-{manifest.version}"
    require_absent(final)
    publish(directory, final)
    return final


def _place(reference: Reference, insecure: bool) -> Place:
    return Place(reference.host, reference.api_host, reference.repository, insecure=insecure)


def _blobs(trusted: TrustedManifest) -> Iterator[tuple[Outgoing, str]]:
    """Every file of the bundle as a blob, with its media type; names are those of the files."""
    for name in small_files(trusted):
        yield _bytes_blob(name, (trusted.directory / name).read_bytes()), FILE
    for part in trusted.manifest.payload.parts:
        yield (
            Outgoing(
                part.name,
                f"sha256:{part.sha256}",
                part.size,
                lambda offset, name=part.name: part_blocks(trusted, name, offset),  # type: ignore[misc]
            ),
            PART,
        )


def _bytes_blob(name: str, data: bytes) -> Outgoing:
    return Outgoing(
        name, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), lambda offset: iter((data[offset:],))
    )


def _manifest(trusted: TrustedManifest, blobs: list[tuple[Outgoing, str]]) -> bytes:
    manifest = trusted.manifest
    layers = [
        {"mediaType": kind, "digest": blob.digest, "size": blob.size, "annotations": {TITLE: blob.name}}
        for blob, kind in blobs
    ]
    empty = hashlib.sha256(_EMPTY).hexdigest()
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": ARTIFACT,
        "config": {"mediaType": _EMPTY_TYPE, "digest": f"sha256:{empty}", "size": len(_EMPTY)},
        "layers": layers,
        "annotations": {TITLE: manifest.name, _VERSION: manifest.version},
    }
    return json.dumps(document, indent=2).encode()


def _listed(data: bytes, label: str) -> list[LockedFile]:
    """The files of an artifact. Raises FetchError when it is no bundle."""
    try:
        document = json.loads(data)
        kind = document.get("artifactType")
        files = [_file(layer) for layer in document["layers"]] if kind == ARTIFACT else []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FetchError(f"{label}: its manifest cannot be read ({error})", remedy=_NO_BUNDLE) from error
    if kind != ARTIFACT:
        raise FetchError(f"{label}: found {kind or 'an image'}, needed {ARTIFACT}", remedy=_NO_BUNDLE)
    names = [each.path.casefold() for each in files]
    if len(set(names)) != len(names) or len(names) > _MOST_FILES:
        raise FetchError(f"{label}: two of its files have one name", remedy=_NO_BUNDLE)
    return files


def _file(layer: Any) -> LockedFile:
    name, digest, size = layer["annotations"][TITLE], layer["digest"], layer["size"]
    algorithm, _, value = digest.partition(":")
    if not layout.is_outer_name(name):
        raise ValueError(f"a file is called {name!r:.80}")
    if algorithm != "sha256" or len(value) != 64 or value.strip("0123456789abcdef") or not isinstance(size, int):
        raise ValueError(f"{name} has the digest {digest!r:.90}")
    return LockedFile(name, value, size)


_NO_BUNDLE = "name what `airbundle push` has pushed"
