"""Ctrl-C, TERM and a closed terminal while there is something to put back."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """All three end what runs as Ctrl-C does, so that everything is put back."""
    with _handling({number: _interrupt for number in _ENDING}):
        yield


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """None of them interrupts: for putting things back."""
    with _handling(dict.fromkeys(_ENDING, signal.SIG_IGN)):
        yield


@contextlib.contextmanager
def _handling(handlers: dict[signal.Signals, object]) -> Iterator[None]:
    kept = {}
    try:
        for number, handler in handlers.items():
            kept[number] = signal.signal(number, handler)  # type: ignore[arg-type]
    except ValueError:  # not the main thread: whoever calls from there has its own signals
        pass
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
