"""The two commands as a person types them: build at the office, `install.sh` and `airbundlectl` at the site."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts import store

MANIFESTS = store.CHECKOUT / "manifests"
QUESTION = "What is the capital of France? Answer in one sentence."


@dataclass(frozen=True)
class Said:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its result, when it was called with ``--json``."""
        return json.loads(self.out)

    def check(self, code: int = 0) -> Said:
        """Itself, when it ended with this exit code."""
        assert self.code == code, f"exit code {self.code}, not {code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"
        return self


def run(
    argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, umask: int = -1, timeout: float = 420
) -> Said:
    """Run a command to its end, its output read as UTF-8."""
    done = subprocess.run(
        [str(word) for word in argv],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        umask=umask,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def airbundle(*words: str | Path, env: Mapping[str, str] | None = None, umask: int = -1) -> Said:
    """The online command."""
    return run([sys.executable, "-m", "airbundle", *words], env=env, umask=umask)


@dataclass(frozen=True)
class Office:
    """Where bundles are built, with a cache that outlives the test run."""

    directory: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def build(self, manifest: str, version: str, *overrides: str, words: Sequence[str | Path] = ()) -> Path:
        """Build one of manifests/ under a version, with further words; returns the bundle's directory."""
        argv: list[str | Path] = ["build", MANIFESTS / manifest, "--output", self.directory, "--json", *words]
        argv += ["--lock", self.directory / f"{manifest}.{version}.lock.json", "--cache", store.root() / "airbundle"]
        for override in (f"bundle.version={version}", *overrides):
            argv += ["--set", override]
        return Path(airbundle(*argv, env=self.env).check().json["bundle"])


@dataclass(frozen=True)
class Site:
    """A customer's host: an installation root and a port."""

    root: Path
    port: int
    env: Mapping[str, str] = field(default_factory=dict)

    def install(self, bundle: Path, *words: str) -> Said:
        """``bash install.sh`` from the bundle."""
        argv = ["bash", str(bundle / "install.sh"), "--root", str(self.root), "--port", str(self.port), *words]
        return run(argv, env=self.env)

    def control(self, *words: str) -> Said:
        """``airbundlectl``."""
        return run([str(self.root / "bin" / "airbundlectl"), *words], env=self.env)

    def version(self) -> str:
        """The version that runs and answers, by ``airbundlectl --status``."""
        (status,) = self.control("--status", "--json").check().json
        assert status["answers"], status
        return str(status["version"])

    def ask(self, question: str = QUESTION) -> str:
        """The model's answer over HTTP."""
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 32, "temperature": 0}
        answer = self.post("/v1/chat/completions", body)
        return str(answer["choices"][0]["message"]["content"])

    def post(self, path: str, body: object) -> Any:
        """POST JSON to the service, get JSON back; proxies are ignored."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)
