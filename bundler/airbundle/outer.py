"""What lies beside the parts and a person meets first: install.sh, the READMEs and onsite.pyz."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

import jinja2

from airbundle.data import data_dir
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.units import human_bytes

_PACKAGE = "airbundle_onsite"
_SHEBANG = b"#!/usr/bin/env python3\n"
_EARLIEST = 315532800  # 1980-01-01, the first moment a zip can name

# Old Pythons must be able to parse it, to say in a sentence that they are too old.
_MAIN = b"""\
import sys

if sys.version_info < (3, 9):
    sys.stderr.write(
        "onsite.pyz: needed Python 3.9 or newer, found %d.%d.%d (%s).\\n"
        "  What to do: start it with a newer Python, or run: bash install.sh --help\\n"
        % (sys.version_info[:3] + (sys.executable,))
    )
    sys.exit(3)

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while modules are imported, Ctrl-C ends it without a traceback

from airbundle_onsite.cli import main

sys.exit(main(sys.argv[1:]))
"""


def render_outer(draft: BundleManifest) -> dict[str, bytes]:
    """The rendered files beside the manifest, by name.

    Args:
        draft: the manifest as it will be, but for `outer`.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_dir("templates")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # "{#" begins a length in a shell script: ${#word}
        comment_start_string="<%#",
        comment_end_string="#%>",
        autoescape=False,
    )
    facts = {
        "name": draft.name,
        "version": draft.version,
        "tool": draft.tool,
        "date": time.strftime("%Y-%m-%d", time.gmtime(draft.created)),
        "payload": draft.payload,
        "parts": [part.name for part in draft.payload.parts],
        "size": human_bytes(draft.payload.size),
        "largest_part": max((part.size for part in draft.payload.parts), default=0),
        "fat32_limit": layout.FAT32_LIMIT,
        "images": draft.images,
        "image_archive": any(entry.path == f"{layout.IMAGES}/manifest.json" for entry in draft.files),
        "wheels": draft.wheels,
        "models": draft.models,
        "needs": draft.needs,
        "serving": draft.serving,
        "bases": " + ".join(base.title for base in draft.bases),
        "rollback": draft.rollback,
        "files_size": human_bytes(sum(entry.size for entry in draft.files if entry.role != "image")),
        "pieces": any(entry.member.startswith(f"{layout.DELTA}/") for entry in draft.files),
        "compressed": any(entry.is_compressed for entry in draft.files),
        "thin_images": bool(draft.absent_layers),
        "default_root": layout.DEFAULT_ROOT,
    }
    return {
        name: environment.get_template(f"{name}.j2").render(facts).encode("utf-8")
        for name in (layout.INSTALLER, layout.README, layout.README_ZH)
    }


def onsite_pyz(epoch: int) -> bytes:
    """The site program as one file that a Python runs.

    The same sources give the same bytes: members are sorted, carry `epoch` (seconds) and fixed permissions, and are
    stored, since compressors differ from one zlib to the next.
    """
    stream = io.BytesIO()
    stream.write(_SHEBANG)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, data in [("__main__.py", _MAIN), *sorted(_sources(resources.files(_PACKAGE), _PACKAGE))]:
            info = zipfile.ZipInfo(name, time.gmtime(max(epoch, _EARLIEST))[:6])
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, data)
    return stream.getvalue()


def _sources(directory: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for item in directory.iterdir():
        if item.is_dir():
            if item.name != "__pycache__":
                yield from _sources(item, f"{prefix}/{item.name}")
        elif item.name.endswith((".py", ".txt", ".md", "LICENSE")):
            yield f"{prefix}/{item.name}", item.read_bytes()
