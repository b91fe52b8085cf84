"""What is fuzzed: each parser of bytes from elsewhere, what it may raise, and sound bytes to start from."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization as ssh
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from airbundle import profiles
from airbundle.compress.encode import encode_block
from airbundle.gguf import GgufError, parse_header, shape_facts
from airbundle.oci import documents as oci
from airbundle.signing import sign
from airbundle.weights import prove, read_safetensors
from airbundle_onsite import planes, probes, tensors
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.layout import StoreLayout
from airbundle_onsite.contract.manifest import SCHEMA_VERSION, BundleManifest, HostNeeds, Serving
from airbundle_onsite.contract.payload import FileEntry, Payload, Segment
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import decode_json, encode
from airbundle_onsite.contract.release import ReleaseRecord
from airbundle_onsite.dockerapi import DockerClient, DockerError
from airbundle_onsite.errors import AirbundleError, ContractError, FetchError, IntegrityError, TrustError
from airbundle_onsite.render import json_text
from airbundle_onsite.signature import examine, listed_signers
from airbundle_onsite.store.journal import Journal, JournalEntry
from airbundle_onsite.store.releases import Store
from airbundle_onsite.system import Completed, SystemClock, SystemRunner
from airbundle_onsite.verify import checksums, tar
from parts.bundles import tar_member, tar_of

DATA = b"what was signed\n"


@dataclass(frozen=True)
class Target:
    """A parser under test.

    Attributes:
        run: feeds it; what it raises beside `allowed` is a fault, and so is an assertion that fails.
        seeds: sound input, and input that once was trouble.
        allowed: what it may raise.
        costly: whether one run takes milliseconds.
    """

    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    allowed: tuple[type[Exception], ...]
    costly: bool = False


# --- contracts ----------------------------------------------------------------------------------------------
def _manifest(data: bytes) -> None:
    made = decode_json(BundleManifest, data, layout.MANIFEST)
    assert encode(decode_json(BundleManifest, encode(made), "again")) == encode(made)


def _fingerprint(data: bytes) -> None:
    made = decode_json(Fingerprint, data, "fingerprint")
    for _, checks in profiles.match_fingerprint(made):
        json_text(checks)


def _record(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(StoreLayout(folder))
        path = store.layout.record("demo", "v1")
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        path.with_name("seen.json").write_bytes(data)
        (path.parent.parent / "seen.json").write_bytes(data)
        assert [each.version for each in store.versions("demo")] in ([], ["v1"])
        store.damaged("demo")
        assert store.highest_sequence("demo") >= -1
        store.load("demo", "v1")


def _journal(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        path.write_bytes(data)
        journal = Journal(path, SystemClock())
        open_one = journal.unfinished()
        entries = journal.entries()
        assert open_one is None or open_one == entries[-1]


def _sample_manifest() -> bytes:
    return encode(
        BundleManifest(
            schema_version=SCHEMA_VERSION,
            name="demo",
            version="v1",
            sequence=1,
            created=1,
            tool="airbundle test",
            payload=Payload(0, ()),
            outer=(),
            files=(
                FileEntry("config/a", "config", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ),
            needs=HostNeeds(profile=HardwareProfile(id="any", title="any", arch="x86_64"), runtime="venv", disk=0),
            serving=Serving(),
            provenance={"a": "b"},
        )
    )


def _sample_fingerprint() -> bytes:
    class NoPrograms:
        def run(self, argv: Sequence[str], **_options: object) -> Completed:
            return Completed(tuple(argv), 127, "", "not found")

    return encode(probes.take({}, runner=NoPrograms(), clock=SystemClock(), environ={}))  # type: ignore[arg-type]


def _sample_record() -> bytes:
    return encode(ReleaseRecord("demo", "v1", 1, "0" * 64, 1, "cpu", "venv", "127.0.0.1", 8000))


def _sample_journal() -> bytes:
    entry = encode(JournalEntry("1-a", "install", "demo", "v1", None, "begin", 1, {"old": None}))
    line = json.dumps(json.loads(entry)).encode()
    return line + b"\n" + line.replace(b"begin", b"done") + b"\n" + line[:20]


# --- what lies on the media ---------------------------------------------------------------------------------
def _checksums(data: bytes) -> None:
    sums, problems = checksums.parse(data)
    assert all(layout.is_outer_name(name) and len(value) == 64 for name, value in sums.items())
    assert problems or layout.MANIFEST in sums


_ENTRY = FileEntry("config/a", "config", 3, "0" * 64, (Segment(3, 512),))


def _tar(data: bytes) -> None:
    stream = io.BytesIO(data)

    def read(size: int) -> bytes:
        if size > len(data) - stream.tell():
            tar.refuse("it ends early")
        return stream.read(size)

    tar.read_header(_ENTRY, read)


def _signature(data: bytes) -> None:
    found = examine(DATA, data, b"")
    assert not found.accepted
    assert {each.fingerprint for each in found.others} <= {_SEED_KEY}, "no other key has signed anything"


def _allowed_signers(data: bytes) -> None:
    for signer in listed_signers(data):
        assert signer.fingerprint.startswith("SHA256:")


_SEED_KEY = "SHA256:lbmsoA0yIEcEiVDRnMWuzm+nV+3ZEEpVIURqFoeSspg"


def _sample_signature() -> tuple[bytes, ...]:
    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key"
        path.write_bytes(private.private_bytes(ssh.Encoding.PEM, ssh.PrivateFormat.OpenSSH, ssh.NoEncryption()))
        path.chmod(0o600)
        one = sign(DATA, path, ask=str, runner=SystemRunner())
    body = base64.b64decode(b"".join(one.splitlines()[1:-1]))
    cut = [body[:size] for size in (0, 6, 10, 14, 40)]
    begin, end = b"-----BEGIN SSH SIGNATURE-----\n", b"-----END SSH SIGNATURE-----\n"
    return one, one * 2, *(begin + base64.encodebytes(each) + end for each in cut)


def _planes(data: bytes) -> None:
    """The first four bytes say how much comes out, up to two blocks; the rest is the compressed segment."""
    size = int.from_bytes(data[:4], "little") % (2 * planes.BLOCK) + 1
    read = planes.ChunkReader([data[4:]]).read
    with ThreadPoolExecutor(1) as pool:
        made = sum(len(chunk) for chunk in planes.decoded(read, len(data) - 4, size, pool))
    assert made == size


def _planes_of(size: int, data: bytes) -> bytes:
    return struct.pack("<I", size - 1) + b"".join(
        encode_block(data[at : at + planes.BLOCK]) for at in range(0, size, planes.BLOCK)
    )


# --- images -------------------------------------------------------------------------------------------------
def _index(data: bytes) -> None:
    document = oci.load(data, "x")
    oci.is_index(oci.media_type_of(document, ""))
    oci.choose_platform(document, "linux/amd64", "x")


def _image(data: bytes) -> None:
    document = oci.load(data, "x")
    oci.read_manifest(document, oci.media_type_of(document, ""), "x")


_DIGEST = f"sha256:{'a' * 64}"
_IMAGE = {
    "schemaVersion": 2,
    "mediaType": oci.OCI_MANIFEST,
    "config": {"mediaType": oci.OCI_CONFIG, "digest": _DIGEST, "size": 2},
    "layers": [{"mediaType": oci.OCI_LAYER, "digest": _DIGEST, "size": 3}],
}


def _image_config(data: bytes) -> None:
    manifest = oci.read_manifest(_IMAGE, oci.OCI_MANIFEST, "x")
    made = oci.read_config(data, manifest, "linux/amd64", "x")
    assert len(made.diff_ids) == 1 and all(isinstance(word, str) for word in made.entrypoint)


_INDEX = {
    "schemaVersion": 2,
    "mediaType": oci.OCI_INDEX,
    "manifests": [
        {
            "mediaType": oci.OCI_MANIFEST,
            "digest": _DIGEST,
            "size": 1,
            "platform": {"os": "linux", "architecture": "arm64"},
            "annotations": {"a": "b"},
        },
        {
            "mediaType": oci.OCI_MANIFEST,
            "digest": _DIGEST,
            "size": 1,
            "platform": {"os": "linux", "architecture": "amd64"},
        },
    ],
}
_CONFIG = {
    "os": "linux",
    "architecture": "amd64",
    "config": {"Env": ["A=b", "NVIDIA_REQUIRE_CUDA=cuda>=12"], "Entrypoint": ["sh"], "User": "1"},
    "rootfs": {"type": "layers", "diff_ids": [_DIGEST]},
}


# --- weights ------------------------------------------------------------------------------------------------
def _weights(suffix: str, also: Callable[[Path], object]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"m{suffix}"
            path.write_bytes(data)
            with contextlib.suppress(FetchError):
                prove({path.name: path})
            with contextlib.suppress(ValueError):
                tensors.spans(path.name, len(data), lambda offset, size: data[offset : offset + size])
            also(path)

    return run


def _gguf(path: Path) -> None:
    with path.open("rb") as handle:
        made = parse_header(handle)
    shape_facts(made.metadata)


def _safetensors_of(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


_TENSOR = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}


def _gguf_string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


_GGUF = (
    b"GGUF"
    + struct.pack("<IQQ", 3, 1, 3)
    + (_gguf_string(b"general.architecture") + struct.pack("<I", 8) + _gguf_string(b"llama"))
    + (_gguf_string(b"llama.block_count") + struct.pack("<II", 4, 2))
    + (_gguf_string(b"a") + struct.pack("<IIQ", 9, 4, 2) + bytes(8))
    + (_gguf_string(b"t") + struct.pack("<IQIQ", 1, 4, 0, 0))
)
_GGUF += bytes(-len(_GGUF) % 32) + bytes(16)


# --- the container engine -----------------------------------------------------------------------------------
class Answers:
    """A unix socket that answers every request with the same bytes, and hangs up."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name) / "s"
        self.first, self.second = b"", b""
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(self.path))
        self._server.listen(16)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._server.accept()
            with connection:
                try:
                    asked = connection.recv(65536)
                    connection.sendall(self.first if asked.startswith(b"GET /version") else self.second)
                except OSError:
                    pass


