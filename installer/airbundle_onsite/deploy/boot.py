"""Starting the active release when the machine starts: a systemd unit, written only when it is asked for.

The unit runs ``airbundlectl start``, so it names no version, waits for a token as a person would, and restarts a
container that came back without its GPU. It takes effect at the next boot: nothing is reloaded, because systemd takes
GPUs away from running containers when it reloads its units, and nothing is started or stopped.
"""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import Optional

from airbundle_onsite.contract.record import record
from airbundle_onsite.deploy.control import TOOL
from airbundle_onsite.deploy.transaction import files_of
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import PreflightError
from airbundle_onsite.runtimes.values import is_loopback
from airbundle_onsite.store.disk import FILE_MODE, link_atomic, write_atomic
from airbundle_onsite.store.releases import StagedRelease

_UNITS = "etc/systemd/system"
_WANTS = "multi-user.target.wants"
_MARK = "# Written by airbundlectl for the installation in "
_ENGINES = {"docker": "docker.service docker.socket podman.socket"}

# What an engine does without. Not here, because they take a GPU away: PrivateDevices and ProtectClock (both close the
# devices), ProtectKernelModules (the driver's parts are loaded at first use), MemoryDenyWriteExecute (kernels are
# compiled while they run).
_HARDENING = """\
NoNewPrivileges=yes
CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_KILL CAP_SYS_NICE CAP_IPC_LOCK
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
ProtectControlGroups=yes
ProtectKernelTunables=yes
ProtectKernelLogs=yes
ProtectHostname=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=yes
SystemCallArchitectures=native
"""
_LOOPBACK_ONLY = "IPAddressDeny=any\nIPAddressAllow=localhost\n"

_UNIT = """\
{mark}
# `airbundlectl enable-boot` writes it anew, `airbundlectl disable-boot` removes it.
[Unit]
Description=Model service {name} (airbundle)
After=network.target {after}
RequiresMountsFor={mounts}
StartLimitIntervalSec=1h
StartLimitBurst=10

[Service]
Type=oneshot
RemainAfterExit=yes
{before}ExecStart={tool} start --name {name}
{stop}TimeoutStartSec=infinity
TimeoutStopSec=120
Restart=on-failure
RestartSec=30
LimitMEMLOCK=infinity
LimitNOFILE=65536
{user}{environment}ReadWritePaths={root}
{hardening}
[Install]
WantedBy=multi-user.target
"""


@record
class UnitFacts:
    """What a unit says.

    Attributes:
        name: of the bundle.
        root: installation root.
        runtime: of the active release.
        loopback: whether the service listens on this machine only.
        user: that runs it; empty for root.
        docker_host: value of DOCKER_HOST to pass on; empty for none.
        modprobe: program that loads the GPU driver's parts; empty where there is none.
    """

    name: str
    root: str
    runtime: str
    loopback: bool = True
    user: str = ""
    docker_host: str = ""
    modprobe: str = ""


@record
class Boot:
    """The unit of a bundle: its path; ``enabled``, ``outdated`` or ``disabled``; and whether this run changed it."""

    unit: str
    state: str
    changed: bool = False


def render_unit(facts: UnitFacts) -> str:
    """The text of the unit. Pure."""
    venv = facts.runtime == "venv"
    # Through the shell, since systemd takes no quotes in the name of a program; it is a shell script anyway.
    tool = f"/bin/sh {_word(f'{facts.root}/bin/{TOOL}')}"
    environment = f"Environment={_setting(f'DOCKER_HOST={facts.docker_host}')}\n" if facts.docker_host else ""
    # A container is the engine's to stop; stopped by us it would count as stopped by a person.
    stop = f"ExecStop=-{tool} stop --name {facts.name}\n" if venv else ""
    return _UNIT.format(
        mark=_mark(facts.root),
        name=facts.name,
        after=f"nvidia-persistenced.service {_ENGINES.get(facts.runtime, '')}".rstrip(),
        mounts=_setting(facts.root),
        before=f"ExecStartPre=-+{facts.modprobe} -u -c=0\n" if facts.modprobe else "",
        tool=tool,
        stop=stop,
        user=f"User={facts.user}\n" if facts.user else "",
        environment=environment,
        root=_setting(facts.root),
        hardening=_HARDENING + (_LOOPBACK_ONLY if facts.loopback else ""),
    )


