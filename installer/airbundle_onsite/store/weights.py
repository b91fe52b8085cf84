"""Model files stored once: releases hold hard links to ``weights/sha256/ab/<digest>``."""

from __future__ import annotations

import json
import os
from pathlib import Path

from airbundle_onsite.contract.layout import StoreLayout
from airbundle_onsite.store.disk import make_directory, remove_tree, write_atomic

_PROOF = ".proof"


class Weights:
    """The store's model files.

    A file gets its place here only after its bytes were verified and synced. Beside it stands a proof: the size and
    modification time it had then. A file that was touched since has no proof and is written anew from the bundle.
    """

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout

    def proven(self, sha256: str, size: int) -> bool:
        """Whether the file is here, of `size` bytes, and as it was when it was verified."""
        path = self._layout.weight(sha256)
        try:
            facts = path.lstat()
            proof = json.loads(_proof(path).read_text("ascii"))
        except (OSError, ValueError, RecursionError):
            return False
        return facts.st_size == size and proof == _facts_of(path)

    def link_out(self, sha256: str, target: Path) -> bool:
        """Hard-link the stored file to `target`; False when it cannot be linked there."""
        return _link(self._layout.weight(sha256), target)

    def link_in(self, sha256: str, source: Path) -> bool:
        """Make the verified, synced `source` the stored file, replacing an unproven one. False: no hard links here,
        and `source` stays the only copy."""
        path = self._layout.weight(sha256)
        make_directory(path.parent, self._layout.base)
        temporary = path.with_name(f".{path.name}.new")
        remove_tree(temporary)
        if not _link(source, temporary):
            return False
        temporary.replace(path)
        write_atomic(_proof(path), json.dumps(_facts_of(path)).encode("ascii"))
        return True

    def sweep(self) -> int:
        """Remove files that no release links to; returns the bytes freed."""
        if not self._layout.weights.is_dir():
            return 0
        freed = 0
        for folder in sorted(self._layout.weights.iterdir()):
            for path in sorted(folder.iterdir()):
                if path.name.endswith(_PROOF) or path.lstat().st_nlink > 1:
                    continue
                freed += path.lstat().st_size
                path.unlink()
            for proof in sorted(folder.glob(f"*{_PROOF}")):
                if not proof.with_name(proof.name[: -len(_PROOF)]).exists():
                    proof.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()
        return freed


def _proof(path: Path) -> Path:
    return path.with_name(path.name + _PROOF)


def _facts_of(path: Path) -> dict[str, int]:
    facts = path.lstat()
    return {"size": facts.st_size, "mtime_ns": facts.st_mtime_ns}


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another filesystem, one without hard links, or too many of them
        return False
    return True
