"""The filesystem behind a path that need not exist yet."""

from __future__ import annotations

import os
from pathlib import Path

from airbundle_onsite.probes.disk import disk_facts, mounts
from airbundle_onsite.probes.files import HostFiles

TABLE = r"""21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 8:2 / /var rw,relatime - xfs /dev/sda2 rw
23 21 8:17 / /media/my\040stick ro,nosuid,noexec - vfat /dev/sdb1 ro,utf8
24 21 0:45 /sub /data rw - btrfs /dev/sdc subvolid=5
25 21 8:33 / /var rw,noexec master:2 propagate_from:1 - ext4 /dev/sdd rw
26 21 0:46 / /mnt/\344\270\255 rw - nfs4 server:/x rw
broken line
"""


def host(tmp_path: Path) -> HostFiles:
    files = HostFiles(tmp_path)
    for name in ("proc/self", "var/lib", "media/my stick", "data", "mnt/中"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc/self/mountinfo").write_text(TABLE)
    return files


def test_each_path_finds_its_mount(tmp_path: Path) -> None:
    files = host(tmp_path)
    paths = {
        "root": Path("/opt/airbundle"),
        "docker": Path("/var/lib/docker"),
        "bundle": Path("/media/my stick/bundle"),
        "temp": Path("/data"),
    }
    found = {disk.purpose: disk for disk in disk_facts(paths, files)}
    assert (found["root"].mount, found["root"].device, found["root"].filesystem) == ("/", "8:1", "ext4")
    assert found["root"].path == "/opt/airbundle" and not found["root"].read_only
    assert (found["docker"].mount, found["docker"].device) == ("/var", "8:33")  # the later mount hides the earlier
    assert found["docker"].noexec
    assert found["bundle"].mount == "/media/my stick"
    assert (found["bundle"].read_only, found["bundle"].noexec, found["bundle"].filesystem) == (True, True, "vfat")
    assert found["temp"].device == "0:45"
    assert all(disk.total > 0 and 0 <= disk.free <= disk.total for disk in found.values())


def test_a_similar_name_is_not_below_a_mount(tmp_path: Path) -> None:
    files = host(tmp_path)
    (tmp_path / "variety").mkdir()
    (disk,) = disk_facts({"root": Path("/variety")}, files)
    assert disk.mount == "/"


def test_escaped_and_broken_lines_of_the_mount_table(tmp_path: Path) -> None:
    points = [mount.point for mount in mounts(host(tmp_path))]
    assert points == ["/", "/var", "/media/my stick", "/data", "/var", "/mnt/中"]


def test_without_a_mount_table_the_device_number_stands(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (disk,) = disk_facts({"root": Path("/data/x/y")}, HostFiles(tmp_path))
    number = tmp_path.stat().st_dev
    assert disk.device == f"{os.major(number)}:{os.minor(number)}" and disk.mount == ""


def test_the_real_host_follows_links_to_what_exists(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/proc")
    paths = {"root": tmp_path / "not" / "yet", "temp": link / "self"}
    root, temp = disk_facts(paths, HostFiles())
    assert root.total > 0 and root.free > 0 and root.mount
    assert temp.mount == "/proc" and temp.filesystem == "proc"
