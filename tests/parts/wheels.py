"""Tiny valid wheels, and a package index that serves a directory of them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import io
import json
import re
import tarfile
import threading
import urllib.parse
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

JSON_TYPE = "application/vnd.pypi.simple.v1+json"


def make_wheel(
    directory: Path,
    name: str,
    version: str,
    requires: Iterable[str] = (),
    tags: str = "py3-none-any",
    files: Mapping[str, bytes | str] | None = None,
    *,
    requires_python: str = "",
    scripts: Mapping[str, str] | None = None,
) -> Path:
    """Write a wheel; without `files` it holds one module that knows its version. The same arguments, the same bytes.

    Args:
        requires: requirements as in METADATA's Requires-Dist.
        tags: python, ABI and platform tags; a dotted part is expanded in WHEEL.
        files: content by path in the wheel.
        requires_python: a version specifier, or nothing.
        scripts: console commands, as ``{"name": "module:function"}``.
    """
    module = re.sub(r"[-_.]+", "_", name).lower()
    content = {path: _bytes(data) for path, data in (files or {f"{module}.py": f'VERSION = "{version}"\n'}).items()}
    info = f"{module}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: made for a test\n"]
    metadata += [f"Requires-Python: {requires_python}\n"] if requires_python else []
    metadata += [f"Requires-Dist: {each}\n" for each in requires]
    content[f"{info}/METADATA"] = "".join(metadata).encode()
    content[f"{info}/WHEEL"] = _wheel_file(tags)
    if scripts:
        lines = [f"{command} = {target}\n" for command, target in sorted(scripts.items())]
        content[f"{info}/entry_points.txt"] = ("[console_scripts]\n" + "".join(lines)).encode()
    rows = [f"{path},sha256={_urlsafe(data)},{len(data)}\n" for path, data in content.items()]
    content[f"{info}/RECORD"] = ("".join(rows) + f"{info}/RECORD,,\n").encode()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{module}-{version}-{tags}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in content.items():
            entry = zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return path


BACKEND = """
import base64, hashlib, os, zipfile
{imports}

def build_wheel(directory, config_settings=None, metadata_directory=None):
    info = "{name}-{version}.dist-info"
    files = {{
        "{name}.py": b"VERSION = '{version}'\\n",
        info + "/METADATA": {metadata!r},
        info + "/WHEEL": b"Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    rows = [path + ",sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            + "," + str(len(data)) for path, data in files.items()]
    files[info + "/RECORD"] = "\\n".join(rows + [info + "/RECORD,,", ""]).encode()
    name = "{name}-{version}-py3-none-any.whl"
    year = 1970 + int(os.environ.get("SOURCE_DATE_EPOCH", "1800000000")) // 31557600
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, (max(year, 1980), 1, 1, 0, 0, 0)), data)
    return name
