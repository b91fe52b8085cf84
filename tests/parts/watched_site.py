"""Runs the site's command line in the real world, and writes down in which order it touches what.

Arguments: where the record goes, the bundle, the root, and then words for the command line. What is seen: every file of
the bundle that is opened, everything below the root that is created, linked or renamed, every program that is started,
every connection, the look at the host, every call of the runtime with the bytes that it got, and every question.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airbundle_onsite import runtimes
from airbundle_onsite.cli import main
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.deploy.world import real_world
from airbundle_onsite.runtimes.base import Blob, Environment

EVENTS: list[tuple[str, str]] = []
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Watch:
    """Sees what the interpreter itself reports."""

    def __init__(self, bundle: Path, root: Path) -> None:
        self._bundle, self._root = f"{bundle}{os.sep}", f"{root}{os.sep}"

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str):
            path, _, flags = arguments
            if path.startswith(self._bundle):
                EVENTS.append(("reads", path.removeprefix(self._bundle)))
            elif path.startswith(self._root) and flags & _WRITING:
                EVENTS.append(("writes", path.removeprefix(self._root)))
        elif event in ("os.mkdir", "os.rename", "os.link", "os.symlink"):
            target = str(arguments[0 if event == "os.mkdir" else 1])
            if target.startswith(self._root):
                EVENTS.append(("writes", target.removeprefix(self._root)))
        elif event in ("subprocess.Popen", "socket.connect", "os.system"):
            EVENTS.append((event, str(arguments[:2])))


class WatchedRuntime:
    """The real runtime of a kind; images are counted and go nowhere."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if callable(found):
            EVENTS.append(("runtime", name))
        return found

    def load_images(self, _manifest: BundleManifest, blobs: Iterator[Blob]) -> None:
        EVENTS.append(("runtime", "load_images"))
        for blob in blobs:
            for chunk in blob.chunks:
                EVENTS.append(("image bytes", f"{blob.path} {len(chunk)}"))


class Person(io.StringIO):
    """Somebody at a terminal who says yes to everything."""

    def isatty(self) -> bool:
        return True

    def readline(self, *_size: int) -> str:  # type: ignore[override]
        EVENTS.append(("asks", ""))
        return "y\n"


def _runtime(kind: str, environment: Environment) -> Any:
    return WatchedRuntime(runtimes.create(kind, environment))


def run(record: Path, bundle: Path, root: Path, words: list[str], environ: Mapping[str, str]) -> int:
    """Everything; returns the exit code."""
    world = real_world(environ)

    def look(*arguments: Any) -> Any:
        EVENTS.append(("looks at the host", ""))
        return world.take_fingerprint(*arguments)

    watched = replace(
        world,
        make_runtime=_runtime,
        take_fingerprint=look,
        hook=lambda moment: EVENTS.append(("journal", moment)),
    )
    sys.addaudithook(Watch(bundle, root))
    argv = ["--bundle", str(bundle), "--root", str(root), *words]
    code = main(argv, world=watched, stdin=Person())
    record.write_text(json.dumps(EVENTS), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:], dict(os.environ)))
