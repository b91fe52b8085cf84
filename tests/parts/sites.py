"""A site to install on: bundles whose engine is the fake one, the real installer in its own process, real HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from airbundle_onsite.contract.artifacts import ModelEntry
from airbundle_onsite.contract.launch import LaunchPlan, PlanNeeds, Readiness, SmokeTest
from airbundle_onsite.contract.manifest import BundleManifest, Serving
from parts.bundles import make_bundle
from parts.process import free_port

_HERE = Path(__file__).parent
_TESTS = _HERE.parent
_SOURCES = (_TESTS, _TESTS.parent / "installer")
BESIDE = 1_000_000
"""`memory` of a plan small enough to be proven beside another; 0 says nothing, which means stop first."""


def release_bundle(
    folder: Path,
    version: str,
    *,
    fault: str = "none",
    answer: str = "",
    sequence: int = 0,
    memory: int = BESIDE,
    weights: bytes = b"GGUF" + bytes(200_000),
    disk: int = 1_000_000,
    flags: tuple[str, ...] = (),
    more: Mapping[str, bytes] = MappingProxyType({}),
    part_size: int = 0,
    edit: Callable[[BundleManifest], BundleManifest] = lambda manifest: manifest,
) -> Path:
    """A bundle ``demo-<version>`` in `folder`; its engine answers "Paris, says <version>" unless told otherwise.

    Args:
        folder: where the bundle's directory is made.
        version: of the bundle; when it is like ``v3``, its sequence is 3 unless given.
        fault: of the fake engine.
        answer: what the engine says.
        sequence: of the bundle.
        memory: bytes that its plan needs.
        weights: content of the model file.
        disk: bytes the bundle says it needs.
        flags: more words for the engine.
        more: further files of the payload, before all others.
        part_size: bytes per part; 0 for one part.
        edit: last change to the manifest.
    """
    engine = (_HERE / "fake_engine.py").read_bytes()
    files = {
        **more,
        "models/demo/model.gguf": weights,
        "config/fake_engine.py": engine,
        "config/version.txt": version.encode(),
        "licenses/LICENSE.txt": b"free\n",
    }
    words = ("--answer", answer or f"Paris, says {version}", "--fault", fault, "--load-seconds", "60", *flags)
    plan = LaunchPlan(
        id="cpu",
        engine="fake",
        engine_version="1",
        runtime="venv",
        argv=("{python}", "{config}/fake_engine.py", "--host", "{host}", "--port", "{port}", *words),
        model="demo",
        needs=PlanNeeds(memory=memory),
        readiness=Readiness(load_seconds=10, request_seconds=5),
    )
    chat = {"model": "{served_name}", "messages": [{"role": "user", "content": "Capital of France?"}], "max_tokens": 9}
    test = SmokeTest(id="capital", path="/v1/chat/completions", body=chat, expect=("Paris",), seconds=5)

    def change(manifest: BundleManifest) -> BundleManifest:
        model = ModelEntry("demo", "gguf", "test", "1", ("models/demo/model.gguf",), len(weights), "model.gguf")
        made = replace(
            manifest,
            sequence=sequence or int(version.strip("v") or 0),
            launch=(plan,),
            smoke=(test,),
            models=(model,),
            serving=Serving(),
            needs=replace(manifest.needs, disk=disk),
        )
        return edit(made)

    return make_bundle(folder / f"demo-{version}", files, version=version, part_size=part_size, edit=change)


@dataclass
class Done:
    """A finished run of the installer."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its results."""
        return json.loads(self.out)

    def __str__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


@dataclass
class Site:
    """An installation root and a port of its own."""

    root: Path
    port: int = field(default_factory=free_port)

    def run(self, *words: object, kill_at: str = "", timeout: float = 90, env: Mapping[str, str] | None = None) -> Done:
        """Run the site's command line to its end; with `kill_at`, it kills itself around that line of the journal."""
        process = self.begin(*words, kill_at=kill_at, env=env)
        out, err = process.communicate(timeout=timeout)
        return Done(process.returncode, out, err)

    def begin(
        self, *words: object, kill_at: str = "", hold_at: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start the site's command line; with `hold_at`, it stands still there until it is killed."""
        paths = os.pathsep.join(map(str, _SOURCES))
        more = {"PYTHONPATH": paths, "KILL_AT": kill_at, "HOLD_AT": hold_at, **(env or {})}
        return subprocess.Popen(
            [sys.executable, str(_HERE / "site_driver.py"), "--root", str(self.root), *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **more},
        )

    def install(self, bundle: Path, *words: object, **options: Any) -> Done:
        """``install.sh --yes`` for a bundle."""
        return self.run("--bundle", bundle, "--yes", "--port", self.port, *words, **options)

    def answer(self) -> str | None:
        """What the service says on its port now; None when it does not answer."""
        body = json.dumps({"messages": [{"role": "user", "content": "Capital of France?"}], "max_tokens": 9}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=5) as reply:
                text: str = json.load(reply)["choices"][0]["message"]["content"]
        except (urllib.error.URLError, OSError):
            return None
        return text

    def current(self) -> str | None:
        """Where `current` points."""
        link = self.root / "releases/demo/current"
        return str(link.readlink()) if link.is_symlink() else None

    def leftovers(self) -> list[str]:
        """What a finished run must not leave behind."""
        found = [str(path.relative_to(self.root)) for path in (self.root / "staging").glob("*")]
        found += [str(path.relative_to(self.root)) for path in self.root.glob("releases/*/.*")]
        found += [str(path.relative_to(self.root)) for path in self.root.glob("run/*candidate*")]
        found += [f"engine {pid}" for pid in self.engines()[1:]]
        return found

    def engines(self) -> list[int]:
        """Process ids of engines that run from this root."""
        return self._running("fake_engine.py")

    def _running(self, program: str) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                    if any(word.startswith(str(self.root)) and word.endswith(program) for word in words):
                        found.append(int(entry.name))
        return found

    def close(self) -> None:
        """Stop what runs from this root: supervisors, who end their engines, then engines that are left."""
        for program in ("supervisor.py", "fake_engine.py"):
            for pid in self._running(program):
                _end(pid, str(self.root))


def _end(pid: int, mark: str) -> None:
    """End a process if it is still one of this root's."""
    words = Path(f"/proc/{pid}/cmdline")
    if not words.exists() or mark not in words.read_bytes().decode("utf-8", "replace"):
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 10
    while words.exists() and words.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)


@contextlib.contextmanager
def site(root: Path) -> Iterator[Site]:
    """A site under `root`, with nothing of it running afterwards."""
    made = Site(root)
    try:
        yield made
    finally:
        made.close()
