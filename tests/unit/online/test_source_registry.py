"""Images from a real registry, and from registries that want logins or hold the wrong things."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from airbundle.contract.spec import ImageTable
from airbundle.fetch import fetch_all
from airbundle.oci.reference import HUB, parse
from airbundle.sources import registry as source_module
from airbundle_onsite.errors import FetchError, UsageError
from parts.images import ARCHITECTURES, Config, small_image
from parts.registry import Registry
from parts.sources import context, forget

PLATFORM = f"linux/{ARCHITECTURES['x86_64']}"
OCI = "application/vnd.oci.image"
INDEX, MANIFEST, CONFIG = f"{OCI}.index.v1+json", f"{OCI}.manifest.v1+json", f"{OCI}.config.v1+json"
LAYER = f"{OCI}.layer.v1.tar"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class FakeRegistry:
    """A registry of documents made in the test, with a login when asked for one."""

    def __init__(self, url: str) -> None:
        self.host = url.removeprefix("http://")
        self.documents: dict[str, tuple[str, bytes]] = {}
        self.challenge = ""
        self.accepted = ""
        self.token_seen: list[tuple[str, str]] = []
        self.requests: list[str] = []

    def add(self, media_type: str, document: object, *, tag: str = "") -> dict[str, object]:
        """Keep a document or blob; returns its descriptor."""
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        for name in (digest_of(data), tag):
            self.documents[name] = (media_type, data)
        return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}

    def add_image(
        self, architecture: str = "amd64", *, tag: str = "", layer_type: str = LAYER, **changes: object
    ) -> dict[str, object]:
        """An image of one layer."""
        layer = self.add(layer_type, f"layer for {architecture}".encode())
        config = {"os": "linux", "architecture": architecture, "rootfs": {"diff_ids": [layer["digest"]]}} | changes
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": self.add(CONFIG, config), "layers": [layer]}
        return self.add(MANIFEST, manifest, tag=tag) | {"platform": {"os": "linux", "architecture": architecture}}


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    state = FakeRegistry(f"http://127.0.0.1:{server.server_address[1]}")
    _Handler.state = state
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: ClassVar[FakeRegistry]

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        state, path = self.state, self.path.partition("?")[0]
        given = self.headers.get("Authorization") or ""
        state.requests.append(path)
        if path == "/token":
            state.token_seen.append((given, self.path.partition("?")[2]))
            self._answer(200, "application/json", json.dumps({"token": "the-token"}).encode())
        elif state.accepted and given != state.accepted:
            self._answer(401, "application/json", b"{}", {"WWW-Authenticate": state.challenge})
        else:
            media_type, data = state.documents.get(path.rpartition("/")[2], ("", b""))
            self._answer(200 if media_type else 404, media_type or "application/json", data)

    def _answer(self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def table(fake: FakeRegistry, rest: str = "org/app:1") -> ImageTable:
    return ImageTable(source=f"registry:{fake.host}/{rest}")


@pytest.mark.real("registry")
def test_image_of_a_real_registry(registry: Registry, tmp_path: Path) -> None:
    settings = Config(entrypoint=("/bin/app", "--serve"), env=("PATH=/bin", "NVIDIA_REQUIRE_CUDA=cuda>=12.8"))
    archive = small_image(tmp_path, "small", {"bin/app": b"#!/bin/sh\n", "data": bytes(300_000)}, settings)
    pinned = registry.push(archive, "airbundle-test/small:1")
    given = context(tmp_path)
    source = source_module.create(given)
    locked = source.lock_image(ImageTable(f"registry:{registry.host}/airbundle-test/small:1"), PLATFORM)
    assert locked.name == "airbundle-test/small:1"
    assert f"{registry.host}/airbundle-test/small@{locked.source_digest}" == pinned
    assert locked.manifest.path == locked.source_digest == archive.manifest_digest
    assert locked.config.path == archive.config_digest
    assert locked.platform == PLATFORM
    assert locked.entrypoint == ("/bin/app", "--serve")
    assert locked.require_cuda == "cuda>=12.8"
    assert [layer.digest for layer in locked.layers] == [blob.path for blob in locked.blobs]
    assert locked.layers[0].diff_id != locked.layers[0].digest
    items = (locked.manifest, locked.config, *locked.blobs)
    fetch_all(items, lambda scheme: source, given.cache, given.talk)
    for item in items:
        assert digest_of(given.cache.path(item.sha256).read_bytes()) == item.path
    for item in items:
        forget(given.cache, item)
    fetch_all(items, lambda scheme: source, given.cache, given.talk)
    by_digest = source.lock_image(ImageTable(f"registry:{pinned}"), PLATFORM)
    assert by_digest.manifest == locked.manifest
    assert by_digest.name == f"airbundle-test/small:{locked.source_digest[7:19]}"


@pytest.mark.real("registry")
def test_damaged_layer_in_a_real_registry(registry: Registry, tmp_path: Path) -> None:
    archive = small_image(tmp_path, "damaged", {"data": bytes(range(256)) * 1000})
    registry.push(archive, "airbundle-test/damaged:1")
    given = context(tmp_path)
    source = source_module.create(given)
    locked = source.lock_image(ImageTable(f"registry:{registry.host}/airbundle-test/damaged:1"), PLATFORM)
    (blob,) = locked.blobs
    (stored,) = registry.storage.rglob(f"{blob.sha256}/data")
    data = bytearray(stored.read_bytes())
    data[len(data) // 2] ^= 0xFF
    stored.write_bytes(data)
    with pytest.raises(FetchError) as caught:
        fetch_all([blob], lambda scheme: source, given.cache, given.talk)
    assert "wrong bytes, twice" in caught.value.details[0]
    assert blob.path in caught.value.details[0]


@pytest.mark.real("registry")
def test_tag_that_is_not_there(registry: Registry, tmp_path: Path) -> None:
    source = source_module.create(context(tmp_path))
    with pytest.raises(FetchError, match="HTTP 404") as caught:
        source.lock_image(ImageTable(f"registry:{registry.host}/airbundle-test/absent:1"), PLATFORM)
    assert "check repository and tag" in caught.value.remedy


def test_one_platform_of_an_index(fake: FakeRegistry, tmp_path: Path) -> None:
    amd, arm = fake.add_image("amd64"), fake.add_image("arm64")
    attestation = fake.add(MANIFEST, {"a": 1}) | {"platform": {"os": "unknown", "architecture": "unknown"}}
    index = fake.add(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": [attestation, arm, amd]}, tag="1")
    given = context(tmp_path)
    source = source_module.create(given)
    locked = source.lock_image(table(fake), "linux/amd64")
    assert locked.source_digest == index["digest"]
    assert locked.manifest.path == amd["digest"]
    assert source.lock_image(table(fake), "linux/arm64/v8").manifest.path == arm["digest"]
    with pytest.raises(FetchError, match="no image for linux/s390x") as caught:
        source.lock_image(table(fake), "linux/s390x")
    assert caught.value.details == ("has linux/arm64", "has linux/amd64")


def test_image_for_another_machine(fake: FakeRegistry, tmp_path: Path) -> None:
    fake.add_image("arm64", tag="1")
    with pytest.raises(FetchError, match="an image for linux/arm64, needed is linux/amd64"):
        source_module.create(context(tmp_path)).lock_image(table(fake), "linux/amd64")


def test_things_that_are_refused_by_name(fake: FakeRegistry, tmp_path: Path) -> None:
    source = source_module.create(context(tmp_path))
    fake.add(
        "application/vnd.docker.distribution.manifest.v1+prettyjws", {"schemaVersion": 1, "fsLayers": []}, tag="old"
    )
    fake.add_image(tag="foreign", layer_type="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")
    fake.add_image(tag="odd", layer_type="application/x-odd")
    fake.add_image(tag="layers", rootfs={"diff_ids": []})
    chart = {"schemaVersion": 2, "config": fake.add("application/vnd.cncf.helm.config.v1+json", {}), "layers": []}
    fake.add(MANIFEST, chart, tag="chart")
    sha512 = {"schemaVersion": 2, "config": {"digest": "sha512:00", "size": 1, "mediaType": CONFIG}, "layers": []}
    fake.add(MANIFEST, sha512, tag="sha512")
    fake.add(MANIFEST, b"<html>", tag="html")
    for tag, words in {
        "old": "schema 1",
        "foreign": "may not be distributed",
        "odd": "unknown type",
        "layers": "1 layers, its configuration tells of 0",
        "chart": "helm.config",
        "sha512": "is not a digest like sha256",
        "html": "not JSON",
    }.items():
        with pytest.raises(FetchError, match=re.escape(f"org/app:{tag}: ") + f".*{words}"):
            source.lock_image(table(fake, f"org/app:{tag}"), "linux/amd64")


def test_wrong_manifest_for_a_digest(fake: FakeRegistry, tmp_path: Path) -> None:
    image = fake.add_image(tag="1")
    fake.documents[str(image["digest"])] = (MANIFEST, b"{}")
    with pytest.raises(FetchError, match="wrong bytes") as caught:
        source_module.create(context(tmp_path)).lock_image(table(fake, f"org/app@{image['digest']}"), "linux/amd64")
    assert caught.value.details == (f"found {digest_of(b'{}')}", f"needed {image['digest']}")


def login(directory: Path, host: str, **entry: str) -> dict[str, str]:
    """docker's configuration with one login; returns the environment that names it."""
    pair = base64.b64encode(b"me:secret").decode()
    (directory / "config.json").write_text(json.dumps({"auths": {host: entry or {"auth": pair}}}))
    return {"DOCKER_CONFIG": str(directory)}


