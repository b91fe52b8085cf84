"""Carries frames between a network interface and a sinkhole."""

from __future__ import annotations

import errno
import fcntl
import select
import socket
import struct
import threading

from airbundle.rehearse.sinkhole import Sinkhole

_ALL = 0x0003  # ETH_P_ALL, linux/if_ether.h
_OUTGOING = 4  # PACKET_OUTGOING, linux/if_packet.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h
_TICK = 0.25  # seconds
_LARGEST = 1 << 17  # segments that a virtual interface has not cut up are that long at most


def bring_up(interface: str) -> None:
    """Set an interface of this thread's network namespace up; in a fresh one, even loopback starts down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", interface.encode(), 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        if not flags & _IFF_UP:
            fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", interface.encode(), flags | _IFF_UP))


def open_interface(name: str) -> socket.socket:
    """A socket that sees every frame of an interface of this thread's network namespace. Needs CAP_NET_RAW."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    made.bind((name, 0))
    return made


def hardware_address(interface: socket.socket) -> bytes:
    """Of the interface that `open_interface` opened."""
    found: bytes = interface.getsockname()[4]
    return found


class Wire(threading.Thread):
    """Runs a sinkhole on an interface until `close`. A failure in it is kept in `failure` and ends it."""

    def __init__(self, interface: socket.socket, sinkhole: Sinkhole) -> None:
        super().__init__(daemon=True, name="sinkhole")
        self._interface, self._sinkhole = interface, sinkhole
        self._closing = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self._closing.is_set():
                frames = [*self._receive(), *self._sinkhole.tick()]
                for frame in frames:
                    self._send(frame)
            self._sinkhole.finish()
        except Exception as error:  # noqa: BLE001  handed to whoever closes it: a deaf sinkhole must not pass for a quiet one
            self.failure = error
        finally:
            self._interface.close()

    def close(self) -> None:
        """End it. Raises what broke it, if anything did."""
        self._closing.set()
        self.join()
        if self.failure is not None:
            raise self.failure

    def _send(self, frame: bytes) -> None:
        try:
            self._interface.send(frame)
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # a queue was full: the frame is lost, and asked for again
                raise

    def _receive(self) -> list[bytes]:
        readable, _, _ = select.select([self._interface], [], [], _TICK)
        if not readable:
            return []
        data, origin = self._interface.recvfrom(_LARGEST)
        return [] if origin[2] == _OUTGOING else self._sinkhole.take(data)
