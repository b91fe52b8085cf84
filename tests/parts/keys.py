"""Signing keys and signed bundles for tests, by the real code of the office."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from airbundle.signing import KeyPair, SigningKey, keygen, open_key, sign_all
from airbundle_onsite.contract import layout
from airbundle_onsite.signature import examine, listed_signers, not_allowed
from airbundle_onsite.system import SystemRunner


@dataclass
class Key:
    """A key pair and what it can do."""

    pair: KeyPair
    signing: SigningKey

    @property
    def fingerprint(self) -> str:
        return self.pair.fingerprint

    @property
    def line(self) -> str:
        """For an allowed-signers file."""
        return self.pair.allowed_signers + "\n"


def make_key(folder: Path, name: str) -> Key:
    """A key without a passphrase, called `name`."""
    pair = keygen(folder / name, name, "")
    return Key(pair, open_key(folder / name, ask=_nobody, runner=SystemRunner()))


def signed(bundle: Path, folder: Path, *keys: Key) -> Path:
    """A copy of a bundle in `folder`, signed by these keys and no others."""
    copy = Path(shutil.copytree(bundle, folder / bundle.name))
    sign(copy, *keys)
    return copy


def sign(bundle: Path, *keys: Key) -> None:
    """Sign what bundle.json holds now; no key leaves it unsigned."""
    path = bundle / layout.SIGNATURE
    path.unlink(missing_ok=True)
    if keys:
        path.write_bytes(sign_all((bundle / layout.MANIFEST).read_bytes(), [key.signing for key in keys]))


def _nobody(prompt: str) -> str:
    raise AssertionError(f"asked: {prompt}")


def verify_signature(data: bytes, signature: bytes, allowed_signers: bytes) -> str:
    """Check that an allowed signer signed `data`.

    Args:
        data: what was signed.
        signature: content of the ``.sig`` file.
        allowed_signers: content of an allowed-signers file, as for ``ssh-keygen -Y verify``.

    Returns:
        The signers: principal and fingerprint, as ``alice SHA256:…``, joined by commas.

    Raises:
        TrustError: no signature in it is well formed, over these bytes and by a key that is allowed.
    """
    found = examine(data, signature, allowed_signers)
    if not found.accepted:
        raise not_allowed(found, listed_signers(allowed_signers))
    return ", ".join(map(str, found.accepted))