def test_basic_login(fake: FakeRegistry, tmp_path: Path) -> None:
    fake.add_image(tag="1")
    fake.challenge = 'Basic realm="here"'
    fake.accepted = f"Basic {base64.b64encode(b'me:secret').decode()}"
    with pytest.raises(FetchError, match="HTTP 401") as caught:
        source_module.create(context(tmp_path)).lock_image(table(fake), "linux/amd64")
    assert f"docker login {fake.host}" in caught.value.remedy
    locked = source_module.create(context(tmp_path, login(tmp_path, fake.host))).lock_image(table(fake), "linux/amd64")
    assert "secret" not in str(locked)


@pytest.mark.parametrize("logged_in", [True, False])
def test_bearer_token(fake: FakeRegistry, tmp_path: Path, logged_in: bool) -> None:
    fake.add_image(tag="1")
    realm = f"http://{fake.host}/token"
    fake.challenge = f'Bearer realm="{realm}",service="svc",scope="repository:org/app:pull"'
    fake.accepted = "Bearer the-token"
    given = context(tmp_path, login(tmp_path, fake.host) if logged_in else None)
    source = source_module.create(given)
    locked = source.lock_image(table(fake), "linux/amd64")
    fetch_all(locked.blobs, lambda scheme: source, given.cache, given.talk)
    ((authorization, query),) = fake.token_seen
    assert authorization.startswith("Basic ") == logged_in
    assert query == "service=svc&scope=repository%3Aorg%2Fapp%3Apull"


