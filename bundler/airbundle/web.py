"""HTTP as the ordinary clients do it: the environment's proxies, certificates and netrc; and no secret in a message."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import requests
import urllib3.exceptions

from airbundle_onsite import __version__

_CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE")  # beyond REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE, which requests reads


class Session(requests.Session):
    """A session that never asks a proxy for this machine's own addresses."""

    def merge_environment_settings(
        self, url: str | bytes | None, proxies: Any, stream: Any, verify: Any, cert: Any
    ) -> Any:
        settings = super().merge_environment_settings(url, proxies, stream, verify, cert)
        if is_loopback(str(url)):
            settings["proxies"] = {}
        return settings

    def rebuild_proxies(
        self, prepared_request: requests.PreparedRequest, proxies: MutableMapping[str, str] | None
    ) -> MutableMapping[str, str]:
        if is_loopback(str(prepared_request.url)):
            return {}
        rebuilt: MutableMapping[str, str] = super().rebuild_proxies(prepared_request, proxies)  # type: ignore[no-untyped-call]
        return rebuilt


def new_session(environ: Callable[[str], str | None]) -> Session:
    """A session for this environment.

    Args:
        environ: reads one variable. Certificates come from REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE, else from PIP_CERT
            or SSL_CERT_FILE; proxies from http_proxy, https_proxy and no_proxy; passwords from netrc.
    """
    session = Session()
    session.headers["User-Agent"] = f"airbundle/{__version__}"
    bundle = next(filter(None, map(environ, _CA_VARIABLES)), None)
    if bundle:
        session.verify = bundle
    return session


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine, by its name or address."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_secrets(url: str) -> str:
    """The URL without user, password, query and fragment: signed URLs carry their key in the query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def without_user(url: str) -> str:
    """The URL without user, password and fragment; the query stays."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))


def reason(error: Exception) -> str:
    """What a failed request means, in words that hold no URL."""
    text = f"{error!r}".lower()
    for mark, words in _REASONS.items():
        if mark in text:
            return words
    if isinstance(error, requests.Timeout | urllib3.exceptions.TimeoutError):
        return "no answer in time"
    return f"the connection broke ({type(error).__name__})"


_REASONS: Mapping[str, str] = {
    "certificate_verify_failed": "its certificate is not trusted here (set REQUESTS_CA_BUNDLE to the CA file)",
    "could not find a suitable tls ca": "the CA file named by REQUESTS_CA_BUNDLE or PIP_CERT does not exist",
    "proxyerror": "the proxy did not let it through (see http_proxy, https_proxy and no_proxy)",
    "nameresolutionerror": "its name cannot be resolved (is the network up?)",
    "connection refused": "connection refused",
    "incompleteread": "the connection broke off in the middle",
    "connection reset": "the connection was reset",
    "remotedisconnected": "the server closed the connection without an answer",
}


def is_hopeless(error: Exception) -> bool:
    """Whether trying again cannot help: a certificate nobody trusts, a malformed URL."""
    wrong = (
        requests.exceptions.InvalidURL,
        requests.exceptions.InvalidSchema,
        requests.exceptions.MissingSchema,
        requests.exceptions.TooManyRedirects,
    )
    return (
        isinstance(error, wrong)
        or "certificate_verify_failed" in f"{error!r}".lower()
        or "suitable tls ca" in str(error).lower()
    )


def scrubbed(text: str) -> str:
    """Somebody else's message, with passwords in its URLs taken out."""
    return re.sub(r"(\w+://)[^/\s@]+@", r"\1", text)
