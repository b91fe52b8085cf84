"""Releases for the tests of runtimes and smoke: manifests and directories made by hand, as an install leaves them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from airbundle_onsite.contract.artifacts import ImageEntry, Layer, WheelEntry
from airbundle_onsite.contract.launch import LaunchPlan, PlanNeeds, Readiness, SmokeTest
from airbundle_onsite.contract.layout import PIECE_SIZE, blob_path
from airbundle_onsite.contract.manifest import BundleManifest, HostNeeds, Serving
from airbundle_onsite.contract.payload import FileEntry, Part, Payload, Segment
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.runtimes.base import Blob, Environment, ReleaseFiles
from airbundle_onsite.system import Clock, Completed, Silent, SystemClock, SystemRunner
from parts import need, store
from parts.engine import SCRIPT
from parts.images import ImageArchive

LOOPBACK = Serving()
PIP = "pip==25.2"

PARIS = SmokeTest(
    id="capital",
    path="/v1/chat/completions",
    body={"model": "{served_name}", "messages": [{"role": "user", "content": "The capital of France?"}]},
    expect=("paris",),
    seconds=20,
)


class FakeClock:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class ScriptedRunner:
    """Answers each command by its first word; keeps what was asked."""

    def __init__(self, answers: Mapping[str, Completed]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], **_options: object) -> Completed:
        self.asked.append(tuple(argv))
        return self._answers.get(argv[0], Completed(tuple(argv), 127, "", f"{argv[0]}: not found"))


def environment(root: Path, docker_host: str = "", clock: Clock | None = None) -> Environment:
    """The real world, with this installation root."""
    return Environment(root, SystemRunner(), clock or SystemClock(), Silent(), docker_host)


def plan(runtime: str = "venv", argv: Sequence[str] = (), **changes: object) -> LaunchPlan:
    """A launch plan for the fake engine, which lies in config/."""
    words = ("{python}", "{config}/fake_engine.py", "--host", "{host}", "--port", "{port}", "--alias", "{served_name}")
    made = LaunchPlan(
        id="cpu",
        engine="fake",
        engine_version="1",
        runtime=runtime,  # type: ignore[arg-type]
        argv=tuple(argv) or words,
        model="tiny",
        image="airbundle-test/base:1" if runtime == "docker" else None,
        needs=PlanNeeds(),
        readiness=Readiness(load_seconds=60, request_seconds=20),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def manifest(
    launch: LaunchPlan,
    *,
    version: str = "1",
    name: str = "demo",
    images: Sequence[ImageEntry] = (),
    wheels: Sequence[WheelEntry] = (),
    smoke: Sequence[SmokeTest] = (PARIS,),
    serving: Serving = LOOPBACK,
) -> BundleManifest:
    """A manifest that holds this plan; its payload is a stand-in."""
    entries = tuple(
        FileEntry(wheel.path, "wheel", 1, wheel.sha256, (Segment(1, number),)) for number, wheel in enumerate(wheels)
    )
    empty = hashlib.sha256(b"").hexdigest()
    return BundleManifest(
        schema_version=1,
        name=name,
        version=version,
        sequence=1,
        created=0,
        tool="airbundle test",
        payload=Payload(1024, (Part("payload.tar.000", 1024, empty, (empty,)),), PIECE_SIZE),
        outer=(),
        files=entries,
        needs=HostNeeds(HardwareProfile("cpu-x86_64", "any"), launch.runtime, 0),
        serving=serving,
        images=tuple(images),
        wheels=tuple(wheels),
        launch=(launch,),
        smoke=tuple(smoke),
    )


def release(directory: Path, made: BundleManifest, launch: LaunchPlan) -> ReleaseFiles:
    """A release directory with an empty model and the fake engine as its configuration."""
    (directory / "models" / launch.model).mkdir(parents=True, exist_ok=True)
    (directory / "config").mkdir(exist_ok=True)
    shutil.copy(SCRIPT, directory / "config" / "fake_engine.py")
    return ReleaseFiles(directory, made, launch)


def wheel_entries(directory: Path) -> list[WheelEntry]:
    """Entries for the wheels in a release's wheels/, whose hash-pinned requirements.txt is written too."""
    entries = []
    for path in sorted(directory.glob("*.whl")):
        name, version = path.name.split("-")[:2]
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        entries.append(WheelEntry(name.replace("_", "-").lower(), version, f"wheels/{path.name}", digest))
    lines = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in entries]
    (directory / "requirements.txt").write_text("".join(lines))
    return entries


def add_pip(directory: Path) -> None:
    """Put pip's own wheel, from PyPI by way of the parts cache, into a release's wheels/."""

    def make(empty: Path) -> None:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(empty), PIP]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            need.absent(PIP, f"let pip reach PyPI ({done.stderr.strip()[-300:]})")

    (wheel,) = store.once(PIP.replace("==", "-"), make).glob("pip-*.whl")
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(wheel, directory)


def image_entry(archive: ImageArchive, name: str = "airbundle-test/base:1") -> ImageEntry:
    """What a manifest says of an image in an archive of the tests."""
    blobs = dict(_members(archive.path))
    stored = json.loads(blobs[f"blobs/sha256/{archive.manifest_digest[7:]}"])
    configuration = json.loads(blobs[f"blobs/sha256/{archive.config_digest[7:]}"])
    layers = tuple(
        Layer(layer["digest"], layer["size"], diff_id, layer["mediaType"])
        for layer, diff_id in zip(stored["layers"], configuration["rootfs"]["diff_ids"], strict=True)
    )
    return ImageEntry(
        name=name,
        digest=archive.manifest_digest,
        source_digest=archive.manifest_digest,
        config_digest=archive.config_digest,
        platform="linux/amd64",
        layers=layers,
        size=sum(layer.size for layer in layers),
    )


def image_blobs(archive: ImageArchive, without: Sequence[str] = ()) -> Iterator[Blob]:
    """The archive's files as the payload's images/ has them, streamed; `without` leaves digests out."""
    left_out = {blob_path(digest) for digest in without}
    with tarfile.open(archive.path) as tar:
        for member in tar:
            path = f"images/{member.name}"
            if path in left_out or member.name == "manifest.json":
                continue
            handle = tar.extractfile(member)
            assert handle is not None
            yield Blob(path, member.size, iter(lambda: handle.read(1 << 20), b""))  # noqa: B023


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Small members only: descriptions, not layers."""
    with tarfile.open(path) as tar:
        for member in tar:
            if member.size < 1 << 20:
                handle = tar.extractfile(member)
                assert handle is not None
                yield member.name, handle.read()
