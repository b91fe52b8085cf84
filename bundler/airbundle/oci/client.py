"""The registry's HTTP API (OCI distribution 1.1, docker registry v2), as far as pulling needs it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TypeVar
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
from airbundle_onsite.errors import FetchError, UsageError
from airbundle_onsite.system import SystemClock, Talk

T = TypeVar("T")

_LARGEST_MANIFEST = 8 * 1024 * 1024  # bytes
_TIMEOUT = 60.0  # seconds
_TOKEN_WAITS = (1.0, 4.0)  # seconds before a token is asked for again


@record
class Login:
    """What docker's configuration has for a host; empty where it has nothing."""

    user: str = ""
    password: str = ""
    identity_token: str = ""


def read_login(host: str, environ: Callable[[str], str | None]) -> Login:
    """The login that `docker login` or `podman login` left for a host.

    It comes from docker's config.json or the credential helper that it names, else from the file that
    REGISTRY_AUTH_FILE names.

    Raises:
        FetchError: the helper fails.
    """
    directory = environ("DOCKER_CONFIG")
    path = str(Path(directory) / "config.json") if directory else None
    try:
        found = auth.load_config(config_path=path).resolve_authconfig(host) or {}
        podmans = environ("REGISTRY_AUTH_FILE")
        if not found and podmans:
            found = auth.load_config(config_path=podmans).resolve_authconfig(host) or {}
    except docker.errors.DockerException as error:
        raise FetchError(
            f"docker's credential store gives no login for {host} ({type(error).__name__})",
            remedy=f"run `docker login {host}` again, or take credsStore out of docker's config.json",
        ) from error
    lower = {str(key).lower(): str(value or "") for key, value in found.items()}
    return Login(lower.get("username", ""), lower.get("password", ""), lower.get("identitytoken", ""))


class Access:
    """Signs requests to one repository: nothing, basic, or a bearer token fetched when the registry asks for it."""

    def __init__(
        self, session: requests.Session, host: str, login: Callable[[], Login], *, insecure: bool = False
    ) -> None:
        self._session, self._host, self._login, self._insecure = session, host, login, insecure
        self._header, self._lock, self._clock = "", Lock(), SystemClock()

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
        if urlsplit(realm).scheme != "https" and not web.is_loopback(realm) and not self._insecure:
            raise FetchError(
                f"{self._host}: wants tokens from {web.without_secrets(realm)!r}, without encryption",
                remedy="use a registry whose tokens come over https",
            )
        fields = {name: asked[name] for name in ("service", "scope") if name in asked}
        login = self._login()
        response = self._persist(realm, fields, login)
        if response.status_code != 200:
            return ""
        try:
            answer = response.json()
        except ValueError:
            return ""
        token = answer.get("token") or answer.get("access_token") or ""
        return f"Bearer {token}" if token else ""

    def _persist(self, realm: str, fields: Mapping[str, str], login: Login) -> requests.Response:
        """The token server's answer; asked again when it fails in a way that passes."""
        for wait in (*_TOKEN_WAITS, None):
            try:
                response = self._ask(realm, fields, login)
            except requests.RequestException as error:
                why, hopeless = web.reason(error), web.is_hopeless(error)
            else:
                if response.status_code != 429 and response.status_code < 500:
                    return response
                why, hopeless = f"HTTP {response.status_code} {response.reason}", False
            if wait is None or hopeless:
                break
            self._clock.sleep(wait)
        raise FetchError(f"{self._host}: no token from {web.without_secrets(realm)}: {why}", remedy="try again later")

    def _ask(self, realm: str, fields: Mapping[str, str], login: Login) -> requests.Response:
        if login.identity_token:
            grant = {"grant_type": "refresh_token", "client_id": "airbundle", "refresh_token": login.identity_token}
            return self._session.post(realm, data={**fields, **grant}, timeout=_TIMEOUT)
        pair = (login.user, login.password) if login.user else None
        return self._session.get(realm, params=dict(fields), auth=pair, timeout=_TIMEOUT)


@record
class Place:
    """A repository somewhere: in the registry that the image is named by, or in a mirror of it.

    Attributes:
        host: as people and logins know it, with its port.
        api: host of the API.
        repository: path on that host.
        insecure: whether it may be spoken to without encryption; loopback always may.
    """

    host: str
    api: str
    repository: str
    insecure: bool = False

    @property
    def url(self) -> str:
        plain = f"http://{self.api}"
        return f"{plain if self.insecure or web.is_loopback(plain) else f'https://{self.api}'}/v2/{self.repository}"

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}"


