"""Streams the payload's files straight from the parts: no joined copy, and no byte before its piece was proven.

A reader thread reads and hashes the next piece while the consumer takes the current one; two buffers of one piece
each go round between them, and are all the memory this needs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Optional, Union

from airbundle_onsite.contract.manifest import FileEntry
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.system import Talk
from airbundle_onsite.verify import media, tar
from airbundle_onsite.verify.bundle import TrustedManifest
from airbundle_onsite.verify.parts import Piece, pieces_of

_BUFFERS = 2


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

        What is not taken of a file is skipped. Ending the iteration early stops the reader thread.

        Raises:
            IntegrityError: a piece is bad (naming the part, the piece and the cure), or the tar is not what the
                manifest says.
        """
        files = self._trusted.manifest.files
        _require_plain(files)
        with _Joined(self._trusted, self._talk) as joined:
            for entry in files:
                tar.read_header(entry, joined.read)
                _require_offset(entry, joined.position)
                content = joined.chunks(entry.size)
                yield entry, content
                for _ in content:
                    pass
                if joined.read(-entry.size % tar.BLOCK).strip(b"\0"):
                    tar.refuse(f"{entry.path} is followed by something other than zeros")
            _require_end(joined)


def _require_plain(files: Iterable[FileEntry]) -> None:
    """Raise IntegrityError for files that this version cannot put together."""
    strange = [
        entry.path
        for entry in files
        if len(entry.segments) > 1 or any(segment.base is not None for segment in entry.segments)
    ]
    if strange:
        raise IntegrityError(
            f"{len(strange)} files of this bundle are made of several segments, which this version cannot put together",
            details=strange[:20],
            remedy="the bundle needs a newer tool, or the base it was built on: ask its sender for a full bundle",
        )


def _require_offset(entry: FileEntry, position: int) -> None:
    if entry.segments and entry.segments[0].offset != position:
        tar.refuse(f"{entry.path} begins at byte {position}, needed {entry.segments[0].offset}")


def _require_end(joined: _Joined) -> None:
    """Two zero blocks or more, and nothing but zeros, up to the end."""
    if joined.left < 2 * tar.BLOCK or joined.left % tar.BLOCK:
        tar.refuse(f"it ends with {joined.left} bytes after the last file, needed two or more blocks of zeros")
    for chunk in joined.chunks(joined.left):
        if chunk.strip(b"\0"):
            tar.refuse("something follows the last file")


@record
class _Proven:
    """A piece in memory whose hash agreed."""

    piece: Piece
    buffer: bytearray


class _Joined:
    """The joined payload, read forwards. A context manager, for its thread."""

    def __init__(self, trusted: TrustedManifest, talk: Talk) -> None:
        payload = trusted.manifest.payload
        self._trusted, self._talk, self._size = trusted, talk, payload.size
        self.position = 0
        self._pieces = [piece for part in payload.parts for piece in pieces_of(part)]
        self._free: queue.Queue[Optional[bytearray]] = queue.Queue()
        self._proven: queue.Queue[Union[_Proven, IntegrityError]] = queue.Queue()
        self._current: Optional[_Proven] = None
        self._at = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read_pieces, name="read-pieces", daemon=True)

    def __enter__(self) -> _Joined:
        largest = max((piece.size for piece in self._pieces), default=0)
        for _ in range(min(_BUFFERS, len(self._pieces))):
            self._free.put(bytearray(largest))
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        self._free.put(None)
        self._thread.join()

    @property
    def left(self) -> int:
        """Bytes not yet taken."""
        return self._size - self.position

    def read(self, size: int) -> bytes:
        """The next `size` bytes."""
        return b"".join(self.chunks(size))

    def chunks(self, size: int) -> Iterator[bytes]:
        """The next `size` bytes, at most 1 MiB at a time. Copies: a buffer is filled anew while they are in use."""
        if size > self.left:
            tar.refuse(f"it ends at byte {self._size}, needed {self.position + size}")
        while size:
            proven = self._piece()
            end = min(self._at + size, self._at + media.CHUNK, proven.piece.size)
            with memoryview(proven.buffer) as view:
                chunk = bytes(view[self._at : end])
            size -= len(chunk)
            self.position += len(chunk)
            self._at = end
            self._talk.progress("reading the payload", self.position, self._size)
            yield chunk

    def _piece(self) -> _Proven:
        """The piece that holds the next byte."""
        if self._current is not None and self._at < self._current.piece.size:
            return self._current
        if self._current is not None:
            self._free.put(self._current.buffer)
            self._current = None
        proven = self._proven.get()
        if isinstance(proven, IntegrityError):
            raise proven
        self._current, self._at = proven, 0
        return proven

    # --- in the reader thread -----------------------------------------------------------------------------
    def _read_pieces(self) -> None:
        for piece in self._pieces:
            buffer = self._free.get()
            if buffer is None or self._stopped.is_set():
                return
            try:
                found = self._fill(piece, buffer)
            except media.Unreadable as error:
                self._proven.put(_bad(piece, str(error)))
                return
            if found != piece.sha256:
                self._proven.put(_bad(piece, f"found SHA-256 {found[:16]}…, needed {piece.sha256[:16]}…"))
                return
            self._proven.put(_Proven(piece, buffer))

    def _fill(self, piece: Piece, buffer: bytearray) -> str:
        """Read a piece into the buffer; returns its SHA-256. Raises Unreadable."""
        with media.open_regular(self._trusted.directory / piece.part.name) as descriptor:
            media.will_need(descriptor, piece.offset, piece.size)
            return media.fill(descriptor, piece.offset, memoryview(buffer)[: piece.size])


def _bad(piece: Piece, reason: str) -> IntegrityError:
    return IntegrityError(
        f"{piece} is bad: {reason}",
        remedy=f"copy {piece.part.name} again from where the bundle was built, then run the same command again; "
        "the other parts and the media are untouched",
    )
