"""A small client of the Docker Engine API over its unix socket; podman's docker-compatible API answers it too.

Only what running a release needs. It speaks to a local socket, so it never looks at proxy variables.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, Optional
from urllib.parse import quote, urlencode

from airbundle_onsite.errors import AirbundleError, ExitCode

MIN_API = (1, 40)
"""Docker 19.03: the first with device requests."""

_LOAD_SILENCE = 3600  # seconds; unpacking a large layer on a slow disk says nothing for a long time
_API_VERSION = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_STRANGER = "is it a container engine that answers at this socket? DOCKER_HOST names another"
_FRAME_HEADER = 8  # bytes before each piece of a multiplexed log: stream, three zeros, big-endian length


class DockerError(AirbundleError):
    """The container engine refused, or could not be reached.

    Attributes:
        operation: what was tried, e.g. ``start container airbundle-x-1-service``.
        status: HTTP status; 0 when there was no answer.
        message: the engine's own words.
    """

    def __init__(self, operation: str, status: int, message: str, *, remedy: str = "") -> None:
        answer = f"HTTP {status}: {message}" if status else message
        super().__init__(f"docker: could not {operation}: {answer}", remedy=remedy)
        self.operation = operation
        self.status = status
        self.message = message
        if not status:
            self.exit_code = ExitCode.PREFLIGHT


def socket_path(docker_host: str = "", environ: Optional[Mapping[str, str]] = None) -> Path:
    """Which unix socket to use: `docker_host`, else DOCKER_HOST, else the first well-known one that exists.

    With none of them there, the usual one is returned, so that connecting to it names it.

    Raises:
        DockerError: when the address is not ``unix://``.
    """
    environ = os.environ if environ is None else environ
    address = docker_host or environ.get("DOCKER_HOST", "")
    if address:
        if not address.startswith("unix://") or len(address) == len("unix://"):
            raise DockerError(
                "use DOCKER_HOST",
                0,
                f"{address!r} is not a unix socket, and a bundle's files are mounted from this machine",
                remedy="run this on the machine of the docker engine, with DOCKER_HOST unset or unix:///path",
            )
        return Path(address[len("unix://") :])
    uid = os.getuid()
    usual = Path("/var/run/docker.sock")
    of_user = Path(f"/run/user/{uid}")
    known = (usual, of_user / "docker.sock", Path("/run/podman/podman.sock"), of_user / "podman/podman.sock")

    return next((path for path in known if path.exists()), usual)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except OSError:
            self.sock.close()
            raise


class DockerClient:
    """Talks to one engine. Opens a connection per request and keeps none."""

    def __init__(self, path: Path, *, timeout: float = 120) -> None:
        """Args: the unix socket's path, and how many seconds one answer may take."""
        self.path = path
        self._timeout = timeout
        self._version: Optional[Mapping[str, Any]] = None

    def version(self) -> Mapping[str, Any]:
        """What ``/version`` says, read once.

        Raises:
            DockerError: no engine answers, or it is too old.
        """
        if self._version is None:
            with self._open("GET", "/version", "reach the container engine") as response:
                found = _object(_decode(response.read(), "reach the container engine"), "reach the container engine")
            api = str(found.get("ApiVersion", ""))
            if not _API_VERSION.fullmatch(api) or _numbers(api) < MIN_API:
                raise DockerError(
                    "use this container engine",
                    0,
                    f"its API version is {api[:40] or 'unknown'}; {MIN_API[0]}.{MIN_API[1]} or later is needed",
                    remedy="install Docker 19.03 or later",
                )
            self._version = found
        return self._version

    def components(self) -> dict[str, str]:
        """Version of each part of the engine by name: ``Engine``, ``containerd``, ``Podman Engine``, …"""
        found = self.version().get("Components")
        parts = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
        return {str(item.get("Name", "")): str(item.get("Version", "")) for item in parts}

    def info(self) -> Mapping[str, Any]:
        """What ``/info`` says."""
        operation = "ask what the engine can do"
        return _object(self.get_json("/info", operation=operation), operation)

    def get_json(self, path: str, *, operation: str, query: Optional[Mapping[str, str]] = None) -> Any:
        """GET, decoded. Raises DockerError on any status of 400 or more."""
        with self._open("GET", self._versioned(path, query), operation) as response:
            return _decode(response.read(), operation)

    def find_json(self, path: str, *, operation: str) -> Optional[Any]:
        """Like `get_json`, but None when the engine knows no such thing."""
        try:
            return self.get_json(path, operation=operation)
        except DockerError as error:
            if error.status == 404:
                return None
            raise

    def post(
        self,
        path: str,
        body: Optional[Any] = None,
        *,
        operation: str,
        query: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = None,
    ) -> Any:
        """POST JSON; the decoded answer, or None when it is empty. `timeout` in seconds."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        with self._open("POST", self._versioned(path, query), operation, data, headers, timeout) as response:
            return _decode(response.read(), operation)

    def delete(self, path: str, *, operation: str, query: Optional[Mapping[str, str]] = None) -> bool:
        """DELETE; False when there was no such thing."""
        try:
            with self._open("DELETE", self._versioned(path, query), operation) as response:
                response.read()
        except DockerError as error:
            if error.status == 404:
                return False
            raise
        return True

    def load(self, archive: Iterable[bytes], on_event: Callable[[Mapping[str, Any]], None]) -> None:
        """Stream an image archive into the engine; memory stays flat.

        Args:
            archive: a docker-archive; an exception raised while iterating breaks the transfer off and passes through.
            on_event: called with each progress object of the answer.

        Raises:
            DockerError: the engine refused, also when it says so within an answer of status 200.
        """
        failures: list[Exception] = []

        def watched() -> Iterator[bytes]:
            try:
                yield from archive
            except Exception as error:
                failures.append(error)
                raise

        operation = "load the images"
        headers = {"Content-Type": "application/x-tar", "Transfer-Encoding": "chunked"}
        path = self._versioned("/images/load", {"quiet": "0"})
        try:
            with self._open("POST", path, operation, watched(), headers, _LOAD_SILENCE) as response:
                for event in _json_lines(response):
                    if "error" in event or "errorDetail" in event:
                        message = _event_error(event)
                        raise DockerError(operation, response.status, message, remedy=_load_remedy(message))
                    on_event(event)
        except DockerError:
            if failures:  # the archive broke, not the engine
                raise failures[0] from None
            raise

    def logs(self, container: str, lines: int) -> str:
        """The last lines that a container wrote to stdout and stderr, in order."""
        query = {"stdout": "1", "stderr": "1", "tail": str(lines)}
        path = self._versioned(f"/containers/{quote(container)}/logs", query)
        with self._open("GET", path, f"read the log of {container}") as response:
            return demultiplex(response.read()).decode("utf-8", "replace")

    def _versioned(self, path: str, query: Optional[Mapping[str, str]] = None) -> str:
        # The engine's own version, never ours: engines refuse versions newer than themselves, and new ones
        # refuse old versions.
        return f"/v{self.version()['ApiVersion']}{path}" + (f"?{urlencode(query)}" if query else "")

    def _open(
        self,
        method: str,
        path: str,
        operation: str,
        body: Any = None,
        headers: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = None,
    ) -> _Answer:
        connection = _UnixConnection(self.path, timeout or self._timeout)
        try:
            response = _exchange(connection, method, path, body, dict(headers or {}))
        except socket.timeout as error:
            connection.close()
            raise DockerError(operation, 0, f"no answer within {timeout or self._timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _unreachable(operation, self.path, error) from error
        except BaseException:  # the archive's own error: hang up, so that the engine drops what it got
            connection.close()
            raise
        if response.status >= 400:
            with _Answer(connection, response, operation):
                text = response.read().decode("utf-8", "replace").strip()
            message = _message(text)
            raise DockerError(operation, response.status, message, remedy=_load_remedy(message))
        return _Answer(connection, response, operation)


class _Answer:
    """A response that closes its connection when left, and turns a broken transfer into a DockerError."""

    def __init__(self, connection: _UnixConnection, response: http.client.HTTPResponse, operation: str) -> None:
        self._connection, self._response, self._operation = connection, response, operation

    def __enter__(self) -> http.client.HTTPResponse:
        return self._response

    def __exit__(self, _kind: Any, error: Optional[BaseException], _trace: Any) -> None:
        self._connection.close()
        if isinstance(error, (OSError, http.client.HTTPException)):
            raise DockerError(self._operation, 0, f"the answer broke off: {error}") from error


def _exchange(
    connection: _UnixConnection, method: str, path: str, body: Any, headers: dict[str, str]
) -> http.client.HTTPResponse:
    connection.connect()
    streamed = body is not None and not isinstance(body, bytes)
    try:
        connection.request(method, path, body, headers, encode_chunked=streamed)
    except (BrokenPipeError, ConnectionResetError):
        # An engine that refuses early (a full disk) hangs up before it has read everything: its answer says why.
        if not streamed:
            raise
    return connection.getresponse()


def _unreachable(operation: str, path: Path, error: Exception) -> DockerError:
    if isinstance(error, FileNotFoundError):
        return DockerError(
            operation,
            0,
            f"there is no socket at {path}",
            remedy="install and start docker (systemctl start docker), or set DOCKER_HOST=unix:///path of its socket",
        )
    if isinstance(error, PermissionError):
        return DockerError(
            operation,
            0,
            f"no permission to use {path}",
            remedy="run as root, or have the administrator add this user to the group that owns the socket",
        )
    if isinstance(error, ConnectionRefusedError):
        return DockerError(
            operation, 0, f"nothing listens at {path}", remedy="start the engine: systemctl start docker"
        )
    return DockerError(operation, 0, f"{path}: {error}", remedy="see the engine's log: journalctl -u docker")


def _load_remedy(message: str) -> str:
    return (
        "free space where the engine keeps its images (docker info names it), then run the same command again"
        if "no space left" in message.lower()
        else ""
    )


def _event_error(event: Mapping[str, Any]) -> str:
    detail = event.get("errorDetail")
    message = detail.get("message") if isinstance(detail, dict) else detail
    return str(message or event.get("error") or "no reason given")


def _message(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text or "no reason given"
    if isinstance(value, dict) and value.get("message"):
        return str(value["message"])
    return text


def _decode(data: bytes, operation: str) -> Any:
    try:
        return json.loads(data) if data.strip() else None
    except (ValueError, RecursionError) as error:
        raise DockerError(operation, 0, f"the answer is not JSON: {error}", remedy=_STRANGER) from error


def _object(value: Any, operation: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DockerError(operation, 0, "the answer is not a JSON object", remedy=_STRANGER)
    return value


def _json_lines(response: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in response:
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # plain text of an engine that does not report in JSON
        if isinstance(event, dict):
            yield event


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def demultiplex(data: bytes) -> bytes:
    """The text of a container's log: frames joined; data of a container with a terminal has no frames."""
    joined: list[bytes] = []
    position = 0
    while position < len(data):
        header = data[position : position + _FRAME_HEADER]
        if len(header) < _FRAME_HEADER or header[0] > 2 or header[1:4] != b"\0\0\0":
            return data if position == 0 else b"".join(joined)
        end = position + _FRAME_HEADER + int.from_bytes(header[4:], "big")
        joined.append(data[position + _FRAME_HEADER : end])
        position = end
    return b"".join(joined)
