"""A plain HTTP folder as a source: ranges and none, broken connections, spoiled pieces, servers that are no help."""

import functools
import hashlib
import http.server
import ssl
import subprocess
import threading

import pytest

from airbundle_onsite.contract import layout
from airbundle_onsite.errors import FetchError, UsageError
from airbundle_onsite.system import Silent
from airbundle_onsite.transport.web import WebFolder, fetch_small_files
from airbundle_onsite.verify.bundle import trust
from airbundle_onsite.verify.media import Unreadable
from airbundle_onsite.verify.parts import check_parts
from airbundle_onsite.verify.stream import joined_payload
from parts import files, need
from parts.bundles import make_bundle


class Clock:
    """Time that passes when somebody waits."""

    def __init__(self):
        self.waited = []

    def now(self):
        return 0.0

    def monotonic(self):
        return sum(self.waited)

    def sleep(self, seconds):
        self.waited.append(seconds)


@pytest.fixture
def server():
    with files.serving() as running:
        yield running


@pytest.fixture
def bundle(tmp_path):
    content = b"".join(hashlib.sha256(str(index).encode()).digest() for index in range(100_000))
    return make_bundle(tmp_path / "bundle", {"models/m/w": content}, part_size=1_000_000)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(server, bundle, clock):
    """The bundle's directory on that server."""
    server.files.update({f"b/{path.name}": path.read_bytes() for path in bundle.iterdir()})
    return WebFolder(f"{server.url}b", clock)


def payload(bundle, folder):
    return b"".join(joined_payload(trust(bundle, source=folder), Silent()))


def whole(bundle):
    return b"".join(path.read_bytes() for path in sorted(bundle.glob("payload.tar.*")))


def test_parts_come_from_the_server(bundle, folder, server):
    assert payload(bundle, folder) == whole(bundle)
    assert all(server.sent(f"b/{part.name}") == part.stat().st_size for part in bundle.glob("payload.tar.*"))


def test_they_are_verified_where_they_are(bundle, folder):
    checks = check_parts(trust(bundle, source=folder), Silent())
    assert [check.status for check in checks] == ["pass"] * 4


def test_a_broken_connection_goes_on_where_it_broke(bundle, folder, server):
    server.spoils["b/payload.tar.001"] = [files.Spoil("drop", 300_000), files.Spoil("drop", 100_000)]
    assert payload(bundle, folder) == whole(bundle)
    asked = [each for name, each, _ in server.requests if name == "b/payload.tar.001"]
    assert asked == ["", "bytes=300000-", "bytes=400000-"]
    assert server.sent("b/payload.tar.001") == 1_000_000


def test_a_spoiled_piece_is_fetched_once_more(bundle, folder, server):
    server.spoils["b/payload.tar.002"] = [files.Spoil("flip")]
    assert payload(bundle, folder) == whole(bundle)
    assert server.sent("b/payload.tar.002") == 2_000_000


def test_a_part_that_is_bad_on_the_server_is_blamed(bundle, folder, server):
    data = bytearray(server.files["b/payload.tar.002"])
    data[5] ^= 1
    server.files["b/payload.tar.002"] = bytes(data)
    checks = check_parts(trust(bundle, source=folder), Silent())
    assert [check.status for check in checks] == ["pass", "pass", "fail", "pass"]
    assert f"in {server.url}b/: found SHA-256" in checks[2].evidence[0]


def test_busy_answers_are_waited_for(bundle, folder, server):
    server.spoils["b/payload.tar.000"] = [files.Spoil("status", 503), files.Spoil("status", 429)]
    assert payload(bundle, folder) == whole(bundle)


def test_a_part_that_is_not_there_is_missing(bundle, tmp_path, server, folder):
    del server.files["b/payload.tar.003"]
    checks = check_parts(trust(bundle, source=folder), Silent())
    assert "404" in checks[3].evidence[0]


@pytest.fixture
def plain_server(bundle):
    """The standard library's own, which many sites use: it knows HEAD, and no ranges."""
    handler = functools.partial(_Quiet, directory=str(bundle))
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{running.server_address[1]}/"
    running.shutdown()
    running.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *arguments):
        pass


def test_a_server_without_ranges_is_read_in_order(bundle, plain_server):
    folder = WebFolder(plain_server, Clock())
    assert payload(bundle, folder) == whole(bundle)
    assert folder.copies("payload.tar.001")[0].size() == 1_000_000
    assert folder.copies("payload.tar.077") == ()


def test_a_server_without_ranges_can_be_asked_for_the_middle(bundle, plain_server):
    folder = WebFolder(plain_server, Clock())
    part = (bundle / "payload.tar.001").read_bytes()
    assert b"".join(folder.blocks("payload.tar.001", 700_000, 1000)) == part[700_000:701_000]
    assert b"".join(folder.blocks("payload.tar.001", 2_000_000, 1000)) == b""


