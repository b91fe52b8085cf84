"""The three standard streams, as they should be: open, and harmless when what they lead to goes away."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from airbundle_onsite.contract.record import record


@record
class Streams:
    """Standard input, output and error."""

    into: TextIO
    out: TextIO
    err: TextIO


def standard() -> Streams:
    """This process's own. One that was closed by whoever started it leads to /dev/null from now on: otherwise the
    next file opened would get its number, and whatever a child process prints would be written into that file."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    return Streams(
        sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False),
        sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False),
        sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False),
    )


def silence(stream: TextIO) -> None:
    """Lead a stream that failed to /dev/null, so that what it still holds does not fail once more at the end."""
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, number)
        os.close(nothing)
