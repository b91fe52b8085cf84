"""Logins against a real registry: basic, and bearer tokens that are signed, fail at first, and expire."""

from __future__ import annotations

import base64
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airbundle.contract.lock import LockedImage
from airbundle.contract.spec import ImageTable
from airbundle.fetch import fetch_all
from airbundle.sources import registry as source_module
from airbundle_onsite.errors import FetchError
from parts import registry as registry_part
from parts import tokens
from parts.images import ARCHITECTURES, small_image
from parts.registry import Registry
from parts.sources import context

PLATFORM = f"linux/{ARCHITECTURES['x86_64']}"
NAME = "airbundle-test/guarded:1"
PASSWORDS = "me:$2b$04$JHbs9u3u55Q4uGmH68lLW.cHprGGQD5cBD6TSr4TC5rZ2dQOeJEYK\n"  # htpasswd -B for me:secret

pytestmark = pytest.mark.real("registry")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "passwords").write_text(PASSWORDS)
    access = f"auth: {{htpasswd: {{realm: tests, path: {directory / 'passwords'}}}}}\n"
    with registry_part.running(directory, access=access, login="me:secret") as running:
        running.push(small_image(directory, "guarded", {"data": bytes(100_000)}), NAME)
        yield running


@pytest.fixture(scope="module")
def token_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tokens.TokenServer]:
    with tokens.serving(tmp_path_factory.mktemp("tokens")) as running:
        yield running


@pytest.fixture(scope="module")
def tokened(tmp_path_factory: pytest.TempPathFactory, token_server: tokens.TokenServer) -> Iterator[Registry]:
    directory = tmp_path_factory.mktemp("tokened")
    with registry_part.running(directory, access=token_server.access, login=tokens.LOGIN) as running:
        running.push(small_image(directory, "guarded", {"data": os.urandom(100_000)}), NAME)
        yield running


def configuration(directory: Path, host: str, *, password: str = "secret") -> dict[str, str]:
    """docker's configuration with one login; returns the environment that names it."""
    pair = base64.b64encode(f"me:{password}".encode()).decode()
    (directory / "config.json").write_text(json.dumps({"auths": {host: {"auth": pair}}}))
    return {"DOCKER_CONFIG": str(directory)}


def pull(registry: Registry, directory: Path, environ: dict[str, str] | None) -> LockedImage:
    given = context(directory, environ)
    source = source_module.create(given)
    locked = source.lock_image(ImageTable(f"registry:{registry.host}/{NAME}"), PLATFORM)
    fetch_all((locked.manifest, *locked.blobs), lambda scheme: source, given.cache, given.talk)
    return locked


def test_basic_login(guarded: Registry, tmp_path: Path) -> None:
    locked = pull(guarded, tmp_path, configuration(tmp_path, guarded.host))
    assert locked.name == NAME
    assert "secret" not in str(locked)


def test_login_that_podman_left(guarded: Registry, tmp_path: Path) -> None:
    given = configuration(tmp_path, guarded.host)
    (tmp_path / "empty").mkdir()
    (tmp_path / "config.json").rename(tmp_path / "auth.json")
    environ = {"DOCKER_CONFIG": f"{given['DOCKER_CONFIG']}/empty", "REGISTRY_AUTH_FILE": f"{tmp_path}/auth.json"}
    assert pull(guarded, tmp_path, environ).name == NAME


@pytest.mark.parametrize("password", ["", "wrong"])
def test_login_that_is_missing_or_wrong(guarded: Registry, tmp_path: Path, password: str) -> None:
    environ = configuration(tmp_path, guarded.host, password=password) if password else None
    with pytest.raises(FetchError, match="HTTP 401") as caught:
        pull(guarded, tmp_path, environ)
    assert f"docker login {guarded.host}" in caught.value.remedy
    assert "wrong" not in "".join(caught.value.lines())


@pytest.mark.parametrize("key", ["credHelpers", "credsStore"])
def test_credential_helper(guarded: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    helper = tmp_path / "docker-credential-airbundle-test"
    answer = json.dumps({"ServerURL": guarded.host, "Username": "me", "Secret": "secret"})
    helper.write_text(f"#!/bin/sh\ntest \"$1 $(cat)\" = 'get {guarded.host}' && echo '{answer}'\n")
    helper.chmod(helper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    named = "airbundle-test" if key == "credsStore" else {guarded.host: "airbundle-test"}
    (tmp_path / "config.json").write_text(json.dumps({key: named}))
    assert pull(guarded, tmp_path, {"DOCKER_CONFIG": str(tmp_path)}).name == NAME


def test_bearer_token(tokened: Registry, token_server: tokens.TokenServer, tmp_path: Path) -> None:
    token_server.granted.clear()
    pull(tokened, tmp_path, configuration(tmp_path, tokened.host))
    assert token_server.granted == ["repository:airbundle-test/guarded:pull"]


def test_bearer_token_without_login(tokened: Registry, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="HTTP 401") as caught:
        pull(tokened, tmp_path, None)
    assert "docker login" in caught.value.remedy


def test_token_server_that_fails_once(tokened: Registry, token_server: tokens.TokenServer, tmp_path: Path) -> None:
    token_server.failures = 1
    pull(tokened, tmp_path, configuration(tmp_path, tokened.host))
    assert token_server.failures == 0


def test_token_that_expires_on_the_way(tokened: Registry, token_server: tokens.TokenServer, tmp_path: Path) -> None:
    """A token is good for minutes and an image takes longer: the next request asks for a new one."""
    given = context(tmp_path, configuration(tmp_path, tokened.host))
    source = source_module.create(given)
    token_server.lifetime = -55  # the registry allows clocks to differ by a minute
    try:
        locked = source.lock_image(ImageTable(f"registry:{tokened.host}/{NAME}"), PLATFORM)
    finally:
        token_server.lifetime = 300
    token_server.granted.clear()
    time.sleep(6)
    fetch_all(locked.blobs, lambda scheme: source, given.cache, given.talk)
    assert token_server.granted == ["repository:airbundle-test/guarded:pull"]