_ANSWERS: list[Answers] = []
_VERSION = json.dumps({"ApiVersion": "1.41", "Components": [{"Name": "Engine", "Version": "20.10.24"}]}).encode()


def _http(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def _docker(first: bool) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        if not _ANSWERS:
            _ANSWERS.append(Answers())
        answers = _ANSWERS[0]
        answers.first, answers.second = (data, _http(b"{}")) if first else (_http(_VERSION), data)
        calls: list[Callable[[DockerClient], object]] = [
            lambda client: client.components(),
            lambda client: client.info(),
            lambda client: client.find_json("/containers/a/json", operation="look"),
            lambda client: client.post("/containers/a/start", operation="start"),
            lambda client: client.delete("/containers/a", operation="remove"),
            lambda client: client.logs("a", 5),
            lambda client: client.load(iter([b"x"]), lambda event: None),
        ]
        for call in calls:
            with contextlib.suppress(DockerError):
                call(DockerClient(answers.path, timeout=5))

    return run


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def targets() -> dict[str, Target]:
    """Every target by name, which is also that of its folder in the corpus."""
    return {
        "manifest": Target(_manifest, (_sample_manifest(),), (ContractError,)),
        "fingerprint": Target(_fingerprint, (_sample_fingerprint(),), (ContractError,), costly=True),
        "record": Target(_record, (_sample_record(),), (AirbundleError,), costly=True),
        "journal": Target(_journal, (_sample_journal(),), (IntegrityError,), costly=True),
        "checksums": Target(_checksums, (checksums.text({"bundle.json": "0" * 64, "install.sh": "1" * 64}),), ()),
        "tar": Target(
            _tar,
            (
                tar_of([(tar_member("config/a"), b"abc")]),
                tar_of([(_long_member(), b"abc")]),
            ),
            (IntegrityError,),
        ),
        "planes": Target(
            _planes,
            (
                _planes_of(2000, bytes(range(250)) * 8),
                _planes_of(4000, bytes(4000)),
                _planes_of(4000, b"ab\0\0" * 1000),
                _planes_of(planes.BLOCK + 3, bytes(planes.BLOCK + 3)),
            ),
            (ValueError,),
            costly=True,
        ),
        "signature": Target(_signature, _sample_signature(), (TrustError,), costly=True),
        "allowed-signers": Target(
            _allowed_signers,
            (
                b'# a\nalice namespaces="airbundle" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOPj4+Pj c\n'
                b'*,"b c" cert-authority x\n',
            ),
            (),
        ),
        "oci-index": Target(_index, (_json(_INDEX),), (FetchError,)),
        "oci-manifest": Target(_image, (_json(_IMAGE),), (FetchError,)),
        "oci-config": Target(_image_config, (_json(_CONFIG),), (FetchError,)),
        "safetensors": Target(
            _weights(".safetensors", read_safetensors),
            (_safetensors_of({"a": _TENSOR, "__metadata__": {}}, bytes(4)),),
            (ValueError,),
            costly=True,
        ),
        "gguf": Target(_weights(".gguf", _gguf), (_GGUF,), (GgufError,), costly=True),
        "docker-version": Target(_docker(True), (_http(_VERSION),), (), costly=True),
        "docker-answers": Target(
            _docker(False),
            (
                _http(b'{"Id": "a", "State": {"Running": true}}'),
                _http(b'{"stream": "Loaded"}\n{"errorDetail": {"message": "no space left on device"}}\n'),
                _http(b'{"message": "no such container"}', b"404 Not Found"),
                _http(b"\1\0\0\0\0\0\0\3abc"),
            ),
            (),
            costly=True,
        ),
    }


def _long_member() -> Any:
    member = tar_member("config/a")
    member.pax_headers = {"path": "config/a", "size": "3"}
    return member


def corpus(folder: Path) -> Iterator[Path]:
    """The kept inputs of one target."""
    return iter(sorted(path for path in folder.iterdir() if path.is_file())) if folder.is_dir() else iter(())