def mirror_place(mirror: str, repository: str) -> Place:
    """``HOST[:PORT][/PREFIX]`` as a place for a repository. Raises UsageError when it is not of that form."""
    match = _MIRROR.fullmatch(mirror)
    if not match:
        raise UsageError(
            f"image.mirrors: {mirror!r} is not a registry", remedy="write HOST[:PORT][/PREFIX], with http:// if need be"
        )
    host, prefix = match["host"], (match["prefix"] or "").strip("/")
    return Place(host, host, f"{prefix}/{repository}" if prefix else repository, insecure=match["scheme"] == "http://")


_MIRROR = re.compile(
    r"(?P<scheme>https?://)?(?P<host>[A-Za-z0-9.-]+(:\d+)?|\[[0-9a-f:]+\](:\d+)?)(?P<prefix>/[\w./-]*)?"
)


class RegistryClient:
    """Pulls from any registry, with the logins of docker's own configuration, trying mirrors first.

    A mirror that does not answer is told once and left alone from then on. Whatever a mirror gives is held against
    the digest that is wanted, as everything is.
    """

    def __init__(self, cache: Cache, environ: Callable[[str], str | None], talk: Talk) -> None:
        self._cache, self._environ, self._talk = cache, environ, talk
        self._session = web.new_session(environ)
        self._downloader = Downloader(cache, self._session)
        self._access: dict[tuple[str, str], Access] = {}
        self._silent: set[str] = set()
        self._lock = Lock()

    def manifest(self, places: Sequence[Place], wanted: str) -> tuple[bytes, str]:
        """A manifest or index by tag or digest: its bytes and the media type it was served with.

        Args:
            places: mirrors first, the registry itself last.
            wanted: tag or digest.

        Raises:
            FetchError: it cannot be had, or is not what its digest says.
        """
        return self._first(places, lambda place: self._manifest(place, wanted))

    def blob(self, places: Sequence[Place], item: LockedFile, advance: Advance) -> None:
        """A blob into the cache. Raises FetchError as `Downloader.download` does."""
        self._first(places, lambda place: self._blob(place, item, advance))

    def _first(self, places: Sequence[Place], ask: Callable[[Place], T]) -> T:
        for place in places[:-1]:
            if place.host in self._silent:
                continue
            try:
                return ask(place)
            except FetchError as error:
                if isinstance(error, Refused) and error.status == 404:
                    continue  # a mirror need not have everything
                with self._lock:
                    if place.host not in self._silent:
                        self._silent.add(place.host)
                        self._talk.say(f"mirror {place.host} is left out: {error.summary}")
        return self._named(places[-1], ask)

    def _named(self, place: Place, ask: Callable[[Place], T]) -> T:
        try:
            return ask(place)
        except Refused as error:
            raise explain(error, place.host) from error

    def _manifest(self, place: Place, wanted: str) -> tuple[bytes, str]:
        name = f"{place}{'@' if ':' in wanted else ':'}{wanted}"
        data, headers = self._downloader.read(
            name,
            f"{place.url}/manifests/{wanted}",
            limit=_LARGEST_MANIFEST,
            headers={"Accept": documents.ACCEPT},
            credentials=self._access_to(place),
        )
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

    def _blob(self, place: Place, item: LockedFile, advance: Advance) -> None:
        self._downloader.download(item, f"{place.url}/blobs/sha256:{item.sha256}", advance, self._access_to(place))

    def _access_to(self, place: Place) -> Access:
        with self._lock:
            key = (place.host, place.repository)
            if key not in self._access:
                self._access[key] = Access(
                    self._session,
                    place.host,
                    lambda: read_login(place.host, self._environ),
                    insecure=place.insecure,
                )
            return self._access[key]


def explain(error: Refused, host: str) -> FetchError:
    """A refusal in docker's words."""
    if error.status in (401, 403):
        words = "docker login" if host == HUB else f"docker login {host}"
        return FetchError(error.summary, remedy=f"run `{words}` with an account that may read it; check its name")
    if error.status == 404:
        return FetchError(error.summary, remedy="check repository and tag: the registry has nothing of this name")
    return error
