"""A room without a way out, for bundles of the venv runtime: namespaces of its own, and a sinkhole for a network.

Outside, `run_in_room` starts this module as a program in new network, mount and process namespaces, as root or in a
user namespace. Inside, `main` furnishes the room and runs the site's half there. The first process inside is init:
when it ends, or when whoever is outside ends, the kernel ends everything in the room.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from airbundle.rehearse import wire
from airbundle.rehearse.askers import ProcAskers
from airbundle.rehearse.notebook import LineWriter, Recorder, read_line
from airbundle.rehearse.sinkhole import Sinkhole
from airbundle.rehearse.site import Place, SiteHalf
from airbundle.rehearse.venvtry import try_without_start
from airbundle_onsite.contract.record import to_plain
from airbundle_onsite.errors import AirbundleError, PreflightError
from airbundle_onsite.system import Runner, SystemRunner
from airbundle_onsite.verify.bundle import trust

ISOLATION = "network, mount and process namespaces of its own, a sinkhole behind the default route"
_NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_INSIDE, _SINK = "room0", "sink0"
# Addresses set apart for documentation (RFC 5737, RFC 3849).
_ADDRESS, _GATEWAY, _WIDTH = "192.0.2.1", "192.0.2.2", 30
_ADDRESS6, _GATEWAY6 = "2001:db8::1", "2001:db8::2"
_SYSTEM_PATHS = "/usr/sbin:/sbin:/usr/bin:/bin"


# --- outside ----------------------------------------------------------------------------------------------


def namespaces(runner: Runner) -> list[str]:
    """Words that put before a command give it namespaces of its own.

    Raises:
        PreflightError: this kernel or user may not make them.
    """
    refusals = []
    for words in ([*_NAMESPACES], [*_NAMESPACES, "--map-root-user"]):
        done = runner.run([*words, "true"], timeout=20)
        if done.code == 0:
            return words
        refusals.append(done.stderr.strip())
    raise PreflightError(
        "the network cannot be cut here, so nothing can be rehearsed",
        details=list(dict.fromkeys(refusals)),
        remedy="run it as root, or where unprivileged user namespaces are allowed "
        "(sysctl user.max_user_namespaces); unshare comes with util-linux",
    )


def run_in_room(place: Place, runner: Runner, recorder: Recorder) -> None:
    """Run the site's half of a bundle in a room of its own.

    Raises:
        PreflightError: there can be no such room here.
    """
    words = namespaces(runner)
    if shutil.which("ip", path=_search()) is None:
        raise PreflightError("needed the program ip, found none", remedy="install iproute2")
    argv = [*words, sys.executable, "-m", "airbundle.rehearse.room", json.dumps(to_plain(_plain(place)))]
    # A session of its own: Ctrl-C comes to this process, which ends the room as a whole.
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", start_new_session=True
    )
    assert process.stdout is not None
    failure = ""
    try:
        for line in process.stdout:
            if line.startswith('["error"'):
                failure = json.loads(line)[1]
            else:
                read_line(line, recorder)
        code = process.wait()
    finally:
        process.kill()
        process.communicate()
    if failure or code:
        raise PreflightError(
            f"the rehearsal's room broke down: {failure or f'exit code {code}'}",
            remedy="what it said is above; run the same command again",
        )


def _plain(place: Place) -> dict[str, object]:
    paths = {"bundle": str(place.bundle), "root": str(place.root), "scratch": str(place.scratch)}
    return {**paths, "port": place.port, "watch": place.watch, "environment": dict(place.environment)}


# --- inside -----------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """The program inside: a first process that outlives everything in the room, and a second that does the work."""
    raw = json.loads(arguments[0])
    paths = {name: Path(raw[name]) for name in ("bundle", "root", "scratch")}
    place = Place(port=raw["port"], watch=raw["watch"], environment=raw["environment"], **paths)
    worker = os.fork()
    if worker == 0:
        os._exit(_work(place))
    threading.Thread(target=_end_with_outside, daemon=True).start()
    while True:
        ended, status = os.wait()  # orphans, too, are this process's to collect
        if ended == worker:
            return os.waitstatus_to_exitcode(status) & 0xFF


def _end_with_outside() -> None:
    sys.stdin.read()
    os._exit(1)


def _work(place: Place) -> int:
    sys.stdin.close()
    recorder = LineWriter(sys.stdout)
    try:
        furnish(place)
        interface = wire.open_interface(_SINK)
        mac = wire.hardware_address(interface)
        _lead_to(mac)
        askers = ProcAskers(lambda _source: os.getpid())
        listener = wire.Wire(interface, Sinkhole(mac, _GATEWAY, askers, recorder.heard, time.time))
        listener.start()
        manifest = trust(place.bundle).manifest
        runner = SystemRunner()
        instead = _instead(place, runner, recorder)
        SiteHalf(place, manifest, runner, recorder, instead).run()
        listener.close()
    except (AirbundleError, OSError) as error:
        sys.stdout.write(json.dumps(["error", str(error)]) + "\n")
        return 1
    finally:
        sys.stdout.flush()
    return 0


def _instead(place: Place, runner: Runner, recorder: Recorder) -> Callable[[], None]:
    return lambda: try_without_start(place, trust(place.bundle).manifest, runner, recorder)


def furnish(place: Place) -> None:
    """Loopback, an interface that leads to the sinkhole, and name resolution that asks it and nothing else."""
    _ip("link", "set", "lo", "up")
    _ip("link", "add", _INSIDE, "type", "veth", "peer", "name", _SINK)
    _ip("addr", "add", f"{_ADDRESS}/{_WIDTH}", "dev", _INSIDE)
    for name in (_SINK, _INSIDE):
        _ip("link", "set", name, "up")
    _ip("route", "add", "default", "via", _GATEWAY, "dev", _INSIDE)
    host = socket.gethostname()
    _replace(place, "/etc/resolv.conf", f"nameserver {_GATEWAY}\noptions timeout:2 attempts:1\n")
    _replace(place, "/etc/hosts", f"127.0.0.1 localhost {host}\n::1 localhost\n")
    switch = Path("/etc/nsswitch.conf")
    if switch.exists():  # a resolver behind a socket file would ask from outside the room
        text = re.sub(r"(?m)^hosts:.*$", "hosts: files dns", switch.read_text(encoding="utf-8", errors="replace"))
        _replace(place, str(switch), text)
    for directory in ("/run/nscd", "/etc/airbundle"):  # a caching resolver, and signers pinned on this machine
        if Path(directory).is_dir():
            _system("mount", "-t", "tmpfs", "none", directory)


def _lead_to(mac: bytes) -> None:
    """The way to every IPv6 address, where the kernel has IPv6 at all; nobody answers neighbour discovery here."""
    disabled = Path(f"/proc/sys/net/ipv6/conf/{_INSIDE}/disable_ipv6")
    if not disabled.exists() or disabled.read_text().strip() != "0":
        return
    _ip("-6", "addr", "add", f"{_ADDRESS6}/64", "dev", _INSIDE, "nodad")
    _ip("-6", "neigh", "replace", _GATEWAY6, "lladdr", mac.hex(":"), "dev", _INSIDE)
    _ip("-6", "route", "add", "default", "via", _GATEWAY6, "dev", _INSIDE)


def _replace(place: Place, path: str, text: str) -> None:
    """Put other content in the place of a file, seen in this mount namespace only."""
    target = Path(path).resolve()
    if not target.exists():
        raise PreflightError(f"{path} is not there, so names cannot be led to the sinkhole", remedy="create it empty")
    source = place.scratch / f"room{path.replace('/', '-')}"
    source.write_text(text, encoding="utf-8")
    source.chmod(0o644)
    _system("mount", "--bind", str(source), str(target))


def _ip(*words: str) -> None:
    _system("ip", *words)


def _system(*argv: str) -> None:
    done = SystemRunner().run(argv, timeout=30, env={**os.environ, "PATH": _search()})
    if done.code != 0:
        raise PreflightError(f"{' '.join(argv)}: {done.stderr.strip() or f'exit code {done.code}'}")


def _search() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_PATHS}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
