"""One file for the people who help: logs, journal, records and the fingerprint, without secrets."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from airbundle_onsite.contract.record import encode
from airbundle_onsite.contract.release import ReleaseRecord
from airbundle_onsite.deploy.redact import redact
from airbundle_onsite.deploy.status import status
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import AirbundleError
from airbundle_onsite.store.disk import SECRET_MODE, write_new

_LOG_LINES = 5000
_LOG_BYTES = 4 * 1024 * 1024


def support_bundle(site: Site, target: Path) -> list[str]:
    """Write a tar.gz that only its owner may read; returns the names in it.

    What could not be gathered is in it as a sentence, so that a broken part never keeps the rest from being sent.
    """
    names, memory = [], io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz") as archive:
        for name, text in _contents(site):
            data = redact(text).encode("utf-8")
            member = tarfile.TarInfo(f"airbundle-support/{name}")
            member.size, member.mtime, member.mode = len(data), site.now(), SECRET_MODE
            archive.addfile(member, io.BytesIO(data))
            names.append(name)
    temporary = target.with_name(f".{target.name}.new")
    temporary.unlink(missing_ok=True)
    write_new(temporary, (memory.getvalue(),), SECRET_MODE)
    temporary.replace(target)
    return names


def _contents(site: Site) -> Iterator[tuple[str, str]]:
    yield "fingerprint.json", _attempt(lambda: _text(site.fingerprint()))
    yield "journal.jsonl", _tail(site.layout.journal)
    for path in sorted(site.layout.logs.glob("*.log")) if site.layout.logs.is_dir() else []:
        yield f"logs/{path.name}", _tail(path)
    for name in site.store.bundles():
        yield f"{name}/status.json", _attempt(partial(_status_text, site, name))
        for version in site.store.damaged(name):
            yield f"{name}/{version}/release.json", _tail(site.layout.record(name, version))
        for made in site.store.versions(name):
            folder = f"{name}/{made.version}"
            yield f"{folder}/release.json", _text(made)
            yield f"{folder}/bundle.json", _tail(site.layout.manifest(name, made.version))
            yield f"{folder}/engine.log", _attempt(partial(_engine_log, site, made))


def _text(value: object) -> str:
    return encode(value).decode("utf-8")


def _status_text(site: Site, name: str) -> str:
    return _text(status(site, name))


def _engine_log(site: Site, made: ReleaseRecord) -> str:
    runtime = site.runtime(made.runtime)
    instance = runtime.find(made.name, made.version, "service")
    return runtime.logs(instance, _LOG_LINES) if instance is not None else "nothing was started\n"


def _attempt(get: Callable[[], str]) -> str:
    try:
        return get()
    except (AirbundleError, OSError) as error:
        return f"could not be gathered: {error}\n"


def _tail(path: Path) -> str:
    if path.exists() and not path.is_file():  # reading a named pipe would wait without end
        return "could not be read: it is no regular file\n"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"could not be read: {error}\n"
