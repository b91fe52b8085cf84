"""Pushing a bundle to a registry and pulling it again: nothing twice, broken connections, and registries that lie."""

import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airbundle.oci.client import Place
from airbundle.oci.upload import CHUNK, Outgoing, RegistryUploader
from airbundle.push import ARTIFACT, TITLE, pull, push, read_reference
from airbundle_onsite.errors import FetchError, IntegrityError, UsageError
from airbundle_onsite.system import Silent
from parts.bundles import flip, make_bundle


class Registry:
    """The upload half of a registry, whose next answers go wrong as `faults` says: (method, status or "drop")."""

    def __init__(self):
        self.blobs, self.uploads, self.faults, self.seen = {}, {}, [], []

    def fault(self, method):
        if self.faults and self.faults[0][0] == method:
            return self.faults.pop(0)[1]
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Registry

    def log_message(self, format, *arguments):
        pass

    def answer(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def handle_one(self):
        path, size = self.path.partition("?")[0], int(self.headers["Content-Length"] or 0)
        self.state.seen.append((self.command, path))
        fault = self.state.fault(self.command)
        if fault == "drop":  # half of the body arrives
            self.state.uploads[path] += self.rfile.read(size // 2)
            self.close_connection = True
            self.connection.shutdown(2)
            return
        body = self.rfile.read(size)
        if fault:
            self.answer(fault)
        else:
            getattr(self, f"on_{self.command.lower()}")(path, body)

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = handle_one

    def on_head(self, path, body):
        self.answer(200 if path.rpartition("/")[2] in self.state.blobs else 404)

    def on_get(self, path, body):
        known = self.state.uploads.get(path)
        if known is None:
            self.answer(404)
        else:
            self.answer(204, Range=f"0-{max(0, len(known) - 1)}", Location=path)

    def on_post(self, path, body):
        place = f"/v2/a/blobs/uploads/{len(self.state.seen)}"
        self.state.uploads[place] = b""
        self.answer(202, Location=f"{place}?state=x")

    def on_patch(self, path, body):
        if int(self.headers["Content-Range"].partition("-")[0]) != len(self.state.uploads[path]):
            self.answer(416)
            return
        self.state.uploads[path] += body
        self.answer(202, Location=f"{path}?state=y", Range=f"0-{len(self.state.uploads[path]) - 1}")

    def on_put(self, path, body):
        digest = re.search(r"digest=(sha256:[0-9a-f]+)", self.path)[1]
        data = self.state.uploads.pop(path)
        if digest == f"sha256:{hashlib.sha256(data).hexdigest()}":
            self.state.blobs[digest] = data
        self.answer(201 if digest in self.state.blobs else 400)


@pytest.fixture
def fake():
    state = Registry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"state": state}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    state.host = f"127.0.0.1:{server.server_address[1]}"
    yield state
    server.shutdown()
    server.server_close()


class Clock:
    def __init__(self):
        self.waited = []

    def now(self):
        return 0.0

    monotonic = now

    def sleep(self, seconds):
        self.waited.append(seconds)


DATA = os.urandom(300_000)


def outgoing(data=DATA):
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blocks = lambda offset: (data[at : at + 10_000] for at in range(offset, len(data), 10_000))  # noqa: E731
    return Outgoing("part", digest, len(data), blocks)


def uploader(fake):
    return RegistryUploader(Place(fake.host, fake.host, "a"), os.environ.get, clock=Clock())


def test_a_blob_is_pushed_once(fake):
    told = []
    assert uploader(fake).blob(outgoing(), told.append)
    assert not uploader(fake).blob(outgoing(), told.append)
    assert list(fake.blobs.values()) == [DATA]
    assert told == [300_000, 300_000]


def test_an_empty_blob(fake):
    assert uploader(fake).blob(outgoing(b""), lambda _: None)
    assert list(fake.blobs.values()) == [b""]


def test_a_dropped_connection_goes_on_where_the_registry_says(fake):
    fake.faults = [("PATCH", "drop"), ("PATCH", "drop")]
    told = []
    assert uploader(fake).blob(outgoing(), told.append)
    assert list(fake.blobs.values()) == [DATA]
    assert sum(told) == 300_000
    assert [method for method, _ in fake.seen].count("POST") == 1


def test_an_upload_that_was_forgotten_begins_again(fake):
    fake.faults = [("PATCH", 503), ("GET", 404)]
    assert uploader(fake).blob(outgoing(), lambda _: None)
    assert [method for method, _ in fake.seen].count("POST") == 2
    assert list(fake.blobs.values()) == [DATA]


def test_a_registry_that_never_takes_it_is_given_up(fake):
    fake.faults = [("PATCH", 503)] * 50
    with pytest.raises(FetchError, match=r"part to .*/a: HTTP 503") as caught:
        uploader(fake).blob(outgoing(), lambda _: None)
    assert "not sent again" in caught.value.remedy


@pytest.mark.parametrize(
    ("status", "cure"), [(403, "docker login"), (404, "name of the repository"), (413, "smaller parts")]
)
def test_refusals_are_told_with_their_cure(fake, status, cure):
    fake.faults = [("POST", status)]
    with pytest.raises(FetchError, match=f"HTTP {status}") as caught:
        uploader(fake).blob(outgoing(), lambda _: None)
    assert cure in caught.value.remedy


def test_chunks_of_a_large_blob(fake):
    data = bytes(CHUNK + 5000)
    assert uploader(fake).blob(outgoing(data), lambda _: None)
    assert [method for method, _ in fake.seen].count("PATCH") == 2
    assert {len(each) for each in fake.blobs.values()} == {CHUNK + 5000}


@pytest.mark.parametrize("text", ["127.0.0.1:5000/a:1", "oci:a", "registry:", "registry:HOST/UPPER/x:1"])
def test_references_that_are_none(text):
    with pytest.raises(UsageError):
        read_reference(text)


# --- with a real registry ---------------------------------------------------------------------------------
@pytest.fixture
def bundle(tmp_path):
    return make_bundle(tmp_path / "bundle", {"models/m/w": os.urandom(2_500_000)}, part_size=1_000_000)


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.real("registry")
def test_there_and_back(bundle, registry, tmp_path):
    target = f"registry:{registry.host}/transport/there:1"
    made = push(bundle, target, environ=os.environ.get, talk=Silent())
    assert made.digest == registry.digest("transport/there", "1")
    assert made.known == 0
    pulled = pull(target, tmp_path / "out", environ=os.environ.get, talk=Silent())
    assert pulled.digest == made.digest
    assert files(tmp_path / "out/demo-1") == files(bundle)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["demo-1"]
    by_digest = f"registry:{registry.host}/transport/there@{made.digest}"
    pull(by_digest, tmp_path / "again", environ=os.environ.get, talk=Silent())
    assert files(tmp_path / "again/demo-1") == files(bundle)


@pytest.mark.real("registry")
def test_what_is_there_is_not_sent_again(bundle, registry):
    target = f"registry:{registry.host}/transport/twice:1"
    first = push(bundle, target, environ=os.environ.get, talk=Silent())
    second = push(bundle, target, environ=os.environ.get, talk=Silent())
    assert (second.sent, second.known, second.digest) == (0, first.sent, first.digest)


@pytest.mark.real("registry")
def test_a_bad_part_is_never_pushed(bundle, registry):
    flip(bundle / "payload.tar.001", 5)
    with pytest.raises(IntegrityError, match=r"payload\.tar\.001, piece 1 of 1"):
        push(bundle, f"registry:{registry.host}/transport/bad:1", environ=os.environ.get, talk=Silent())
    assert registry.tags("transport/bad") == []


@pytest.mark.real("registry")
def test_a_pull_goes_on_where_it_stopped(bundle, registry, tmp_path):
    """The first try finds a part gone; when that is there again, only that one is fetched."""
    target = f"registry:{registry.host}/transport/broken:1"
    push(bundle, target, environ=os.environ.get, talk=Silent())
    value = hashlib.sha256((bundle / "payload.tar.002").read_bytes()).hexdigest()
    blob = registry.storage / f"docker/registry/v2/blobs/sha256/{value[:2]}/{value}/data"
    data = blob.read_bytes()
    blob.unlink()
    with pytest.raises(FetchError):
        pull(target, tmp_path / "out", environ=os.environ.get, talk=Silent())
    assert not (tmp_path / "out/demo-1").exists()
    blob.write_bytes(data)
    for path in registry.storage.glob("docker/registry/v2/blobs/sha256/*/*/data"):
        if path.stat().st_size == 1_000_000 and path != blob:
            path.write_bytes(bytes(1_000_000))  # whoever fetched these again would notice
    pull(target, tmp_path / "out", environ=os.environ.get, talk=Silent())
    assert files(tmp_path / "out/demo-1") == files(bundle)


def relabelled(registry, repository, change):
    """Change the manifest that a tag points to, and push it under the same tag."""
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = f"http://{registry.host}/v2/{repository}/manifests/1"
    kind = "application/vnd.oci.image.manifest.v1+json"
    with opener.open(urllib.request.Request(url, headers={"Accept": kind})) as answer:
        document = json.load(answer)
    change(document)
    body = json.dumps(document).encode()
    opener.open(urllib.request.Request(url, body, {"Content-Type": kind}, method="PUT")).close()


def _mixed_up(document):
    one, two = document["layers"][-2], document["layers"][-3]
    one["annotations"], two["annotations"] = two["annotations"], one["annotations"]


@pytest.mark.real("registry")
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            lambda doc: doc["layers"][0]["annotations"].update({TITLE: "../../x"}),
            FetchError,
            r"a file is called '\.\./",
        ),
        (lambda doc: doc["layers"][0]["annotations"].update({TITLE: "bundle.JSON"}), FetchError, "have one name"),
        (lambda doc: doc.update(artifactType="application/vnd.other"), FetchError, f"needed {re.escape(ARTIFACT)}"),
        (lambda doc: doc["layers"][0].pop("annotations"), FetchError, "cannot be read"),
        (lambda doc: doc["layers"].pop(), IntegrityError, "not a whole bundle"),
        (_mixed_up, IntegrityError, r"payload\.tar\.000, payload\.tar\.001 is not what bundle\.json lists"),
    ],
)
def test_artifacts_that_lie(bundle, registry, tmp_path, change, error, words):
    target = f"registry:{registry.host}/transport/lies:1"
    push(bundle, target, environ=os.environ.get, talk=Silent())
    relabelled(registry, "transport/lies", change)
    with pytest.raises(error, match=words) as caught:
        pull(target, tmp_path / "out", environ=os.environ.get, talk=Silent())
    assert caught.value.remedy
    assert not (tmp_path / "out/demo-1").exists()
    assert not (tmp_path / "x").exists()
