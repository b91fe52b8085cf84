"""Reads the package databases of operating systems: dpkg, apk, and rpm as kept in SQLite."""

from __future__ import annotations

import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from airbundle.prove.facts import OsPackage

DPKG_STATUS = "var/lib/dpkg/status"
DPKG_STATUS_DIR = "var/lib/dpkg/status.d/"  # one file a package, in distroless images
DPKG_LISTS = "var/lib/dpkg/info/"
DOCUMENTS = "usr/share/doc/"  # of Debian's packages, each with its copyright file
APK_INSTALLED = ("lib/apk/db/installed", "usr/lib/apk/db/installed")
RPM_SQLITE = ("var/lib/rpm/rpmdb.sqlite", "usr/lib/sysimage/rpm/rpmdb.sqlite")
RPM_OTHER = ("var/lib/rpm/Packages", "usr/lib/sysimage/rpm/Packages", "usr/lib/sysimage/rpm/Packages.db")


def read_dpkg(data: bytes) -> Iterator[OsPackage]:
    """Installed packages of a dpkg status file."""
    for fields in _paragraphs(data):
        status = fields.get("Status", "install ok installed").split()
        if fields.get("Package") and status[-1] == "installed":
            version, arch = fields.get("Version", ""), fields.get("Architecture", "")
            yield OsPackage(name=fields["Package"], version=version, kind="deb", arch=arch)


def read_dpkg_list(path: str, data: bytes) -> tuple[str, frozenset[str]]:
    """Package name and files, without the leading slash, of a list such as ``…/info/libc6:amd64.list``."""
    name = path.removeprefix(DPKG_LISTS).removesuffix(".list").split(":")[0]
    return name, frozenset(line.lstrip("/") for line in data.decode("utf-8", "replace").splitlines())


def read_copyright(data: bytes) -> tuple[str, ...]:
    """Short names of the licences in a copyright file, sorted; none when it is not in Debian's machine-readable form.

    That form (copyright-format 1.0) is told by its first field. Each of its paragraphs on files names their licence.
    """
    paragraphs = list(_paragraphs(data))
    if not paragraphs or "copyright-format" not in paragraphs[0].get("Format", ""):
        return ()
    names = {" ".join(each["License"].split()) for each in paragraphs if "Files" in each and each.get("License")}
    if not names and paragraphs[0].get("License"):  # one licence for all, named in the header
        names = {" ".join(paragraphs[0]["License"].split())}
    return tuple(sorted(names))


def read_apk(data: bytes) -> Iterator[OsPackage]:
    """Packages of an apk database."""
    for paragraph in data.decode("utf-8", "replace").split("\n\n"):
        fields = dict(line.split(":", 1) for line in paragraph.splitlines() if line[1:2] == ":")
        if "P" in fields:
            licenses = (fields["L"],) if fields.get("L") else ()
            arch = fields.get("A", "")
            yield OsPackage(name=fields["P"], version=fields.get("V", ""), kind="apk", arch=arch, licenses=licenses)


def read_rpm(data: bytes, scratch: Path) -> list[OsPackage]:
    """Packages of an rpm database in SQLite.

    Raises:
        ValueError: it cannot be read.
    """
    with tempfile.NamedTemporaryFile(dir=scratch, suffix=".sqlite") as copy:
        copy.write(data)
        copy.flush()
        try:
            with closing(sqlite3.connect(f"file:{copy.name}?mode=ro&immutable=1", uri=True)) as database:
                blobs = [bytes(row[0]) for row in database.execute("SELECT blob FROM Packages")]
        except sqlite3.Error as error:
            raise ValueError(str(error)) from error
    try:
        packages = [_rpm_header(blob) for blob in blobs]
    except (struct.error, IndexError) as error:
        raise ValueError(f"a package header is not readable ({error})") from error
    return [package for package in packages if package.name != "gpg-pubkey"]


_RPM_TAGS = {1000: "name", 1001: "version", 1002: "release", 1014: "license", 1022: "arch"}


def _rpm_header(blob: bytes) -> OsPackage:
    """A header: u32 entries, u32 bytes of data, the entries of four u32 (tag, type, offset, count), the data."""
    entries, _size = struct.unpack_from(">II", blob)
    start, found = 8 + 16 * entries, dict.fromkeys(_RPM_TAGS.values(), "")
    for number in range(entries):
        tag, _type, offset, _count = struct.unpack_from(">IIiI", blob, 8 + 16 * number)
        if tag in _RPM_TAGS:
            text = blob[start + offset :].split(b"\0", 1)[0]
            found[_RPM_TAGS[tag]] = text.decode("utf-8", "replace")
    return OsPackage(
        name=found["name"],
        version=f"{found['version']}-{found['release']}",
        kind="rpm",
        arch=found["arch"],
        licenses=(found["license"],) if found["license"] else (),
    )


def _paragraphs(data: bytes) -> Iterator[dict[str, str]]:
    for paragraph in data.decode("utf-8", "replace").split("\n\n"):
        lines = (line for line in paragraph.splitlines() if line[:1] not in (" ", "\t") and ": " in line)
        yield {name: value for name, _, value in (line.partition(": ") for line in lines)}
