"""contents.html and the SBOM of real bundles: built, verified, and opened in a real browser that can reach nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from airbundle.review.page import review_files
from airbundle_onsite.contract import layout
from parts import journeys, need, network, registry, reviews

BROWSER = "chromium-headless-shell"
FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def browse(directory: Path, *words: str, url: str) -> str:
    """Standard output of the browser, started without a network but loopback."""
    argv = [need.program(BROWSER), *FLAGS, f"--user-data-dir={directory / 'profile'}", *words, url]
    done = network.no_network(argv, env={**os.environ, "HOME": str(directory)}, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def screenshot(directory: Path, page: Path, width: int, *words: str) -> bytes:
    """A picture of the page's top, 2000 dots high."""
    picture = directory / f"{width}.png"
    browse(directory, f"--screenshot={picture}", f"--window-size={width},2000", *words, url=page.as_uri())
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG") and struct.unpack(">II", data[16:24]) == (width, 2000)
    assert len(data) > 50_000, "next to nothing was drawn"
    return data


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> journeys.Office:
    return journeys.Office(tmp_path_factory.mktemp("office"))


@pytest.fixture(scope="module")
def bundle(office: journeys.Office) -> Path:
    """The demo's bundle."""
    return office.build("demo-smollm2.toml", "v1")


@pytest.fixture(scope="module")
def image_bundle(office: journeys.Office, registry_server: registry.Registry, llama_image: str) -> Path:
    """A bundle around an image of some two hundred Debian packages."""
    return office.build("smollm2-docker.toml", "v1", f"image.source=registry:{llama_image}", "image.name=demo/llama:1")


def outer_names(bundle: Path) -> list[str]:
    return [each["name"] for each in json.loads((bundle / layout.MANIFEST).read_bytes())["outer"]]


def test_both_files_are_part_of_what_is_verified(bundle: Path, tmp_path: Path) -> None:
    assert {layout.CONTENTS, layout.SBOM} <= set(outer_names(bundle))
    subprocess.run(["sha256sum", "--quiet", "-c", layout.CHECKSUMS], cwd=bundle, check=True, timeout=120)
    journeys.airbundle("verify", bundle).check()
    page = bundle / layout.CONTENTS
    whole = page.read_bytes()
    try:
        page.write_bytes(whole.replace(b"127.0.0.1", b"127.0.0.2", 1))
        said = journeys.airbundle("verify", bundle).check(5)
        assert layout.CONTENTS in said.out + said.err
    finally:
        page.write_bytes(whole)


def test_the_same_lock_builds_the_same_bytes(office: journeys.Office, bundle: Path, tmp_path: Path) -> None:
    again = journeys.Office(tmp_path)
    lock = office.directory / "demo-smollm2.toml.v1.lock.json"
    (tmp_path / lock.name).write_bytes(lock.read_bytes())
    second = again.build("demo-smollm2.toml", "v1")
    for name in (layout.CONTENTS, layout.SBOM, layout.MANIFEST, layout.CHECKSUMS):
        assert (second / name).read_bytes() == (bundle / name).read_bytes(), name


def test_the_sbom_of_a_bundle_of_wheels(bundle: Path) -> None:
    text = (bundle / layout.SBOM).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = {each["name"]: each for each in json.loads(text)["components"]}
    manifest = json.loads((bundle / layout.MANIFEST).read_bytes())
    for wheel in manifest["wheels"]:
        assert found[wheel["name"]]["hashes"][0]["content"] == wheel["sha256"]
        assert found[wheel["name"]]["licenses"]
    assert found["smollm2"]["type"] == "machine-learning-model"
    onsite = hashlib.sha256((bundle / layout.ONSITE).read_bytes()).hexdigest()
    assert found["onsite.pyz"]["hashes"][0]["content"] == onsite


@pytest.mark.real("registry", "images")
@pytest.mark.timeout(600)
def test_the_sbom_lists_what_a_real_image_holds(image_bundle: Path) -> None:
    text = (image_bundle / layout.SBOM).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    names = {each["purl"].partition("@")[0] for each in document["components"] if "purl" in each}
    assert {"pkg:deb/debian/libc6", "pkg:deb/debian/llama.cpp", "pkg:deb/debian/ca-certificates"} <= names
    (image,) = [each for each in document["components"] if each["type"] == "container"]
    assert image["purl"].startswith("pkg:oci/llama@sha256:")
    (needed,) = [each["dependsOn"] for each in document["dependencies"] if each["ref"] == image["bom-ref"]]
    assert len(needed) > 100


