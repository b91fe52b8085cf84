"""Reading image layers and applying them to each other."""

from __future__ import annotations

import gzip
import io
import sqlite3
import struct
import tarfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from airbundle.prove.facts import ImageFacts, LayerFacts
from airbundle.prove.image import merge_layers, read_layer
from airbundle_onsite.errors import FetchError, IntegrityError
from parts import native

LIBC = native.make_elf("libc.so.6", defines=["GLIBC_2.2.5", "GLIBC_2.9", "GLIBC_2.36", "GLIBC_PRIVATE"])
LIBSTDCXX = native.make_elf("libstdc++.so.6", defines=["GLIBCXX_3.4", "GLIBCXX_3.4.30", "GLIBCXX_3.4.9", "CXXABI_1.3"])
STATUS = b"""Package: libc6
Status: install ok installed
Version: 2.36-9
Description: C library
 Version: not this one

Package: gone
Status: deinstall ok config-files
Version: 1

"""


def layer(directory: Path, files: Mapping[str, bytes | str], *, name: str = "layer.tar", packed: bool = False) -> Path:
    """A layer; a value that is text is the target of a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    path = directory / name
    path.write_bytes(gzip.compress(buffer.getvalue()) if packed else buffer.getvalue())
    return path


def image(directory: Path, *layers: Mapping[str, bytes | str]) -> ImageFacts:
    facts = [
        read_layer(layer(directory, files, name=f"{number}.tar"), directory) for number, files in enumerate(layers)
    ]
    return merge_layers("demo:1", facts, require_cuda="cuda>=12.8")


def debian() -> dict[str, bytes | str]:
    return {
        "./usr/lib/x86_64-linux-gnu/libc.so.6": LIBC,
        "usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30": LIBSTDCXX,
        "usr/lib/x86_64-linux-gnu/libstdc++.so.6": "libstdc++.so.6.0.30",
        "usr/bin/python3.11": native.make_elf("", ["libc.so.6"]),
        "var/lib/dpkg/status": STATUS,
        "var/lib/dpkg/info/libc6:amd64.list": b"/.\n/lib/x86_64-linux-gnu/libc.so.6\n",
        "etc/motd": b"hello" * 40,
    }


def test_a_debian_image(tmp_path: Path) -> None:
    found = image(tmp_path, debian())
    assert (found.libc, found.glibc, found.glibcxx, found.python) == ("glibc", "2.36", "3.4.30", "3.11")
    assert found.require_cuda == "cuda>=12.8"
    (package,) = found.os_packages
    assert (package.name, package.version, package.kind) == ("libc6", "2.36-9", "deb")
    assert package.files == ("usr/lib/x86_64-linux-gnu/libc.so.6",)
    assert "usr/lib/x86_64-linux-gnu/libstdc++.so.6" in found.names
    assert len(found.natives) == 3


def test_plain_and_gzip_layers_say_the_same(tmp_path: Path) -> None:
    plain = read_layer(layer(tmp_path, debian(), name="plain"), tmp_path)
    assert read_layer(layer(tmp_path, debian(), name="packed", packed=True), tmp_path) == plain


def test_whiteouts_and_replaced_files(tmp_path: Path) -> None:
    newer = native.make_elf("libc.so.6", defines=["GLIBC_2.39"])
    upper = {
        "usr/lib/x86_64-linux-gnu/libc.so.6": newer,
        "usr/lib/x86_64-linux-gnu/.wh.libstdc++.so.6": b"",
        "usr/lib/x86_64-linux-gnu/.wh.libstdc++.so.6.0.30": b"",
        "usr/bin/.wh..wh..opq": b"",
        "usr/bin/python3.13": native.make_elf("", ["libc.so.6"]),
    }
    found = image(tmp_path, debian(), upper)
    assert (found.glibc, found.glibcxx, found.python) == ("2.39", "", "3.13")
    assert [each.path for each in found.natives] == ["usr/bin/python3.13", "usr/lib/x86_64-linux-gnu/libc.so.6"]


def test_a_removed_directory_takes_what_is_below(tmp_path: Path) -> None:
    files = {"opt/demo/lib/libdemo.so.1": native.make_elf("libdemo.so.1"), "opt/demo2/liba.so": native.make_elf()}
    found = image(tmp_path, files, {"opt/.wh.demo": b""})
    assert [each.path for each in found.natives] == ["opt/demo2/liba.so"]
    assert found.names == ("opt/demo2/liba.so",)


def test_python_projects_own_their_files(tmp_path: Path) -> None:
    site = "usr/local/lib/python3.12/site-packages"
    found = image(
        tmp_path,
        {
            f"{site}/torch/lib/libtorch_cuda.so": native.gpu_library((native.SASS, "90")),
            f"{site}/torch-2.11.0+cu130.dist-info/METADATA": b"Name: Torch\nVersion: 2.11.0+cu130\n"
            b"Requires-Dist: numpy\n\nName: not this one\n",
            f"{site}/torch-2.11.0+cu130.dist-info/RECORD": b"torch/lib/libtorch_cuda.so,sha256=x,1\n"
            b"../../../bin/torchrun,,\ntorch/__init__.py,,\n",
        },
    )
    (torch,) = found.distributions
    assert (torch.name, torch.version, torch.requires) == ("torch", "2.11.0+cu130", ("numpy",))
    assert torch.files == (f"{site}/torch/lib/libtorch_cuda.so",)


def test_a_musl_image_and_its_packages(tmp_path: Path) -> None:
    database = b"C:Q1abc\nP:musl\nV:1.2.5-r0\nA:x86_64\nL:MIT\nF:lib\nR:ld-musl-x86_64.so.1\n\nP:zlib\nV:1.3\n\n"
    found = image(tmp_path, {"lib/ld-musl-x86_64.so.1": native.make_elf(), "lib/apk/db/installed": database})
    assert (found.libc, found.glibc) == ("musl", "")
    assert [(each.name, each.version) for each in found.os_packages] == [("musl", "1.2.5-r0"), ("zlib", "1.3")]
    assert [(each.arch, each.licenses) for each in found.os_packages] == [("x86_64", ("MIT",)), ("", ())]


COPYRIGHT = b"""Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: zlib

