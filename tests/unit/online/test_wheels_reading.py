"""METADATA of wheels that lie on a server, by whatever it offers; and project pages in both forms."""

from __future__ import annotations

import hashlib
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airbundle import web
from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile
from airbundle.download import Downloader
from airbundle.wheels.pages import project_files
from airbundle.wheels.reading import MetadataReader
from airbundle_onsite.errors import FetchError
from parts.wheels import make_wheel

HTML = """<!DOCTYPE html><html><body>
<a href="../../files/x-1.0%2Bcu130-py3-none-any.whl#sha256=00" data-requires-python="&gt;=3.9">x</a>
<a href="https://elsewhere.invalid/x-0.9.tar.gz" data-yanked="broken">x</a>
<a href="x-0.8.tar.gz" data-yanked>x</a>
</body></html>"""


@contextmanager
def serving(directory: Path, *, parts: bool = True, page: tuple[str, str] = ("text/html", HTML)) -> Iterator[list[str]]:
    """Serves files, in parts or whole only; gives the base URL first and then every request."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            seen.append(f"{self.path} {self.headers.get('Range') or 'whole'}")
            path = directory / self.path.rpartition("/")[2]
            if self.path.startswith("/simple/x/"):
                self.answer(200, page[1].encode(), page[0])
            elif not path.is_file():
                self.answer(404, b"")
            elif wanted and parts:
                self.answer(206, path.read_bytes()[int(wanted[1]) : int(wanted[2]) + 1])
            else:
                self.answer(200, path.read_bytes())

        def answer(self, status: int, body: bytes, kind: str = "application/octet-stream") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    seen.append(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()


def downloader(tmp_path: Path) -> Downloader:
    return Downloader(Cache(tmp_path / "cache"), web.new_session({}.get))


def locked(path: Path, base: str) -> LockedFile:
    data = path.read_bytes()
    return LockedFile(path.name, hashlib.sha256(data).hexdigest(), len(data), {"url": f"{base}/{path.name}"})


def no_fetch(item: LockedFile) -> Path:
    raise AssertionError(f"{item.path} was to be read in parts")


def large_wheel(directory: Path) -> Path:
    """A wheel of 2 MB whose METADATA does not lie at its end."""
    path = make_wheel(directory, "big", "1.0", ["dep>=1"])
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("big.bin", bytes(range(256)) * 8192)
    return path


def test_a_large_wheel_is_read_in_parts(tmp_path: Path) -> None:
    path = large_wheel(tmp_path / "files")
    with serving(tmp_path / "files") as seen:
        reader = MetadataReader(downloader(tmp_path), no_fetch)
        for _ in range(2):
            assert b"Requires-Dist: dep>=1" in reader.read(locked(path, seen[0]))
    asked = seen[1:]
    assert asked[0].endswith(".metadata whole")
    assert len([each for each in asked if ".metadata" in each]) == 1, "a server without such files is not asked again"
    spans = [re.search(r"bytes=(\d+)-(\d+)", each) for each in asked[1:]]
    assert all(spans)
    read = sum(int(span[2]) - int(span[1]) + 1 for span in spans if span) / 2
    assert read < 400_000 < path.stat().st_size


def test_what_lies_beside_a_wheel_is_enough(tmp_path: Path) -> None:
    path = large_wheel(tmp_path / "files")
    (tmp_path / "files" / f"{path.name}.metadata").write_text("Name: big\nRequires-Dist: told\n")
    with serving(tmp_path / "files") as seen:
        data = MetadataReader(downloader(tmp_path), no_fetch).read(locked(path, seen[0]))
    assert (data, len(seen)) == (b"Name: big\nRequires-Dist: told\n", 2)


def test_a_server_without_parts_gives_the_whole_wheel(tmp_path: Path) -> None:
    path = large_wheel(tmp_path / "files")
    with serving(tmp_path / "files", parts=False) as seen:
        reader = MetadataReader(downloader(tmp_path), lambda item: path)
        assert b"Requires-Dist: dep>=1" in reader.read(locked(path, seen[0]))


@pytest.mark.parametrize("content", [b"not a zip file" * 99, None])
def test_what_is_no_wheel_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "files" / "bad-1-py3-none-any.whl"
    path.parent.mkdir()
    if content is None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("bad.py", "")
    else:
        path.write_bytes(content)
    with serving(tmp_path / "files") as seen, pytest.raises(FetchError, match=r"^bad-1-py3-none-any\.whl"):
        MetadataReader(downloader(tmp_path), no_fetch).read(locked(path, seen[0]))


def test_a_page_in_html(tmp_path: Path) -> None:
    with serving(tmp_path) as seen:
        files = project_files(downloader(tmp_path), f"{seen[0]}/simple", "X")
    assert files is not None
    assert [(file.name, file.yanked, file.requires_python) for file in files] == [
        ("x-1.0+cu130-py3-none-any.whl", "", ">=3.9"),
        ("x-0.9.tar.gz", "broken", ""),
        ("x-0.8.tar.gz", "no reason given", ""),
    ]
    assert files[0].url == f"{seen[0]}/files/x-1.0%2Bcu130-py3-none-any.whl"


def test_a_page_that_is_none_and_a_project_that_is_not_there(tmp_path: Path) -> None:
    with serving(tmp_path, page=("application/json", '{"files": 7}')) as seen:
        with pytest.raises(FetchError, match="not a page of a package index"):
            project_files(downloader(tmp_path), f"{seen[0]}/simple", "x")
        assert project_files(downloader(tmp_path), f"{seen[0]}/simple", "y") is None
