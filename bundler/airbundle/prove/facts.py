"""What the readers find in native files, wheels and images: plain data, kept as JSON beside the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from airbundle_onsite.contract.record import record

FACTS_VERSION = 2
"""Part of the name under which facts are kept; raise it when a reader learns to see more."""


@record
class Ptx:
    """PTX code: `arch` as in ``compute_90a`` without the word, `isa` the PTX version, e.g. ``9.0``, or empty."""

    arch: str
    isa: str = ""


@record
class GpuCode:
    """GPU code in a file.

    Attributes:
        sass: architectures with machine code, e.g. ``("80", "90a", "100f")``; sorted, each once.
        ptx: architectures with PTX, for each the oldest PTX version seen.
        lto: architectures with link-time IR only; the driver cannot run it by itself.
        entries: how many pieces of code there are.
        unread: bytes in the sections for GPU code that are not in the known format.
    """

    sass: tuple[str, ...] = ()
    ptx: tuple[Ptx, ...] = ()
    lto: tuple[str, ...] = ()
    entries: int = 0
    unread: int = 0


@record
class ElfFacts:
    """The dynamic-linking side of an ELF file.

    Attributes:
        machine: as `uname -m` prints it, e.g. ``x86_64``; ``cuda`` for GPU machine code.
        bits: 32 or 64.
        soname: name it provides, or empty.
        needed: names of the libraries it is linked with.
        search: directories of DT_RUNPATH, else of DT_RPATH, as written.
        versions: symbol versions it needs, by the library that should define them; weak ones left out.
        defines: symbol versions it defines.
    """

    machine: str
    bits: int = 64
    soname: str = ""
    needed: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defines: tuple[str, ...] = ()


@record
class NativeFile:
    """A native file by its path in the wheel or image.

    Attributes:
        size: bytes.
        elf: absent for bare fat binaries and PTX, and where the file cannot be read.
        problem: why it cannot be read, or empty.
    """

    path: str
    size: int
    elf: ElfFacts | None = None
    gpu: GpuCode = field(default_factory=GpuCode)
    problem: str = ""


@record
class WheelFacts:
    """A wheel.

    Attributes:
        name: normalised project name; version: with any local part.
        tags: compressed tag set of the file name, e.g. ``cp312-cp312-manylinux_2_28_x86_64``.
        natives: native files.
        cuda: major of the CUDA toolkit it was built for, or 0 when nothing says so.
        requires: Requires-Dist lines.
        requires_python: specifier, or empty.
    """

    name: str
    version: str
    tags: str
    natives: tuple[NativeFile, ...] = ()
    cuda: int = 0
    requires: tuple[str, ...] = ()
    requires_python: str = ""


@record
class Distribution:
    """An installed Python project: where its dist-info directory is, and the native files its RECORD lists."""

    name: str
    version: str
    info: str
    requires: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@record
class OsPackage:
    """A package of the image's operating system.

    Attributes:
        files: the native ones, where its list of files is readable.
        arch: as its database spells it: ``amd64``, ``x86_64``, ``all``; empty when that does not say.
        licenses: as its database or its machine-readable copyright file declares them; empty when neither does.
    """

    name: str
    version: str
    kind: str
    files: tuple[str, ...] = ()
    arch: str = ""
    licenses: tuple[str, ...] = ()


@record
class LayerFacts:
    """What one layer adds and takes away.

    Attributes:
        natives: native files.
        names: base names of every file and link called like a shared library, with their path.
        removed: paths its whiteouts remove; a directory ends with ``/``.
        os_packages: of the package database in this layer; None when it has none.
        os_files: native files by OS package, from the file lists in this layer.
        os_licenses: by directory of usr/share/doc, what the copyright file in it declares; empty for one that is not
            machine-readable.
        os_documents: links in usr/share/doc, by name, to the directory that documents the package.
        unread: package databases that could not be read, by path and reason.
        distributions: installed Python projects.
        pythons: paths of interpreters, e.g. ``usr/bin/python3.12``.
    """

    natives: tuple[NativeFile, ...] = ()
    names: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    os_packages: tuple[OsPackage, ...] | None = None
    os_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    os_licenses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    os_documents: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    pythons: tuple[str, ...] = ()


@record
class ImageFacts:
    """An image, all layers applied.

    Attributes:
        name: as it is called on the site.
        natives: native files that are left.
        names: paths of files and links called like a shared library; their base names are what it provides.
        libc: ``glibc``, ``musl`` or empty.
        glibc: version of its glibc, e.g. ``2.39``, or empty.
        glibcxx: highest GLIBCXX version of its libstdc++, e.g. ``3.4.33``, or empty.
        python: highest version of an interpreter, e.g. ``3.12``, or empty.
        require_cuda: NVIDIA_REQUIRE_CUDA of its configuration.
        compat_driver: version of the forward-compatibility libcuda it brings, or empty.
        os_packages, distributions: what is installed; unread: package databases that could not be read.
    """

    name: str
    natives: tuple[NativeFile, ...] = ()
    names: tuple[str, ...] = ()
    libc: str = ""
    glibc: str = ""
    glibcxx: str = ""
    python: str = ""
    require_cuda: str = ""
    compat_driver: str = ""
    os_packages: tuple[OsPackage, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    unread: tuple[str, ...] = ()


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a dotted version, for comparing; ``2.9`` is below ``2.28``. Stops at the first non-number."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def arch_key(arch: str) -> tuple[int, str]:
    """Sort key of an architecture such as ``75`` or ``100f``."""
    digits = arch.rstrip("af")
    return (int(digits) if digits.isdigit() else 0, arch[len(digits) :])
