"""Streams the payload's files straight from the parts: no joined copy, and no byte before its piece was proven.

Two threads read and hash the next pieces while the consumer takes the current one. At most two pieces and a quarter of
64 MiB are in memory, as blocks that are handed on without another copy and freed when they were taken.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from airbundle_onsite.contract.layout import PIECE_SIZE
from airbundle_onsite.contract.payload import FileEntry
from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.system import Talk
from airbundle_onsite.verify import media, tar
from airbundle_onsite.verify.bundle import TrustedManifest
from airbundle_onsite.verify.source import Piece, pieces_of, read_proven

_READERS = 2  # one core hashes more slowly than a disk reads or takes
_MEMORY = PIECE_SIZE * 9 // 4
"""Bytes of pieces that are read, being read, or not yet taken."""


class PayloadReader:
    """The files of a trusted bundle's payload, in order.

    Args:
        trusted: from `bundle.trust`.
        talk: told the bytes that were taken, as progress.
    """

    def __init__(self, trusted: TrustedManifest, talk: Talk) -> None:
        self._trusted, self._talk = trusted, talk

    def files(self) -> Iterator[tuple[FileEntry, Iterable[bytes]]]:
        """Each file with its content in chunks of at most 1 MiB, to be taken before the next file is asked for.

        Of a file that takes bytes from a base, these are only the bytes of its segments in the payload, in order.
        What is not taken of a file is skipped. Ending the iteration early ends the reading.

        Raises:
            IntegrityError: a piece is bad (naming the part, the piece and the cure), or the tar is not what the
                manifest says.
        """
        with _Joined(self._trusted, self._talk) as joined:
            for entry in self._trusted.manifest.files:
                if not entry.member:
                    yield entry, ()
                    continue
                tar.read_header(entry, joined.read)
                _require_offset(entry, joined.position)
                content = joined.chunks(entry.packed)
                yield entry, content
                for _ in content:
                    pass
                if joined.read(-entry.packed % tar.BLOCK).strip(b"\0"):
                    tar.refuse(f"{entry.path} is followed by something other than zeros")
            _require_end(joined)


def joined_payload(trusted: TrustedManifest, talk: Talk) -> Iterator[bytes]:
    """The joined payload as it is, in chunks of at most 1 MiB, each proven. Raises IntegrityError."""
    with _Joined(trusted, talk) as joined:
        yield from joined.chunks(joined.left)


def _require_offset(entry: FileEntry, position: int) -> None:
    if entry.begins not in (None, position):
        tar.refuse(f"{entry.path} begins at byte {position}, needed {entry.begins}")


def _require_end(joined: _Joined) -> None:
    """Two zero blocks or more, and nothing but zeros, up to the end."""
    if joined.left < 2 * tar.BLOCK or joined.left % tar.BLOCK:
        tar.refuse(f"it ends with {joined.left} bytes after the last file, needed two or more blocks of zeros")
    for chunk in joined.chunks(joined.left):
        if chunk.strip(b"\0"):
            tar.refuse("something follows the last file")


class _Joined:
    """The joined payload, read forwards. A context manager, for its threads."""

    def __init__(self, trusted: TrustedManifest, talk: Talk) -> None:
        payload = trusted.manifest.payload
        self._source, self._talk, self._size = trusted.source, talk, payload.size
        self.position = 0
        self._pieces = deque(piece for part in payload.parts for piece in pieces_of(part))
        self._readers = min(_READERS, trusted.source.readers or _READERS)
        self._pool = ThreadPoolExecutor(self._readers, thread_name_prefix="read-pieces")
        self._ahead: deque[Future[deque[bytes]]] = deque()
        self._passed_over: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._blocks: deque[bytes] = deque()
        self._untaken = 0
        self._block, self._at = b"", 0

    def __enter__(self) -> _Joined:
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    @property
    def left(self) -> int:
        """Bytes not yet taken."""
        return self._size - self.position

    def read(self, size: int) -> bytes:
        """The next `size` bytes."""
        return b"".join(self.chunks(size))

    def chunks(self, size: int) -> Iterator[bytes]:
        """The next `size` bytes, at most 1 MiB at a time."""
        if size > self.left:
            tar.refuse(f"it ends at byte {self._size}, needed {self.position + size}")
        while size:
            if self._at == len(self._block):
                self._block, self._at = self._next_block(), 0
            chunk = self._block[self._at : self._at + size]  # the whole block, uncopied, where it is all wanted
            size -= len(chunk)
            self.position += len(chunk)
            self._at += len(chunk)
            self._talk.progress("reading the payload", self.position, self._size)
            yield chunk

    def _next_block(self) -> bytes:
        self._read_ahead()
        if not self._blocks:
            self._blocks = self._ahead.popleft().result()
            self._untaken = sum(map(len, self._blocks))
            while not self._passed_over.empty():
                self._talk.say(self._passed_over.get())
        block = self._blocks.popleft()
        self._untaken -= len(block)
        return block

    def _read_ahead(self) -> None:
        """Have the next pieces read, in order, as far as there is room for them."""
        while self._pieces and len(self._ahead) < self._readers:
            if self._untaken + (len(self._ahead) + 1) * PIECE_SIZE > _MEMORY:
                return
            self._ahead.append(self._pool.submit(self._read, self._pieces.popleft()))

    # --- in a reader thread -------------------------------------------------------------------------------
    def _read(self, piece: Piece) -> deque[bytes]:
        """The piece's bytes, after their hash agreed. Raises IntegrityError."""
        try:
            blocks, passed_over = read_proven(self._source, piece)
        except media.Unreadable as error:
            raise _bad(piece, str(error)) from error
        for reason in passed_over:
            self._passed_over.put(f"{piece}: {reason}; another copy is good")
        return blocks


def _bad(piece: Piece, reason: str) -> IntegrityError:
    return IntegrityError(
        f"{piece} is bad: {reason}",
        remedy=f"copy {piece.part.name} again from where the bundle was built, then run the same command again, or "
        "have only what is bad sent (--repair-request FILE); the other parts and the media are untouched",
    )