def test_ranges_ignored_in_the_middle_of_a_body(bundle, folder, server):
    server.spoils["b/payload.tar.001"] = [files.Spoil("drop", 500_000), files.Spoil("whole")]
    assert payload(bundle, folder) == whole(bundle)


def test_a_server_that_never_answered_is_given_up_soon():
    clock = Clock()
    folder = WebFolder("http://127.0.0.1:9/b", clock)
    for _ in range(3):
        with pytest.raises(Unreadable, match=r"127\.0\.0\.1:9/b/x: Connection refused"):
            list(folder.blocks("x", 0, 1))
    assert sum(clock.waited) == 3.0


def test_a_server_that_goes_away_is_waited_for_a_minute_and_then_given_up(folder, server, clock):
    assert folder.small("bundle.json")
    server.spoils["b/payload.tar.000"] = [files.Spoil("status", 503)] * 99
    for _ in range(2):
        with pytest.raises(Unreadable, match="the server says 503"):
            list(folder.blocks("payload.tar.000", 0, 1))
    assert sum(clock.waited) == 60.0


def test_proxy_variables_do_not_count(bundle, folder, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert payload(bundle, WebFolder(folder.url, Clock())) == whole(bundle)


def test_a_proxy_that_is_named_is_used(server):
    """The proxy is the file server itself: it gets the whole URL in place of a path."""
    server.files["http://fileserver.example/b/x"] = b"through the proxy"
    folder = WebFolder("http://fileserver.example/b/", Clock(), proxy=server.url)
    assert folder.small("x") == b"through the proxy"


@pytest.fixture
def https(bundle, tmp_path):
    """The bundle over https, and the file of the certificate, which no system knows."""
    certificate = tmp_path / "cert.pem"
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        *("-keyout", certificate, "-out", tmp_path / "only.pem"),
    )
    with certificate.open("a") as handle:
        handle.write((tmp_path / "only.pem").read_text())
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(bundle)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    running.socket = context.wrap_socket(running.socket, server_side=True)
    threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
    yield f"https://localhost:{running.server_address[1]}/", tmp_path / "only.pem"
    running.shutdown()
    running.server_close()


def _openssl(*words):
    subprocess.run([need.program("openssl"), *map(str, words)], check=True, capture_output=True, timeout=60)


def test_a_certificate_that_nobody_knows_is_not_tried_again(https, clock):
    url, _ = https
    with pytest.raises(Unreadable, match="its certificate is not trusted here"):
        WebFolder(url, clock).small("bundle.json")
    assert clock.waited == []


def test_https_with_an_authority_of_the_site(https, clock, bundle, monkeypatch):
    url, authority = https
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    assert payload(bundle, WebFolder(url, clock)) == whole(bundle)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://server/b",
        "file:///etc/passwd",
        "http://",
        "http://user:secret@server/b",
        "http://server/b?x=1",
        "http://s/#a",
    ],
)
def test_urls_that_cannot_be_used(url):
    with pytest.raises(UsageError) as caught:
        WebFolder(url, Clock())
    assert "secret" not in "\n".join(caught.value.lines())


def test_small_files_make_a_bundle_that_is_proven_as_any_other(bundle, folder, tmp_path):
    target = tmp_path / "small"
    target.mkdir()
    fetch_small_files(folder, target)
    assert trust(target, source=folder).sha256 == trust(bundle).sha256
    assert not list(target.glob("payload.*"))


def test_no_bundle_on_the_server(server, tmp_path):
    with pytest.raises(FetchError, match="404") as caught:
        fetch_small_files(WebFolder(f"{server.url}nothing", Clock()), tmp_path)
    assert caught.value.exit_code == 10


def test_a_small_file_without_an_end_is_refused(server):
    server.files["b/bundle.json"] = bytes(2000)
    with pytest.raises(Unreadable, match="found more than 1000 bytes"):
        WebFolder(f"{server.url}b", Clock()).small("bundle.json", 1000)


def test_a_redirect_leads_to_http_and_nowhere_else(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")

    class Redirect(http.server.BaseHTTPRequestHandler):
        def log_message(self, format, *arguments):
            pass

        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", f"file://{secret}")
            self.send_header("Content-Length", "0")
            self.end_headers()

    running = http.server.HTTPServer(("127.0.0.1", 0), Redirect)
    threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
    try:
        with pytest.raises(Unreadable):
            WebFolder(f"http://127.0.0.1:{running.server_address[1]}/", Clock()).small(layout.MANIFEST)
    finally:
        running.shutdown()
        running.server_close()
