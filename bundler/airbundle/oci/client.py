"""The registry's HTTP API (OCI distribution 1.1, docker registry v2), as far as pulling needs it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from urllib.parse import urlsplit
from urllib.request import parse_http_list, parse_keqv_list

import docker.errors
import requests
from docker import auth

from airbundle import web
from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile
from airbundle.download import Advance, Downloader, Refused
from airbundle.oci import documents
from airbundle.oci.reference import HUB
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError

_LARGEST_MANIFEST = 8 * 1024 * 1024  # bytes
_TIMEOUT = 60.0  # seconds


@record
class Login:
    """What docker's configuration has for a host; empty where it has nothing."""

    user: str = ""
    password: str = ""
    identity_token: str = ""


def read_login(host: str, environ: Callable[[str], str | None]) -> Login:
    """The login that `docker login` left for a host, from config.json or the credential helper that it names.

    Raises:
        FetchError: the helper fails.
    """
    directory = environ("DOCKER_CONFIG")
    path = str(Path(directory) / "config.json") if directory else None
    try:
        found = auth.load_config(config_path=path).resolve_authconfig(host) or {}
    except docker.errors.DockerException as error:
        raise FetchError(
            f"docker's credential store gives no login for {host} ({type(error).__name__})",
            remedy=f"run `docker login {host}` again, or take credsStore out of docker's config.json",
        ) from error
    lower = {str(key).lower(): str(value or "") for key, value in found.items()}
    return Login(lower.get("username", ""), lower.get("password", ""), lower.get("identitytoken", ""))


class Access:
    """Signs requests to one repository: nothing, basic, or a bearer token fetched when the registry asks for it."""

    def __init__(self, session: requests.Session, host: str, login: Callable[[], Login]) -> None:
        self._session, self._host, self._login = session, host, login
        self._header, self._lock = "", Lock()

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._header:
            request.headers["Authorization"] = self._header
        return request

    def challenge(self, response: requests.Response) -> bool:
        """Take in a 401; see `airbundle.download.Credentials`."""
        scheme, _, rest = response.headers.get("WWW-Authenticate", "").partition(" ")
        with self._lock:
            if self._header and response.request.headers.get("Authorization") != self._header:
                return True  # another thread was told the same and has new credentials
            if scheme.lower() == "bearer":
                self._header = self._bearer(parse_keqv_list(parse_http_list(rest)))
            elif scheme.lower() == "basic":
                self._header = self._basic()
            return bool(self._header)

    def _basic(self) -> str:
        login = self._login()
        pair = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
        return f"Basic {pair}" if login.user else ""

    def _bearer(self, asked: Mapping[str, str]) -> str:
        realm = asked.get("realm", "")
        if urlsplit(realm).scheme != "https" and not web.is_loopback(realm):
            raise FetchError(
                f"{self._host}: wants tokens from {web.without_secrets(realm)!r}, without encryption",
                remedy="use a registry whose tokens come over https",
            )
        fields = {name: asked[name] for name in ("service", "scope") if name in asked}
        login = self._login()
        try:
            response = self._ask(realm, fields, login)
        except requests.RequestException as error:
            raise FetchError(f"{web.without_secrets(realm)}: {web.reason(error)}", remedy="try again later") from error
        if response.status_code != 200:
            return ""
        try:
            answer = response.json()
        except ValueError:
            return ""
        token = answer.get("token") or answer.get("access_token") or ""
        return f"Bearer {token}" if token else ""

    def _ask(self, realm: str, fields: Mapping[str, str], login: Login) -> requests.Response:
        if login.identity_token:
            grant = {"grant_type": "refresh_token", "client_id": "airbundle", "refresh_token": login.identity_token}
            return self._session.post(realm, data={**fields, **grant}, timeout=_TIMEOUT)
        pair = (login.user, login.password) if login.user else None
        return self._session.get(realm, params=dict(fields), auth=pair, timeout=_TIMEOUT)


class RegistryClient:
    """Pulls from any registry, with the logins of docker's own configuration.

    Plain http is spoken to loopback addresses only; everything else is https.
    """

    def __init__(self, cache: Cache, environ: Callable[[str], str | None]) -> None:
        self._cache, self._environ = cache, environ
        self._session = web.new_session(environ)
        self._downloader = Downloader(cache, self._session)
        self._access: dict[tuple[str, str], Access] = {}
        self._lock = Lock()

    def manifest(self, host: str, api_host: str, repository: str, wanted: str) -> tuple[bytes, str]:
        """A manifest or index by tag or digest: its bytes and the media type it was served with.

        Raises:
            FetchError: it cannot be had, or is not what its digest says.
        """
        name = f"{host}/{repository}{'@' if ':' in wanted else ':'}{wanted}"
        try:
            data, headers = self._downloader.read(
                name,
                f"{_base(api_host)}/v2/{repository}/manifests/{wanted}",
                limit=_LARGEST_MANIFEST,
                headers={"Accept": documents.ACCEPT},
                credentials=self._access_to(host, repository),
            )
        except Refused as error:
            raise explain(error, host) from error
        found = f"sha256:{hashlib.sha256(data).hexdigest()}"
        announced = headers.get("Docker-Content-Digest", found)
        for needed in (wanted if ":" in wanted else found, announced if announced.startswith("sha256:") else found):
            if needed != found:
                raise FetchError(
                    f"{name}: wrong bytes",
                    details=(f"found {found}", f"needed {needed}"),
                    remedy="the registry, or a proxy on the way, changes what it serves: try another network or mirror",
                )
        return data, headers.get("Content-Type", "")

    def blob(self, host: str, api_host: str, repository: str, item: LockedFile, advance: Advance) -> None:
        """A blob into the cache. Raises FetchError as `Downloader.download` does."""
        url = f"{_base(api_host)}/v2/{repository}/blobs/sha256:{item.sha256}"
        try:
            self._downloader.download(item, url, advance, self._access_to(host, repository))
        except Refused as error:
            raise explain(error, host) from error

    def _access_to(self, host: str, repository: str) -> Access:
        with self._lock:
            key = (host, repository)
            if key not in self._access:
                self._access[key] = Access(self._session, host, lambda: read_login(host, self._environ))
            return self._access[key]


def explain(error: Refused, host: str) -> FetchError:
    """A refusal in docker's words."""
    if error.status in (401, 403):
        words = "docker login" if host == HUB else f"docker login {host}"
        return FetchError(error.summary, remedy=f"run `{words}` with an account that may read it; check its name")
    if error.status == 404:
        return FetchError(error.summary, remedy="check repository and tag: the registry has nothing of this name")
    return error


def _base(api_host: str) -> str:
    url = f"http://{api_host}"
    return url if web.is_loopback(url) else f"https://{api_host}"