Files: *
Copyright: 1995-2022 Jean-loup Gailly
License: Zlib

Files: contrib/*
 debian/*
Copyright: 2004 others
License: GPL-2+ and Expat

License: GPL-2+
 The text of the licence, which is no short name.
"""


def package(name: str, architecture: str = "amd64") -> bytes:
    head = f"Package: {name}\nStatus: install ok installed\nVersion: 1\nArchitecture: {architecture}\n"
    return head.encode() + b"Description: one\n more\n\n"


def test_architecture_and_licence_of_debian_packages(tmp_path: Path) -> None:
    """From machine-readable copyright files only, also where packages share one by a link."""
    names = ("zlib1g", "zlib1g-dev", "zlib-bin", "base", "silent")
    documents = "usr/share/doc"
    files = {
        "var/lib/dpkg/status": b"".join(package(name, "all" if name == "base" else "amd64") for name in names),
        f"{documents}/zlib1g/copyright": COPYRIGHT,
        f"{documents}/base/copyright": b"This is free software. License: as you like\n",
    }
    links = {f"{documents}/zlib1g-dev": "zlib1g", f"{documents}/zlib-bin/copyright": "../zlib1g/copyright"}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    (tmp_path / "layer.tar").write_bytes(data.getvalue())
    found = merge_layers("image", [read_layer(tmp_path / "layer.tar", tmp_path)])
    assert {each.name: (each.arch, each.licenses) for each in found.os_packages} == {
        "zlib1g": ("amd64", ("GPL-2+ and Expat", "Zlib")),
        "zlib1g-dev": ("amd64", ("GPL-2+ and Expat", "Zlib")),
        "zlib-bin": ("amd64", ("GPL-2+ and Expat", "Zlib")),
        "base": ("all", ()),
        "silent": ("amd64", ()),
    }


def rpm_header(**tags: str) -> bytes:
    numbers = {"name": 1000, "version": 1001, "release": 1002, "license": 1014, "arch": 1022}
    index, data = b"", b""
    for tag, text in tags.items():
        index += struct.pack(">IIiI", numbers[tag], 6, len(data), 1)
        data += text.encode() + b"\0"
    return struct.pack(">II", len(tags), len(data)) + index + data


def test_rpm_packages(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "rpmdb")) as database:
        database.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY, blob BLOB NOT NULL)")
        for header in (
            rpm_header(name="glibc", version="2.34", release="100.el9", license="LGPL-2.1-or-later", arch="x86_64"),
            rpm_header(name="gpg-pubkey", version="1", release="1"),
        ):
            database.execute("INSERT INTO Packages (blob) VALUES (?)", (header,))
        database.commit()
    found = image(tmp_path, {"var/lib/rpm/rpmdb.sqlite": (tmp_path / "rpmdb").read_bytes()})
    (glibc,) = found.os_packages
    assert (glibc.name, glibc.version, glibc.kind) == ("glibc", "2.34-100.el9", "rpm")
    assert (glibc.arch, glibc.licenses) == ("x86_64", ("LGPL-2.1-or-later",))


def test_a_database_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    found = image(tmp_path, {"var/lib/rpm/rpmdb.sqlite": b"no database" * 10, "var/lib/rpm/Packages": b"berkeley" * 10})
    assert len(found.unread) == 2
    assert found.os_packages == ()


def test_forward_compatibility_is_found(tmp_path: Path) -> None:
    compat = {"usr/local/cuda-13.0/compat/libcuda.so.580.95.05": native.make_elf("libcuda.so.1")}
    assert image(tmp_path, compat).compat_driver == "580.95.05"


def test_a_library_of_a_python_project_is_not_the_systems(tmp_path: Path) -> None:
    private = {"opt/conda/lib/libstdc++.so.6": native.make_elf("libstdc++.so.6", defines=["GLIBCXX_3.4.34"])}
    assert image(tmp_path, debian() | private).glibcxx == "3.4.30"


def test_damaged_and_zstd_layers_are_refused_by_name(tmp_path: Path) -> None:
    whole = layer(tmp_path, debian(), packed=True).read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(IntegrityError, match="sha256:abc: damaged"):
        read_layer(tmp_path / "cut", tmp_path, name="sha256:abc")
    (tmp_path / "zstd").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    with pytest.raises(FetchError, match="zstd"):
        read_layer(tmp_path / "zstd", tmp_path)


def test_an_empty_layer(tmp_path: Path) -> None:
    assert read_layer(layer(tmp_path, {}), tmp_path) == LayerFacts()
