"""Reads image layers, each once and as a stream, and applies them to each other."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
import tarfile
import zlib
from collections.abc import Iterable, MutableMapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

from packaging.utils import canonicalize_name

from airbundle.prove import ospackages
from airbundle.prove.facts import Distribution, ImageFacts, LayerFacts, NativeFile, OsPackage, version_key
from airbundle.prove.native import may_be_native, read_native
from airbundle.prove.wheel import parse_metadata
from airbundle_onsite.errors import FetchError, IntegrityError

T = TypeVar("T")
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BUFFER = 1 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_SHARED = re.compile(r"\.so(\.[\w.-]*)?$")
_PYTHON = re.compile(r"(?:^|/)bin/python(\d\.\d+)$")
_INFO = re.compile(r"(?P<info>.*(?:site|dist)-packages/[^/]+\.dist-info)/(?P<file>METADATA|RECORD)$")
_SYSTEM = re.compile(r"(?:usr/)?lib(?:64|x32)?/")
_DOCUMENT = re.compile(rf"{ospackages.DOCUMENTS}(?P<package>[^/]+)(?:/(?P<file>copyright))?$")
_COMPAT = re.compile(r"/compat/(?:.*/)?libcuda\.so\.(\d+\.[\d.]+)$")


def read_layer(path: Path, scratch: Path, *, name: str = "") -> LayerFacts:
    """Read one layer.

    Args:
        path: its blob: a tar, plain or gzip.
        scratch: directory for copies of large native files, one at a time.
        name: for messages; the blob's file name otherwise.

    Raises:
        IntegrityError: the layer is damaged.
        FetchError: it is compressed with zstd.
    """
    shown = name or path.name
    reader = _Layer(scratch)
    try:
        with tarfile.open(path, _mode(path, shown), bufsize=_BUFFER) as archive:
            for member in archive:
                reader.take(archive, member)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise IntegrityError(f"layer {shown}: damaged ({error})", remedy="fetch the image again") from error
    return reader.facts()


def _mode(path: Path, shown: str) -> Literal["r|gz", "r|"]:
    with path.open("rb") as handle:
        head = handle.read(4)
    if head.startswith(_ZSTD):
        raise FetchError(
            f"layer {shown}: compressed with zstd", remedy="convert it to gzip first; docker 20.10 needs that too"
        )
    return "r|gz" if head.startswith(_GZIP) else "r|"


class _Layer:
    """Collects what a layer holds while its members go by."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.natives: list[NativeFile] = []
        self.names: list[str] = []
        self.removed: list[str] = []
        self.pythons: list[str] = []
        self.unread: list[str] = []
        self.packages: list[OsPackage] | None = None
        self.lists: dict[str, frozenset[str]] = {}
        self.licenses: dict[str, tuple[str, ...]] = {}
        self.documents: dict[str, str] = {}
        self.metadata: dict[str, bytes] = {}
        self.records: dict[str, bytes] = {}

    def take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = str(PurePosixPath(member.name)).lstrip("/")
        base = path.rpartition("/")[2]
        if base.startswith(_WHITEOUT):
            parent = path[: len(path) - len(base)]
            self.removed.append(parent if base == _OPAQUE else parent + base.removeprefix(_WHITEOUT))
            return
        if member.isdir():
            return
        if _SHARED.search(base):
            self.names.append(path)
        if _PYTHON.search(path):
            self.pythons.append(path)
        document = _DOCUMENT.match(path)
        if document and (member.issym() or document["file"]):
            self._document(archive, member, document["package"])
        elif member.isreg():
            self._file(archive, member, path)

    def _document(self, archive: tarfile.TarFile, member: tarfile.TarInfo, package: str) -> None:
        """A package's copyright file, or a link to another package's in the place of it or of its directory."""
        if member.issym():
            parts = PurePosixPath(member.linkname).parts
            shared = [part for part in parts if part not in ("..", "/", "usr", "share", "doc", "copyright")]
            if len(shared) == 1:
                self.documents[package] = shared[0]
        elif member.isreg():
            stream = archive.extractfile(member)
            self.licenses[package] = ospackages.read_copyright(stream.read() if stream else b"")

    def _file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        info = _INFO.match(path)
        if info or path.startswith(("var/lib/", "lib/apk/", "usr/lib/apk/", "usr/lib/sysimage/")):
            self._text(archive, member, path, info)
        elif may_be_native(path, member.size):
            stream = archive.extractfile(member)
            native = read_native(stream, path, member.size, self.scratch) if stream else None
            if native is not None:
                self.natives.append(native)

    def _text(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, info: re.Match[str] | None) -> None:
        """A file of which the text is wanted, if it is one."""

        def data() -> bytes:
            stream = archive.extractfile(member)
            return stream.read() if stream else b""

        if info:
            kept = self.metadata if info["file"] == "METADATA" else self.records
            kept[info["info"]] = data()
        elif path.startswith(ospackages.DPKG_LISTS) and path.endswith(".list"):
            package, files = ospackages.read_dpkg_list(path, data())
            self.lists[package] = self.lists.get(package, frozenset()) | files
        elif path == ospackages.DPKG_STATUS or (
            path.startswith(ospackages.DPKG_STATUS_DIR) and not path.endswith(".md5sums")
        ):
            self._add(ospackages.read_dpkg(data()))
        elif path in ospackages.APK_INSTALLED:
            self._add(ospackages.read_apk(data()))
        elif path in ospackages.RPM_SQLITE:
            try:
                self._add(ospackages.read_rpm(data(), self.scratch))
            except ValueError as error:
                self.unread.append(f"{path}: {error}")
        elif path in ospackages.RPM_OTHER:
            self.unread.append(f"{path}: an rpm database that is not SQLite")

    def _add(self, packages: Iterable[OsPackage]) -> None:
        self.packages = [*(self.packages or []), *packages]

    def facts(self) -> LayerFacts:
        paths = {native.path for native in self.natives}
        return LayerFacts(
            natives=tuple(self.natives),
            names=tuple(self.names),
            removed=tuple(self.removed),
            os_packages=None if self.packages is None else tuple(self.packages),
            os_files={name: owned for name, files in self.lists.items() if (owned := _owned(paths, files))},
            os_licenses=self.licenses,
            os_documents=self.documents,
            unread=tuple(self.unread),
            distributions=tuple(self._distribution(info, paths) for info in sorted(self.metadata)),
            pythons=tuple(self.pythons),
        )

    def _distribution(self, info: str, paths: set[str]) -> Distribution:
        metadata = parse_metadata(self.metadata[info])
        root = PurePosixPath(info).parent
        rows = csv.reader(io.StringIO(self.records.get(info, b"").decode("utf-8", "replace")))
        listed = {str(root / row[0]) for row in rows if row and not row[0].startswith(("/", ".."))}
        return Distribution(
            name=canonicalize_name(str(metadata.get("Name", ""))),
            version=str(metadata.get("Version", "")),
            info=info,
            requires=tuple(metadata.get_all("Requires-Dist", ())),
            files=tuple(sorted(listed & paths)),
        )


