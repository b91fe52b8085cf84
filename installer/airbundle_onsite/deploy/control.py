"""``<root>/bin/airbundlectl``: the tool that stays on the site when the stick has gone."""

from __future__ import annotations

import hashlib
import shlex
import sys

from airbundle_onsite.contract import layout
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.store.disk import DIRECTORY_MODE, make_directory, write_atomic
from airbundle_onsite.verify.bundle import TrustedManifest

TOOL = "airbundlectl"

_SCRIPT = """\
#!/bin/sh
# Manages the releases under {root}: airbundlectl --help
set -eu
root={root}
usable() {{
    "$1" -I -c 'import sys; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1
}}
for python in {python} python3 python3.13 python3.12 python3.11 python3.10 python3.9; do
    if usable "$python"; then
        exec "$python" -I "$root/bin/{program}" --root "$root" "$@"
    fi
done
echo "airbundlectl needs Python 3.9 or newer, and found none: tried {python} and python3 on the PATH" >&2
exit 3
"""


def script(root: str, python: str) -> str:
    """The wrapper, for this root and with this interpreter tried first."""
    return _SCRIPT.format(root=shlex.quote(root), python=shlex.quote(python), program=layout.ONSITE)


def install_tool(site: Site, trusted: TrustedManifest) -> None:
    """Copy the bundle's site program and write the wrapper; a program of an older bundle replaces no newer one.

    Raises:
        IntegrityError: the program is not what the manifest says.
    """
    manifest = trusted.manifest
    listed = {outer.name: outer for outer in manifest.outer}.get(layout.ONSITE)
    target = site.layout.bin / layout.ONSITE
    if listed is None:
        return
    if target.exists() and manifest.sequence < site.store.highest_sequence(manifest.name):
        return
    data = (trusted.directory / layout.ONSITE).read_bytes()
    if hashlib.sha256(data).hexdigest() != listed.sha256:
        raise IntegrityError(f"{trusted.directory / layout.ONSITE} changed while it was being installed")
    make_directory(site.layout.bin, site.layout.base)
    write_atomic(target, data)
    text = script(site.layout.root, sys.executable or "python3")
    write_atomic(site.layout.bin / TOOL, text.encode("utf-8"), DIRECTORY_MODE)
