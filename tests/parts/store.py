"""The parts cache: things that take long to make or fetch, kept between runs and shared by runs at the same time.

``$AIRBUNDLE_TEST_CACHE``, else ``.cache/parts`` in the checkout. A thing is made under a temporary name beside
its final one and renamed when it is whole, under a lock of its own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def root() -> Path:
    """The cache's directory, made when it is missing."""
    path = Path(os.environ.get("AIRBUNDLE_TEST_CACHE") or CHECKOUT / ".cache" / "parts")
    path.mkdir(parents=True, exist_ok=True)
    return path


def once(name: str, make: Callable[[Path], None]) -> Path:
    """The directory `name` of the cache; `make` fills it (given an empty directory) when it is not there yet."""
    final = root() / name
    if final.is_dir():
        return final
    with (root() / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.is_dir():
            return final
        work = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root()))
        try:
            work.chmod(0o755)
            make(work)
            work.rename(final)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return final
