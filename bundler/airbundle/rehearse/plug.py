"""Plugs a sinkhole into a bridge of this machine, in the place of a gateway that nobody has.

One end of a pair of interfaces becomes a port of the bridge. The other goes into a network namespace that only the
sinkhole's socket keeps alive, so that this machine never forwards what arrives there, and when this process ends in
whatever way, the kernel removes namespace, pair and port.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from airbundle.rehearse import wire
from airbundle.rehearse.sinkhole import Askers, Contact, Sinkhole
from airbundle_onsite.errors import PreflightError
from airbundle_onsite.system import Runner

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_INTERFACES = Path("/sys/class/net")
_FAR = "sink0"
_PATIENCE = 20.0  # seconds
_SYSTEM_PATHS = "/usr/sbin:/sbin:/usr/bin:/bin"


class Plug:
    """A sinkhole on a bridge, from now until `close`.

    Args:
        bridge: name of its interface.
        gateway: the address to answer for.
        ignored: addresses of what was there before, which is none of the rehearsal's business.

    Raises:
        PreflightError: it cannot be plugged in.
    """

    def __init__(
        self,
        bridge: str,
        gateway: str,
        askers: Askers,
        heard: Callable[[Contact], None],
        ignored: Collection[str],
        runner: Runner,
    ) -> None:
        self._runner, self._near = runner, f"abr{secrets.token_hex(4)}"
        far = _FarEnd()
        far.start()
        try:
            self._ip(
                *("link", "add", self._near, "type", "veth", "peer", "name", _FAR, "netns", str(far.thread_id())),
            )
            interface = far.open()
        finally:
            far.finish()
        mac = wire.hardware_address(interface)
        sinkhole = Sinkhole(mac, gateway, askers, heard, time.time, frozenset(ignored))
        self._wire = wire.Wire(interface, sinkhole)
        self._wire.start()
        self._ip("link", "set", self._near, "master", bridge, "up")

    def close(self) -> None:
        """Unplug it."""
        try:
            self._wire.close()
        finally:
            self._runner.run(["ip", "link", "delete", self._near], timeout=20, env=_environment())

    def _ip(self, *words: str) -> None:
        ip(self._runner, *words)


class _FarEnd(threading.Thread):
    """A thread in a network namespace of its own, for as long as it takes to open the interface moved there."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._there, self._moved, self._opened = threading.Event(), threading.Event(), threading.Event()
        self._failure: OSError | None = None
        self._interface: socket.socket | None = None
        self._id = 0

    def run(self) -> None:
        try:
            library = ctypes.CDLL(None, use_errno=True)
            if library.unshare(_CLONE_NEWNET) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            self._id = threading.get_native_id()
            self._there.set()
            if self._moved.wait(_PATIENCE):
                wire.bring_up(_FAR)
                self._interface = wire.open_interface(_FAR)
        except OSError as error:
            self._failure = error
        finally:
            self._there.set()
            self._opened.set()

    def thread_id(self) -> int:
        """By which the kernel knows the namespace. Raises PreflightError when there is none."""
        self._there.wait(_PATIENCE)
        self._check()
        return self._id

    def open(self) -> socket.socket:
        """The interface, which must have been moved there."""
        self._moved.set()
        self._opened.wait(_PATIENCE)
        self._check()
        if self._interface is None:
            raise PreflightError("the sinkhole's interface could not be opened in time")
        return self._interface

    def finish(self) -> None:
        """End the thread, whatever has become of it."""
        self._moved.set()
        self.join(_PATIENCE)

    def _check(self) -> None:
        if self._failure is not None:
            raise PreflightError(
                f"a sinkhole cannot be set up here: {self._failure}", remedy="run the rehearsal as root"
            )


def bridge_with(address: str, likely: Sequence[str] = ()) -> str | None:
    """Name of this machine's bridge that has an IPv4 address; `likely` names are looked at first.

    Each is asked by itself: a list of all addresses may lack some while interfaces come and go.
    """
    others = sorted(path.parent.name for path in _INTERFACES.glob("*/bridge"))
    for name in (*likely, *others):
        if name and _address_of(name) == address:
            return name
    return None


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            found = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("16s24x", interface.encode()[:15]))
        except OSError:  # it has none, or is gone
            return ""
    return socket.inet_ntoa(found[20:24])


def ip(runner: Runner, *words: str) -> None:
    """Run iproute2's ip. Raises PreflightError when it fails."""
    done = runner.run(["ip", *words], timeout=30, env=_environment())
    if done.code != 0:
        missing = "install iproute2" if done.code == 127 else "run the rehearsal as root"
        raise PreflightError(f"ip {' '.join(words)}: {done.stderr.strip()}", remedy=missing)


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_PATHS}"}
