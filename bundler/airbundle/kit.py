"""The small probe that a site runs before anything is built: one directory, nothing to install."""

from __future__ import annotations

import hashlib
import io
import time
import zipfile
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import jinja2

from airbundle import __version__
from airbundle.data import data_dir
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

FOLDER = "airbundle-kit"
FINGERPRINT = "site-fingerprint.json"  # what the probe writes
_PROGRAM = "probe.pyz"
_SCRIPT = "probe.sh"
_PACKAGE = "airbundle_onsite"
_SHEBANG = b"#!/usr/bin/env python3\n"
_EPOCH = 315532800  # 1980-01-01, the first moment a zip can name: a kit has no date, so it is always the same

# What the probe imports, below the package; a test holds this against what it really loads.
_MODULES = (
    "__init__.py",
    "probe.py",
    "probes",
    "summary.py",
    "units.py",
    "streams.py",
    "system.py",
    "errors.py",
    "dockerapi.py",
    "contract/__init__.py",
    "contract/fingerprint.py",
    "contract/record.py",
    "_vendor",
)

# Old Pythons must be able to parse it, to say in a sentence that they are too old.
_MAIN = b"""\
import sys

if sys.version_info < (3, 9):
    sys.stderr.write(
        "probe.pyz: needed Python 3.9 or newer, found %d.%d.%d (%s).\\n"
        "  What to do: start it with a newer Python, or run: sh probe.sh\\n"
        % (sys.version_info[:3] + (sys.executable,))
    )
    sys.exit(3)

from airbundle_onsite.probe import main

sys.exit(main(sys.argv[1:]))
"""


@record
class Kit:
    """A kit that was written.

    Attributes:
        directory: where.
        files: name → bytes.
    """

    directory: str
    files: dict[str, int]


def write_kit(directory: Path) -> Kit:
    """Write the probe into `directory`, which is made; an older kit there is replaced.

    The same version of airbundle gives the same bytes, as long as zlib stays the same.

    Raises:
        UsageError: the directory holds something else.
    """
    files = kit_files()
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is no directory", remedy="name another one with -o")
    strange = sorted(item.name for item in directory.glob("*") if item.name not in files) if directory.exists() else []
    strange = [name for name in strange if name != FINGERPRINT]  # one that came back is no reason to stop
    if strange:
        raise UsageError(f"{directory} holds other files: {', '.join(strange[:5])}", remedy="name another one with -o")
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = directory / name
        path.write_bytes(data)
        path.chmod(0o755 if name == _SCRIPT else 0o644)
    return Kit(str(directory), {name: len(data) for name, data in files.items()})


def kit_files() -> dict[str, bytes]:
    """The kit's files by name."""
    program = probe_pyz()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_dir("templates") / "kit"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        # "{#" begins a length in a shell script
        comment_start_string="<%#",
        comment_end_string="#%>",
        autoescape=False,
    )
    facts = {
        "version": __version__,
        "file": FINGERPRINT,
        "folder": FOLDER,
        "sha256": hashlib.sha256(program).hexdigest(),
    }
    rendered = {
        name: environment.get_template(f"{name}.j2").render(facts).encode("utf-8")
        for name in (_SCRIPT, "README.txt", "README.zh-CN.txt")
    }
    return {_PROGRAM: program, **rendered}


def probe_pyz() -> bytes:
    """The probe as one file that a Python runs; compressed, since most of it is the vendored NVML binding."""
    stream = io.BytesIO()
    stream.write(_SHEBANG)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in [("__main__.py", _MAIN), *sorted(_sources())]:
            info = zipfile.ZipInfo(name, time.gmtime(_EPOCH)[:6])
            info.create_system, info.external_attr = 3, 0o100644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return stream.getvalue()


def _sources() -> Iterator[tuple[str, bytes]]:
    for module in _MODULES:
        item: Traversable = resources.files(_PACKAGE)
        for word in module.split("/"):
            item = item / word
        yield from _below(item, f"{_PACKAGE}/{module}")


def _below(item: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    if not item.is_dir():
        yield name, item.read_bytes()
        return
    for inner in item.iterdir():
        if inner.name != "__pycache__" and (inner.is_dir() or inner.name.endswith((".py", ".md"))):
            yield from _below(inner, f"{name}/{inner.name}")
