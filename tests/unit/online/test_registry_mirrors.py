"""Mirrors, broken connections, redirects and encryption: how blobs of an image come over HTTP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airbundle.cache import Cache
from airbundle.contract.spec import ImageTable
from airbundle.fetch import fetch_all
from airbundle.oci.client import Place, mirror_place
from airbundle.sources import registry as source_module
from airbundle_onsite.errors import FetchError, UsageError
from parts.files import FileServer, Spoil, serving
from parts.layouts import Descriptor, Layout, digest_of, layer_tar
from parts.process import free_port
from parts.sources import Heard, context

PLATFORM = "linux/amd64"


def offer(server: FileServer, made: Layout, image: Descriptor, repository: str = "org/app") -> None:
    """Serve a layout's blobs as a registry would."""
    for digest, data in made.blobs.items():
        server.files[f"v2/{repository}/blobs/{digest}"] = data
    for name in ("1", str(image["digest"])):
        server.files[f"v2/{repository}/manifests/{name}"] = made.blobs[str(image["digest"])]


def host_of(server: FileServer) -> str:
    return server.url.removeprefix("http://").rstrip("/")


@pytest.fixture
def servers() -> Iterator[tuple[FileServer, FileServer]]:
    """A mirror, and the registry itself."""
    with ExitStack() as stack:
        yield stack.enter_context(serving()), stack.enter_context(serving())


@pytest.fixture
def made() -> tuple[Layout, Descriptor]:
    layout = Layout()
    return layout, layout.image([(layer_tar({"a": os.urandom(300_000)}), "+gzip"), (layer_tar({"b": b"b"}), "")])


def table(origin: FileServer, *mirrors: str) -> ImageTable:
    return ImageTable(f"registry:{host_of(origin)}/org/app:1", mirrors=mirrors)


def test_mirror_is_asked_first(
    servers: tuple[FileServer, FileServer], made: tuple[Layout, Descriptor], tmp_path: Path
) -> None:
    mirror, origin = servers
    offer(mirror, *made, repository="proxy/org/app")
    given = context(tmp_path)
    source = source_module.create(given)
    locked = source.lock_image(table(origin, f"{host_of(mirror)}/proxy"), PLATFORM)
    fetch_all((locked.manifest, *locked.blobs), lambda scheme: source, given.cache, given.talk)
    assert origin.requests == []
    assert locked.name == "org/app:1"
    assert all(item.origin["mirrors"] == f"{host_of(mirror)}/proxy" for item in locked.blobs)


@pytest.mark.parametrize("fault", ["silent", "empty", "wrong"])
def test_mirror_that_fails(
    servers: tuple[FileServer, FileServer], made: tuple[Layout, Descriptor], tmp_path: Path, fault: str
) -> None:
    mirror, origin = servers
    layout, image = made
    offer(origin, layout, image)
    where = host_of(mirror)
    if fault == "silent":
        where = f"127.0.0.1:{free_port()}"
    if fault == "wrong":
        offer(mirror, layout, image)
        for name in [name for name in mirror.files if "/blobs/" in name]:
            mirror.files[name] = bytes(len(mirror.files[name]))
    talk = Heard()
    given = context(tmp_path, talk=talk)
    source = source_module.create(given)
    locked = source.lock_image(table(origin, where), PLATFORM)
    fetch_all((locked.manifest, *locked.blobs), lambda scheme: source, given.cache, given.talk)
    for item in locked.blobs:
        assert digest_of(given.cache.path(item.sha256).read_bytes()) == item.path
    told = [line for line in talk.said if "mirror" in line]
    assert len(told) == (0 if fault == "empty" else 1)
    assert all(where in line for line in told)


def test_layer_whose_connection_breaks_goes_on_where_it_stopped(
    made: tuple[Layout, Descriptor], tmp_path: Path
) -> None:
    layout, image = made
    layer = layout.layers_of(image)[0]
    name = f"v2/org/app/blobs/{layer}"
    with serving() as origin:
        offer(origin, layout, image)
        origin.spoils[name] = [Spoil("drop", 100_000), Spoil("status", 503), Spoil("drop", 50_000)]
        given = context(tmp_path)
        source = source_module.create(given)
        locked = source.lock_image(table(origin), PLATFORM)
        fetch_all(locked.blobs, lambda scheme: source, given.cache, given.talk)
        assert origin.sent(name) == len(layout.blobs[layer])
        asked = [ranged for each, ranged, _ in origin.requests if each == name]
    assert asked == ["", "bytes=100000-", "bytes=150000-"]


CHILD = """
import os, sys
from pathlib import Path
from airbundle import sources
from airbundle.cache import Cache
from airbundle.contract.spec import ImageTable
from airbundle.fetch import fetch_all
from airbundle.sources.base import SourceContext
from airbundle_onsite.system import Silent, SystemRunner
context = SourceContext(Cache(Path(sys.argv[1])), Silent(), SystemRunner(), Path.cwd(), os.environ.get)
source = sources.create("registry", context)
locked = source.lock_image(ImageTable(sys.argv[2]), "linux/amd64")
fetch_all((locked.manifest, locked.config, *locked.blobs), lambda scheme: source, context.cache, Silent())
print(locked.manifest.sha256)
"""


