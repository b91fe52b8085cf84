"""The SHA-256 of each tensor of a file, computed once and kept beside the cache."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from airbundle.cache import Cache
from airbundle.delta.content import Content, read_at, stream
from airbundle_onsite import tensors
from airbundle_onsite.contract.inventory import TensorFact
from airbundle_onsite.contract.record import decode_json, encode, record
from airbundle_onsite.errors import ContractError, IntegrityError
from airbundle_onsite.system import Talk

FACTS_VERSION = 1
"""Part of the name under which they are kept; raise it when a reader finds other spans."""


@record
class TensorFacts:
    """The tensors of one file, which follow each other up to its end; none when its header says nothing."""

    tensors: tuple[TensorFact, ...] = ()


@record
class Readable:
    """A file whose tensors are wanted.

    Attributes:
        path: its name, which tells the format.
        size, sha256: of its content.
        content: where it can be read; None when it cannot, and only what is remembered counts.
        proven: whether that content was already held against `sha256`.
    """

    path: str
    size: int
    sha256: str
    content: Content | None
    proven: bool


class TensorReader:
    """Reads files side by side, one thread per core; what was read once is remembered."""

    def __init__(self, cache: Cache, talk: Talk) -> None:
        self._directory = cache.root / "facts" / f"tensors-{FACTS_VERSION}"
        self._talk, self._lock, self._done, self._total = talk, threading.Lock(), 0, 0

    def read(self, files: Iterable[Readable]) -> dict[str, tuple[TensorFact, ...]]:
        """Tensors by the file's SHA-256; nothing for a file that cannot be read.

        Raises:
            IntegrityError: an unproven content is not what it should be.
        """
        wanted = {file.sha256: file for file in files if tensors.has_tensors(file.path)}
        found = {sha256: kept for sha256 in wanted if (kept := self._kept(sha256)) is not None}
        fresh = [file for file in wanted.values() if file.sha256 not in found and file.content is not None]
        self._done, self._total = 0, sum(file.size for file in fresh)
        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="tensors") as pool:
            for file, facts in zip(fresh, pool.map(self._fresh, fresh), strict=True):
                self._keep(file.sha256, facts)
                found[file.sha256] = facts
        return {sha256: facts for sha256, facts in found.items() if facts}

    def _fresh(self, file: Readable) -> tuple[TensorFact, ...]:
        content = file.content or ()
        try:
            spans = tensors.spans(file.path, file.size, lambda offset, size: read_at(content, offset, size))
        except ValueError:
            spans = ()  # not what its name says: it travels whole
        if not spans and file.proven:
            return ()
        whole = None if file.proven else hashlib.sha256()
        facts = tuple(tensors.hash_spans(spans, self._counted(content, whole)))
        if whole is not None and whole.hexdigest() != file.sha256:
            raise IntegrityError(
                f"{file.path} of the base has SHA-256 {whole.hexdigest()[:16]}…, needed {file.sha256[:16]}…",
                remedy="the base bundle is damaged: `airbundle verify` says where; name a whole one",
            )
        return facts

    def _counted(self, content: Content, whole: hashlib._Hash | None) -> Iterator[bytes]:
        for chunk in stream(content):
            if whole is not None:
                whole.update(chunk)
            with self._lock:
                self._done += len(chunk)
                self._talk.progress("hashing tensors", min(self._done, self._total), self._total)
            yield chunk

    def _kept(self, sha256: str) -> tuple[TensorFact, ...] | None:
        path = self._directory / f"{sha256}.json"
        try:
            return decode_json(TensorFacts, path.read_bytes(), str(path)).tensors
        except (FileNotFoundError, ContractError):
            return None

    def _keep(self, sha256: str, facts: Sequence[TensorFact]) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{sha256}.json"
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(encode(TensorFacts(tuple(facts))))
        temporary.replace(path)
