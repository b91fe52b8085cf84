"""Whose bundles this site accepts."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Optional

from airbundle_onsite.contract import layout
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import UsageError
from airbundle_onsite.signature import fingerprint, parse_signature
from airbundle_onsite.store.disk import make_directory, write_atomic
from airbundle_onsite.verify.bundle import TrustedManifest

_PINNED = "allowed_signers"


def read(site: Site, given: Optional[Path]) -> Optional[bytes]:
    """Content of the allowed-signers file: the one given, the machine's, or the one pinned under the root.

    None: nobody is pinned yet.

    Raises:
        UsageError: the file given cannot be read.
    """
    if given is not None:
        try:
            return given.read_bytes()
        except OSError as error:
            raise UsageError(f"--allowed-signers {given}: {error.strerror}") from error
    for path in (Path(layout.TRUST_FILE), site.layout.base / _PINNED):
        if path.is_file():
            return path.read_bytes()
    return None


def pin(site: Site, trusted: TrustedManifest) -> None:
    """Accept only this bundle's signer from now on; an unsigned bundle pins nobody."""
    path = trusted.directory / layout.SIGNATURE
    if not trusted.signer or not path.is_file():
        return
    key = parse_signature(path.read_bytes()).public_key
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (b"ssh-ed25519", key))
    line = f'airbundle namespaces="airbundle" ssh-ed25519 {base64.b64encode(blob).decode("ascii")}\n'
    make_directory(site.layout.base, site.layout.base)
    write_atomic(site.layout.base / _PINNED, line.encode("ascii"))
    site.talk.say(f"From now on only bundles signed by {fingerprint(key)} are accepted: {site.layout.base / _PINNED}")
