"""A real registry on loopback."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from parts import need
from parts.images import ImageArchive
from parts.process import Daemon, free_port, port_open, wait_until

MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json,application/vnd.oci.image.index.v1+json,"
    "application/vnd.docker.distribution.manifest.v2+json,application/vnd.docker.distribution.manifest.list.v2+json"
)

CONFIGURATION = """\
version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {storage}}}
  delete: {{enabled: true}}
http: {{addr: 127.0.0.1:{port}}}
"""


@dataclass(frozen=True)
class Registry:
    """A running registry without TLS.

    Attributes:
        host: ``127.0.0.1:port``, as it stands in image references.
        storage: its directory; blobs in it may be damaged by tests of faults.
        login: ``user:password`` it wants; empty for none, and only then do `digest` and `tags` work and `push` tell.
    """

    host: str
    storage: Path
    login: str = ""

    def push(self, image: ImageArchive, name: str, *options: str) -> str:
        """Push under ``repository:tag``; returns ``host/repository@sha256:…`` as the registry serves it."""
        words = ["--dest-tls-verify=false", *options, *(["--dest-creds", self.login] if self.login else [])]
        done = skopeo("copy", *words, f"oci-archive:{image.path}", f"docker://{self.host}/{name}")
        if done.returncode != 0:
            raise RuntimeError(f"push of {name}: {done.stderr}")
        repository, _, tag = name.partition(":")
        if self.login:
            return ""
        return f"{self.host}/{repository}@{self.digest(repository, tag or 'latest')}"

    def digest(self, repository: str, tag: str) -> str:
        """``sha256:…`` that the tag points to now."""
        request = urllib.request.Request(f"http://{self.host}/v2/{repository}/manifests/{tag}", method="HEAD")
        request.add_header("Accept", MANIFEST_TYPES)
        with _DIRECT.open(request, timeout=10) as answer:
            return str(answer.headers["Docker-Content-Digest"])

    def tags(self, repository: str) -> list[str]:
        """Tags of a repository; none when there is no such repository."""
        try:
            with _DIRECT.open(f"http://{self.host}/v2/{repository}/tags/list", timeout=10) as answer:
                return sorted(json.load(answer)["tags"] or [])
        except urllib.error.HTTPError:
            return []


def skopeo(*words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run skopeo without a trust policy of the machine."""
    argv = [need.program("skopeo"), "--insecure-policy", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout)


@contextmanager
def running(directory: Path, *, access: str = "", login: str = "") -> Iterator[Registry]:
    """A registry with its storage in this directory; ended, and its storage removed, on leaving.

    Args:
        directory: for its storage, configuration and log.
        access: the ``auth`` section of its configuration.
        login: ``user:password`` that the section lets in.
    """
    need.need("registry")
    storage, port = directory / "storage", free_port()
    storage.mkdir(parents=True)
    configuration = directory / "registry.yml"
    configuration.write_text(CONFIGURATION.format(storage=storage, port=port) + access)
    argv = [need.program("docker-registry"), "serve", str(configuration)]
    daemon = Daemon(argv, directory / "registry.log", env={"OTEL_TRACES_EXPORTER": "none"})
    try:
        wait_until(lambda: port_open(port), 20, "docker-registry", process=daemon)
        yield Registry(f"127.0.0.1:{port}", storage, login)
    finally:
        daemon.stop()
        shutil.rmtree(storage, ignore_errors=True)


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