"""


def make_sdist(
    directory: Path,
    name: str,
    version: str,
    requires: Iterable[str] = (),
    *,
    build_requires: Iterable[str] = (),
    imports: str = "",
) -> Path:
    """Write a source distribution that brings its own small build backend. The same arguments, the same bytes.

    Args:
        requires: requirements of the wheel that it builds.
        build_requires: what must be there to build it.
        imports: lines of Python that run when it is built.
    """
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {each}\n" for each in requires)
    backend = BACKEND.format(name=name, version=version, metadata=metadata.encode(), imports=imports)
    project = f'[build-system]\nrequires = {list(build_requires)!r}\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{version}.tar.gz"
    with (
        path.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for member, text in (("pyproject.toml", project), ("PKG-INFO", metadata), ("backend.py", backend)):
            entry = tarfile.TarInfo(f"{name}-{version}/{member}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


@dataclass
class WheelIndex:
    """A running index (PEP 503 pages, PEP 691 JSON) over a directory that may change while it runs.

    Attributes:
        directory: put wheels and source distributions here.
        url: for ``--index-url``.
        requests: paths asked for so far.
        yanked: reason by file name.
        uploaded: time by file name, as ``2026-01-31T00:00:00Z``.
        password: when set, every request needs it, with any user name.
    """

    directory: Path
    url: str = ""
    requests: list[str] = field(default_factory=list)
    yanked: dict[str, str] = field(default_factory=dict)
    uploaded: dict[str, str] = field(default_factory=dict)
    password: str = ""

    def projects(self) -> dict[str, list[Path]]:
        """Files by normalized project name."""
        found: dict[str, list[Path]] = {}
        for path in sorted((*self.directory.glob("*.whl"), *self.directory.glob("*.tar.gz"))):
            name = path.name.rsplit("-", 1)[0] if path.suffix == ".gz" else path.name.split("-")[0]
            found.setdefault(name.replace("_", "-").lower(), []).append(path)
        return found


@contextmanager
def index(directory: Path) -> Iterator[WheelIndex]:
    """Serve a directory of wheels on a free port of loopback."""
    directory.mkdir(parents=True, exist_ok=True)
    served = WheelIndex(directory)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"index": served}))
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet, else each answer waits for an acknowledgement
    index: ClassVar[WheelIndex]

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence: the tests read `WheelIndex.requests`."""

    def do_GET(self) -> None:
        words = [urllib.parse.unquote(word) for word in urllib.parse.urlsplit(self.path).path.strip("/").split("/")]
        self.index.requests.append("/".join(words))
        projects = self.index.projects()
        if self.index.password and not self._knows_password():
            self._answer("text/plain", b"who are you?\n", 401, {"WWW-Authenticate": 'Basic realm="index"'})
            return
        match words:
            case ["simple"]:
                self._answer("text/html", "".join(f'<a href="{name}/">{name}</a>\n' for name in projects).encode())
            case ["simple", project] if project in projects:
                self._project(project, projects[project])
            case ["files", name] if name.endswith(".whl.metadata"):
                path = self.index.directory / name.removesuffix(".metadata")
                self._answer("application/octet-stream", _metadata(path).encode())
            case ["files", name] if (self.index.directory / name).is_file():
                self._answer("application/octet-stream", (self.index.directory / name).read_bytes())
            case _:
                self._answer("text/plain", b"no such project or file\n", 404)

    do_HEAD = do_GET

    def _project(self, project: str, paths: list[Path]) -> None:
        files = [self._file(path) for path in paths]
        if JSON_TYPE in (self.headers.get("Accept") or ""):
            page = {"meta": {"api-version": "1.1"}, "name": project, "files": files}
            self._answer(JSON_TYPE, json.dumps(page).encode())
            return
        lines = [
            f'<a href="{each["url"]}#sha256={each["hashes"]["sha256"]}" '
            f'data-requires-python="{html.escape(each.get("requires-python", ""))}">{each["filename"]}</a>\n'
            for each in files
        ]
        self._answer("text/html", "".join(lines).encode())

    def _file(self, path: Path) -> dict[str, Any]:
        data = path.read_bytes()
        made: dict[str, Any] = {
            "filename": path.name,
            "url": f"/files/{path.name}",
            "hashes": {"sha256": hashlib.sha256(data).hexdigest()},
            "size": len(data),
            "yanked": self.index.yanked.get(path.name, False),
            "upload-time": self.index.uploaded.get(path.name, "2020-01-01T00:00:00Z"),
        }
        if path.suffix == ".whl":
            metadata = _metadata(path)
            made["core-metadata"] = {"sha256": hashlib.sha256(metadata.encode()).hexdigest()}
            if python := _requires_python(metadata):
                made["requires-python"] = python
        return made

    def _knows_password(self) -> bool:
        kind, _, value = (self.headers.get("Authorization") or "").partition(" ")
        return kind == "Basic" and base64.b64decode(value).decode().endswith(f":{self.index.password}")

    def _answer(self, kind: str, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _metadata(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return archive.read(member).decode()


def _requires_python(metadata: str) -> str:
    lines = metadata.splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("Requires-Python: ")), "")


def _wheel_file(tags: str) -> bytes:
    python, abi, platform = tags.split("-")
    pure = "true" if platform == "any" else "false"
    lines = [f"Wheel-Version: 1.0\nGenerator: airbundle-tests\nRoot-Is-Purelib: {pure}\n"]
    for each_python in python.split("."):
        lines += [f"Tag: {each_python}-{abi}-{each_platform}\n" for each_platform in platform.split(".")]
    return "".join(lines).encode()


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _bytes(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data