def test_token_from_an_unencrypted_place_is_not_asked_for(fake: FakeRegistry, tmp_path: Path) -> None:
    fake.challenge, fake.accepted = 'Bearer realm="http://auth.example/token"', "Bearer x"
    with pytest.raises(FetchError, match="without encryption"):
        source_module.create(context(tmp_path, login(tmp_path, fake.host))).lock_image(table(fake), "linux/amd64")


@pytest.mark.filterwarnings("ignore:docker-credential")
def test_credential_helper_that_is_not_there(fake: FakeRegistry, tmp_path: Path) -> None:
    fake.challenge, fake.accepted = 'Basic realm="here"', "Basic x"
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "absent-for-sure"}))
    given = context(tmp_path, {"DOCKER_CONFIG": str(tmp_path)})
    with pytest.raises(FetchError, match="credential store"):
        source_module.create(given).lock_image(table(fake), "linux/amd64")


@pytest.mark.parametrize(
    ("text", "host", "repository", "wanted", "site"),
    [
        ("debian", HUB, "library/debian", "latest", "debian:latest"),
        ("debian:12", HUB, "library/debian", "12", "debian:12"),
        ("vllm/vllm-openai:v1", HUB, "vllm/vllm-openai", "v1", "vllm/vllm-openai:v1"),
        ("localhost/x/y", "localhost", "x/y", "latest", "x/y:latest"),
        ("reg.example:5000/a:b", "reg.example:5000", "a", "b", "a:b"),
        ("nvcr.io/nvidia/cuda:13", "nvcr.io", "nvidia/cuda", "13", "nvcr.io/nvidia/cuda:13"),
        (f"reg.example/a:b@sha256:{'a' * 64}", "reg.example", "a", f"sha256:{'a' * 64}", "reg.example/a:b"),
        (f"reg.example/a@sha256:{'a' * 64}", "reg.example", "a", f"sha256:{'a' * 64}", "reg.example/a:aaaaaaaaaaaa"),
    ],
)
def test_names(text: str, host: str, repository: str, wanted: str, site: str) -> None:
    reference = parse(text)
    assert (reference.host, reference.repository, reference.wanted) == (host, repository, wanted)
    assert reference.site_name == site


@pytest.mark.parametrize(
    "text", ["", "reg.example/UP:1", "a:b:c", "a@md5:00", "reg.example/a@sha256:12", "a//b", "a/../b"]
)
def test_names_that_no_registry_has(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)