@pytest.mark.real("browser", "netns")
def test_a_browser_shows_the_page(bundle: Path, tmp_path: Path) -> None:
    dom = browse(tmp_path, "--dump-dom", url=(bundle / layout.CONTENTS).as_uri())
    assert "<title>demo-smollm2 v1: contents of the bundle</title>" in dom
    for title in ("What it does on the host", "How it is started", "What is inside", "Files and hashes"):
        assert f">{title}</h2>" in dom
    for table in ("models", "model-files-1", "wheels", "parts", "outer", "config", "flags-1", "smoke"):
        assert f'<table id="{table}">' in dom
    manifest = json.loads((bundle / layout.MANIFEST).read_bytes())
    for each in (*manifest["payload"]["parts"], *manifest["wheels"]):
        assert each["sha256"] in dom


@pytest.mark.real("browser", "netns", "registry", "images")
@pytest.mark.timeout(600)
def test_a_browser_shows_what_an_image_holds(image_bundle: Path, tmp_path: Path) -> None:
    dom = browse(tmp_path, "--dump-dom", url=(image_bundle / layout.CONTENTS).as_uri())
    assert '<table id="images">' in dom and '<table id="packages-1-deb">' in dom
    assert re.search(r'<th scope="row">llama\.cpp</th>', dom)
    assert "without a way out" in dom


@pytest.mark.real("browser", "netns")
def test_it_can_be_drawn_wide_narrow_dark_and_on_paper(bundle: Path, tmp_path: Path) -> None:
    page = bundle / layout.CONTENTS
    light = [screenshot(tmp_path, page, width) for width in (1280, 400, 360)]
    assert screenshot(tmp_path, page, 1280, "--blink-settings=preferredColorScheme=0") != light[0]
    paper = tmp_path / "paper.pdf"
    browse(tmp_path, f"--print-to-pdf={paper}", url=page.as_uri())
    assert paper.read_bytes().startswith(b"%PDF") and paper.stat().st_size > 20_000


class Visitors(BaseHTTPRequestHandler):
    """Serves the page, and keeps a record of everything that is asked for."""

    page = b""
    asked: list[str]

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(self.server.page)))  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(self.server.page)  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def served(page: bytes) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Visitors) as server:
        server.page, server.asked = page, []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def visit(directory: Path, server: ThreadingHTTPServer) -> str:
    """Open the page over HTTP, every other name and address leading back to the same server."""
    port = server.server_address[1]
    argv = [
        *(need.program(BROWSER), *FLAGS, f"--user-data-dir={directory / 'profile'}"),
        f"--host-resolver-rules=MAP *:80 127.0.0.1:{port}, MAP *:443 127.0.0.1:{port}, MAP * 127.0.0.1",
        *("--virtual-time-budget=3000", "--dump-dom", f"http://127.0.0.1:{port}/contents.html"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(directory)})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.real("browser")
def test_nothing_but_the_page_is_ever_asked_for(bundle: Path, tmp_path: Path) -> None:
    with served((bundle / layout.CONTENTS).read_bytes()) as server:
        assert "demo-smollm2" in visit(tmp_path, server)
        assert server.asked == ["/contents.html"]  # type: ignore[attr-defined]


@pytest.mark.real("browser")
def test_markup_in_names_does_nothing_in_a_browser(tmp_path: Path) -> None:
    """Names that would fetch and run something, in a browser that would do it if they were not escaped."""
    attack = "<img src=/stolen.png><script>document.title=`owned`</script><style>@import url(/stolen.css)</style>"
    lock = reviews.lock(wheels=(dataclasses.replace(reviews.WHEELS[0], name=attack),))
    page = review_files(lock, reviews.manifest(lock), reviews.INVENTORY)[layout.CONTENTS]
    with served(page) as server:
        dom = visit(tmp_path, server)
        assert server.asked == ["/contents.html"]  # type: ignore[attr-defined]
    assert "&lt;img src=/stolen.png&gt;" in dom and "<title>demo v1" in dom
    raw = page.replace(b"&lt;", b"<").replace(b"&gt;", b">")
    with served(raw) as server:
        dom = visit(tmp_path, server)
        assert server.asked == ["/contents.html"], "the page's own policy stops it too"  # type: ignore[attr-defined]
        assert "<title>demo v1" in dom
    with served(raw.replace(b"Content-Security-Policy", b"X-Nothing")) as server:
        dom = visit(tmp_path, server)
        assert {"/stolen.png", "/stolen.css"} <= set(server.asked), "this test would see it"  # type: ignore[attr-defined]
        assert "<title>owned" in dom