def enable(site: Site, release: StagedRelease) -> Boot:
    """Write the unit, and have it started at boot.

    Raises:
        PreflightError: this machine is not run by systemd, this user may not write units, or the name is another's.
    """
    system = site.world.system_root
    if not (system / "run/systemd/system").is_dir():
        raise PreflightError(
            "this machine is not run by systemd (there is no /run/systemd/system)",
            remedy=f"have its own init run {site.layout.root}/bin/{TOOL} start --name {release.record.name} at boot",
        )
    unit = unit_path(site, release.record.name)
    text = render_unit(_facts(site, release))
    found = _read(unit)
    if found is not None and not _is_ours(site, found):
        raise PreflightError(
            f"{unit} is there, and belongs to another installation or to somebody else",
            remedy="remove it first, there by airbundlectl disable-boot; or install under another bundle.name",
        )
    link = unit.parent / _WANTS / unit.name
    changed = found != text or not link.is_symlink()
    with _allowed(site, "enable-boot"):
        unit.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(unit, text.encode("utf-8"), FILE_MODE)
        link.parent.mkdir(exist_ok=True)
        link_atomic(link, f"/{_UNITS}/{unit.name}")
    return Boot(str(unit), "enabled", changed)


def disable(site: Site, name: str) -> Boot:
    """Remove the unit; what runs goes on. Raises PreflightError when this user may not."""
    unit = unit_path(site, name)
    found = _read(unit)
    if found is None or not _is_ours(site, found):
        return Boot(str(unit), "disabled")
    with _allowed(site, "disable-boot"):
        (unit.parent / _WANTS / unit.name).unlink(missing_ok=True)
        unit.unlink()
    return Boot(str(unit), "disabled", changed=True)


def state_of(site: Site, release: StagedRelease) -> Boot:
    """What there is now; ``outdated`` when the active release wants another unit than was written."""
    unit = unit_path(site, release.record.name)
    found = _read(unit)
    if found is None or not _is_ours(site, found) or not (unit.parent / _WANTS / unit.name).is_symlink():
        return Boot(str(unit), "disabled")
    return Boot(str(unit), "enabled" if found == render_unit(_facts(site, release)) else "outdated")


def unit_path(site: Site, name: str) -> Path:
    """Where the unit of a bundle is."""
    return site.world.system_root / _UNITS / f"airbundle-{name}.service"


def _facts(site: Site, release: StagedRelease) -> UnitFacts:
    made = release.record
    gpus = files_of(release).plan.gpus != "none"
    return UnitFacts(
        name=made.name,
        root=site.layout.root,
        runtime=made.runtime,
        loopback=is_loopback(made.host),
        user=_owner(site.layout.base),
        docker_host=site.world.environ.get("DOCKER_HOST", "") if made.runtime == "docker" else "",
        modprobe=(shutil.which("nvidia-modprobe", path="/usr/bin:/sbin:/usr/sbin:/bin") or "") if gpus else "",
    )


def _owner(root: Path) -> str:
    """The user that a root belongs to, who is to run its services; empty for root."""
    uid = root.stat().st_uid
    if not uid:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class _allowed:
    """Turns a refusal to write into the sentence that says who may."""

    def __init__(self, site: Site, action: str) -> None:
        self._command = f"sudo {site.layout.root}/bin/{TOOL} {action}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: Optional[BaseException], _trace: object) -> None:
        if isinstance(error, PermissionError) or (isinstance(error, OSError) and os.geteuid() != 0):
            raise PreflightError(
                f"this user may not write units of systemd: {error}", remedy=f"as root: {self._command}"
            ) from error


def _mark(root: str) -> str:
    return f"{_MARK}{root}"


def _is_ours(site: Site, text: str) -> bool:
    return text.startswith(_mark(site.layout.root) + "\n")


def _read(path: Path) -> Optional[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _setting(text: str) -> str:
    """A quoted value of a setting: ``%`` begins a specifier there."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _word(text: str) -> str:
    """A quoted word of a command: ``$`` begins a variable there, too."""
    return _setting(text.replace("$", "$$"))