@pytest.mark.parametrize("packing", ["+gzip", "+zstd"])
def test_pull_that_is_killed_is_taken_up_again(tmp_path: Path, packing: str) -> None:
    """kill -9 while layers arrive, zstd ones while locking: the second run asks only for the bytes that are missing."""
    layout = Layout()
    tars = [layer_tar({"data": os.urandom(1_500_000)}) for _ in range(3)]
    image = layout.image([(tar, packing) for tar in tars])
    with serving() as origin:
        offer(origin, layout, image)
        cache = Cache(tmp_path / "cache")
        argv = [sys.executable, "-c", CHILD, str(cache.root), f"registry:{host_of(origin)}/org/app:1"]
        origin.pause = 0.02
        child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        partial, deadline = cache.root / "partial", time.monotonic() + 60
        while not any(path.stat().st_size > 200_000 for path in (partial.iterdir() if partial.is_dir() else ())):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        assert child.wait(20) != 0
        here = sum(path.stat().st_size for path in partial.iterdir() if path.name in _names(layout, image))
        whole = sum(size for name in _names(layout, image) if (size := _size(cache.path(name))))
        assert here + whole > 200_000
        origin.pause = 0
        time.sleep(0.3)
        origin.requests.clear()
        done = subprocess.run(argv, check=True, timeout=60, capture_output=True, text=True)
        sent = sum(count for name, _, count in origin.requests if name.rpartition(":")[2] in _names(layout, image))
        assert sent == sum(len(layout.blobs[layer]) for layer in layout.layers_of(image)) - here - whole
        assert cache.path(done.stdout.strip()).exists()
        wanted = layout.layers_of(image) if packing == "+gzip" else [digest_of(tar) for tar in tars]
        assert all(digest_of(cache.path(digest[7:]).read_bytes()) == digest for digest in wanted)


def _names(layout: Layout, image: Descriptor) -> set[str]:
    return {digest[7:] for digest in layout.layers_of(image)}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def redirecting(target: str) -> Iterator[tuple[str, list[str]]]:
    """A registry that wants a login and sends clients elsewhere for blobs; gives its host and what it was told."""
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            login = self.headers.get("Authorization") or ""
            heard.append(login)
            if login:
                self.send_response(307)
                self.send_header("Location", f"{target}{self.path.lstrip('/')}?signature=key")
            else:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", heard
    finally:
        server.shutdown()
        server.server_close()


def test_login_stays_with_the_registry_when_it_sends_blobs_from_elsewhere(
    made: tuple[Layout, Descriptor], tmp_path: Path
) -> None:
    layout, image = made
    with serving() as storage, redirecting(storage.url.replace("127.0.0.1", "localhost")) as (host, heard):
        offer(storage, layout, image)
        (tmp_path / "config.json").write_text(f'{{"auths": {{"{host}": {{"auth": "bWU6c2VjcmV0"}}}}}}')
        given = context(tmp_path, {"DOCKER_CONFIG": str(tmp_path)})
        source = source_module.create(given)
        locked = source.lock_image(ImageTable(f"registry:{host}/org/app:1"), PLATFORM)
        fetch_all(locked.blobs, lambda scheme: source, given.cache, given.talk)
        assert "Basic bWU6c2VjcmV0" in heard
        assert storage.authorized == []


def test_encryption_is_left_out_only_on_loopback_or_by_name() -> None:
    assert Place("reg.example:5000", "reg.example:5000", "a").url == "https://reg.example:5000/v2/a"
    assert Place("reg.example:5000", "reg.example:5000", "a", insecure=True).url == "http://reg.example:5000/v2/a"
    assert Place("127.0.0.1:5000", "127.0.0.1:5000", "a").url == "http://127.0.0.1:5000/v2/a"
    assert Place("localhost:5000", "localhost:5000", "a").url == "http://localhost:5000/v2/a"
    assert Place("[::1]:5000", "[::1]:5000", "a").url == "http://[::1]:5000/v2/a"
    assert mirror_place("http://10.0.0.1:5000/x", "a").url == "http://10.0.0.1:5000/v2/x/a"
    assert mirror_place("mirror.example", "a/b").url == "https://mirror.example/v2/a/b"
    for wrong in ("", "ftp://x", "a b", "user:secret@host"):
        with pytest.raises(UsageError, match="not a registry"):
            mirror_place(wrong, "a")


def test_mirrors_are_for_registries_only() -> None:
    with pytest.raises(ValueError, match="mirrors and insecure are for a registry"):
        ImageTable("daemon:x:1", mirrors=("a",))


def test_every_place_fails(servers: tuple[FileServer, FileServer], tmp_path: Path) -> None:
    mirror, origin = servers
    with pytest.raises(FetchError, match=f"{host_of(origin)}.*HTTP 404"):
        source_module.create(context(tmp_path)).lock_image(table(origin, host_of(mirror)), PLATFORM)