def _owned(paths: set[str], listed: frozenset[str]) -> tuple[str, ...]:
    """Native files on a package's list; a list may say ``lib/…`` where the image has ``usr/lib/…``."""
    return tuple(sorted(path for path in paths if path in listed or path.removeprefix("usr/") in listed))


def merge_layers(name: str, layers: Sequence[LayerFacts], *, require_cuda: str = "") -> ImageFacts:
    """Apply layers from the bottom up.

    Args:
        name: of the image.
        layers: in the order of the image's manifest.
        require_cuda: NVIDIA_REQUIRE_CUDA in the image's configuration.
    """
    natives: dict[str, NativeFile] = {}
    names: dict[str, None] = {}
    pythons: dict[str, None] = {}
    distributions: dict[str, Distribution] = {}
    packages: tuple[OsPackage, ...] = ()
    owned: dict[str, tuple[str, ...]] = {}
    licenses: dict[str, tuple[str, ...]] = {}
    documents: dict[str, str] = {}
    for layer in layers:
        for removed in layer.removed:
            _remove(natives, removed)
            _remove(names, removed)
            _remove(pythons, removed)
            _remove(distributions, removed)
        natives.update((native.path, native) for native in layer.natives)
        names.update(dict.fromkeys(layer.names))
        pythons.update(dict.fromkeys(layer.pythons))
        distributions.update((each.info, each) for each in layer.distributions)
        licenses.update(layer.os_licenses)
        documents.update(layer.os_documents)
        owned.update({key: (*owned.get(key, ()), *files) for key, files in layer.os_files.items()})
        packages = packages if layer.os_packages is None else layer.os_packages
    versions = [found[1] for found in map(_PYTHON.search, pythons) if found]
    compat = [found[1] for found in map(_COMPAT.search, names) if found]
    libc, glibc = _libc(natives.values(), names)
    return ImageFacts(
        name=name,
        natives=tuple(natives[path] for path in sorted(natives)),
        names=tuple(sorted(names)),
        libc=libc,
        glibc=glibc,
        glibcxx=_highest(_defined(natives.values(), "libstdc++.so.6"), "GLIBCXX_"),
        python=max(versions, key=version_key, default=""),
        require_cuda=require_cuda,
        compat_driver=max(compat, key=version_key, default=""),
        os_packages=tuple(
            dataclasses.replace(
                each,
                files=tuple(sorted(set(owned.get(each.name, ())))),
                licenses=each.licenses or licenses.get(each.name) or licenses.get(documents.get(each.name, ""), ()),
            )
            for each in packages
        ),
        distributions=tuple(distributions[info] for info in sorted(distributions)),
        unread=tuple(reason for layer in layers for reason in layer.unread),
    )


def _remove(kept: MutableMapping[str, T], removed: str) -> None:
    """Take away a path and all below it; ``dir/`` takes only what is below."""
    below = removed if removed.endswith("/") else removed + "/"
    for path in [path for path in kept if path == removed or path.startswith(below)]:
        del kept[path]


def _libc(natives: Iterable[NativeFile], names: Iterable[str]) -> tuple[str, str]:
    glibc = _highest(_defined(natives, "libc.so.6"), "GLIBC_")
    if glibc:
        return "glibc", glibc
    return ("musl", "") if any("/ld-musl-" in f"/{name}" for name in names) else ("", "")


def _defined(natives: Iterable[NativeFile], soname: str) -> set[str]:
    """Symbol versions that the libraries of this name in the system's own directories define."""
    found: set[str] = set()
    for native in natives:
        if native.elf and native.elf.soname == soname and _SYSTEM.match(native.path):
            found.update(native.elf.defines)
    return found


def _highest(versions: Iterable[str], prefix: str) -> str:
    numbers = (version.removeprefix(prefix) for version in versions if version.startswith(prefix))
    return max((number for number in numbers if number[:1].isdigit()), key=version_key, default="")
