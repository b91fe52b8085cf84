"""Every name inside a bundle and inside a site's store, in one place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from airbundle_onsite.contract.record import record

# --- the bundle -------------------------------------------------------------------------------------------
MANIFEST = "bundle.json"
SIGNATURE = "bundle.json.sig"
CHECKSUMS = "SHA256SUMS"
PIECE_CHECKSUMS = "SHA256SUMS.pieces"
INSTALLER = "install.sh"
ONSITE = "onsite.pyz"
README = "README.txt"
README_ZH = "README.zh-CN.txt"
CONTENTS = "contents.html"
SBOM = "sbom.cdx.json"
PART_PATTERN = re.compile(r"payload\.tar\.(\d{3,})")
PIECE_PATTERN = re.compile(r"(payload\.tar\.\d{3,})\.piece\.(\d{5})")
PIECE_SIZE = 64 * 1024 * 1024
DEFAULT_PART_SIZE = 4_000_000_000
FAT32_LIMIT = 4 * 1024**3 - 1

# --- inside the payload -----------------------------------------------------------------------------------
IMAGES = "images"
WHEELS = "wheels"
REQUIREMENTS = "wheels/requirements.txt"
MODELS = "models"
CONFIG = "config"
LICENSES = "licenses"
DELTA = "delta"
PACKED = "packed"

_OUTER_NAME = re.compile(r"[A-Za-z0-9._-]+")
_DEBRIS = re.compile(
    r"\._.*|\.DS_Store|\.Trash.*|\.Spotlight-V100|\.fseventsd|System Volume Information|\$RECYCLE\.BIN"
    r"|Thumbs\.db|desktop\.ini|lost\+found|FSCK\d{4}\.REC",
    re.IGNORECASE,
)


def part_name(index: int) -> str:
    """Name of the part with this index: ``payload.tar.000``."""
    return f"payload.tar.{index:03d}"


def piece_name(part: str, number: int) -> str:
    """Name of a file that holds one piece of a part alone: ``payload.tar.003.piece.00005``, the sixth."""
    return f"{part}.piece.{number:05d}"


def is_outer_name(name: str) -> bool:
    """Whether a file name may stand beside bundle.json: safe on FAT32, ext4, NTFS and in a shell."""
    return bool(_OUTER_NAME.fullmatch(name)) and not name.startswith((".", "-"))


def is_debris(name: str) -> bool:
    """Whether an operating system leaves files of this name on removable media by itself."""
    return bool(_DEBRIS.fullmatch(name))


def is_payload_path(path: str) -> bool:
    """Whether a path inside the payload is relative, normalised and cannot leave its root."""
    if not path or "\\" in path or any(ord(char) < 32 or ord(char) == 127 for char in path):
        return False
    parts = path.split("/")
    return all(part not in ("", ".", "..") and len(part.encode()) <= 255 for part in parts)


def blob_path(digest: str) -> str:
    """Path of an image blob inside the payload, from ``sha256:<hex>``."""
    algorithm, _, value = digest.partition(":")
    return f"{IMAGES}/blobs/{algorithm}/{value}"


def delta_path(sha256: str) -> str:
    """Path inside the payload of what is new in a file that the base has parts of."""
    return f"{DELTA}/{sha256}"


def packed_path(sha256: str) -> str:
    """In the payload: what is there of a file whose bytes are compressed, named by the file's own hash."""
    return f"{PACKED}/{sha256}"


def model_path(served_name: str, file: str = "") -> str:
    """Path of a model's directory, or of one of its files, inside the payload."""
    return str(PurePosixPath(MODELS, served_name, file))


# --- the site's store -------------------------------------------------------------------------------------
DEFAULT_ROOT = "/opt/airbundle"
TRUST_FILE = "/etc/airbundle/allowed_signers"


def runs_of_parts(names: Sequence[str]) -> list[list[str]]:
    """Parts whose numbers follow each other, together: so that eighty missing ones are one line to read."""
    runs: list[list[str]] = []
    for name in names:
        match = PART_PATTERN.fullmatch(name)
        before = PART_PATTERN.fullmatch(runs[-1][-1]) if runs else None
        if match and before and int(match[1]) == int(before[1]) + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


@record
class StoreLayout:
    """Where things are under an installation root.

    Attributes:
        root: absolute path of the installation root, as text.
    """

    root: str

    @property
    def base(self) -> Path:
        return Path(self.root)

    @property
    def lock(self) -> Path:
        return self.base / "lock"

    @property
    def journal(self) -> Path:
        return self.base / "journal.jsonl"

    @property
    def staging(self) -> Path:
        return self.base / "staging"

    @property
    def received(self) -> Path:
        return self.base / "received"

    @property
    def weights(self) -> Path:
        return self.base / "weights" / "sha256"

    @property
    def bin(self) -> Path:
        return self.base / "bin"

    @property
    def logs(self) -> Path:
        return self.base / "logs"

    def weight(self, sha256: str) -> Path:
        """The stored copy of a model file, to which releases hold hard links."""
        return self.weights / sha256[:2] / sha256

    def bundle(self, name: str) -> Path:
        return self.base / "releases" / name

    def release(self, name: str, version: str) -> Path:
        return self.bundle(name) / version

    def record(self, name: str, version: str) -> Path:
        """The release record: written last, so its presence means the release is whole."""
        return self.release(name, version) / "release.json"

    def manifest(self, name: str, version: str) -> Path:
        return self.release(name, version) / MANIFEST

    def current(self, name: str) -> Path:
        """A symbolic link to the active version's directory, replaced atomically."""
        return self.bundle(name) / "current"
