"""From the words of a command line to where a bundle is: the directory of its small files, a source of its parts."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.layout import StoreLayout
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError
from airbundle_onsite.system import Clock
from airbundle_onsite.transport import received, web
from airbundle_onsite.verify.source import Directory, Files, PartSource, Several


@record
class Places:
    """Where a bundle is.

    Attributes:
        directory: holds bundle.json and what stands beside it.
        source: where its parts are; None when they are all in `directory`, as usual.
    """

    directory: Path
    source: Optional[PartSource] = None


@contextlib.contextmanager
def opened(
    bundle: Optional[Path], named: Sequence[str], *, store: StoreLayout, clock: Clock, proxy: str = ""
) -> Iterator[Places]:
    """Find a bundle.

    Args:
        bundle: the directory that install.sh stands in; None when it was not that one.
        named: further directories and URLs, in the order of the command line.
        store: whose received parts are looked at, too.
        clock: for the pauses of a network.
        proxy: see `WebFolder`.

    Raises:
        UsageError: a directory is not there, or holds nothing of a bundle; or none has a bundle.json.
        FetchError: a server cannot be reached.
    """
    with contextlib.ExitStack() as stack:
        sources: list[PartSource] = []
        directory: Optional[Path] = None
        for path in [bundle] if bundle is not None else _single_received(store, named):
            sources.append(Directory(path))
            directory = directory or _with_manifest(path) or (None if named else path)
        for word in named:
            if web.is_url(word):
                folder = web.WebFolder(word, clock, proxy)
                stack.callback(folder.close)
                directory = directory or _fetched(folder, stack)
                sources.append(folder)
                continue
            for path in _folders(word):
                directory = directory or _with_manifest(path)
                sources.append(Directory(path))
        if directory is None:
            searched = ", ".join(place for each in sources for place in each.places)
            raise UsageError(
                f"none of these has a {layout.MANIFEST}: {searched}",
                remedy=f"name the folder that has {layout.INSTALLER} and {layout.MANIFEST} as well",
            )
        here = received.matching(store, directory)
        if here is not None and here.resolve() != directory.resolve():
            sources.append(Directory(here))
        plain = len(sources) == 1 and not (isinstance(sources[0], Directory) and sources[0].has_pieces)
        yield Places(directory, None if plain and isinstance(sources[0], Directory) else Several(sources))


class Given:
    """Parts that were handed over: files, folders, URLs. A context manager, for the connections."""

    def __init__(self, source: PartSource, folders: Sequence[web.WebFolder]) -> None:
        self.source, self._folders = source, folders

    def __enter__(self) -> Given:
        return self

    def __exit__(self, *_error: object) -> None:
        for folder in self._folders:
            folder.close()


def given(words: Sequence[str], *, clock: Clock, proxy: str = "") -> Given:
    """What was handed over to be received.

    Args:
        words: files called like parts or pieces of parts, directories that hold such, and URLs of directories.
        clock, proxy: as for `opened`.

    Raises:
        UsageError: one is not there, or is none of these.
    """
    sources: list[PartSource] = []
    folders = []
    for word in words:
        path = Path(word)
        if web.is_url(word):
            folders.append(web.WebFolder(word, clock, proxy))
            sources.append(folders[-1])
        elif path.is_dir():
            sources += [Directory(each) for each in _folders(word)]
        elif layout.PART_PATTERN.fullmatch(path.name) or layout.PIECE_PATTERN.fullmatch(path.name):
            if not path.is_file():
                raise UsageError(f"{word} is not there, or no file", remedy="name the part where it arrived")
            sources.append(Files([path]))
        else:
            raise UsageError(
                f"{word!r} is not called like a part (payload.tar.000), and is no folder",
                remedy="give the file the name that it has in the bundle, or name the folder it is in",
            )
    return Given(Several(sources), folders)


def _single_received(store: StoreLayout, named: Sequence[str]) -> list[Path]:
    """What was received, when nothing else is named and it is one bundle."""
    if named:
        return []
    found = received.directories(store)
    if len(found) == 1:
        return found
    if not found:
        raise UsageError("no bundle was named", remedy="run the bundle's own install.sh, or add --bundle DIR")
    those = ", ".join(path.name for path in found)
    raise UsageError(f"several bundles were received: {those}", remedy=f"say which: --bundle {found[0]}")


def _with_manifest(path: Path) -> Optional[Path]:
    return path if (path / layout.MANIFEST).is_file() else None


def _fetched(folder: web.WebFolder, stack: contextlib.ExitStack) -> Path:
    target = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="airbundle-")))
    web.fetch_small_files(folder, target)
    return target


def _folders(word: str) -> list[Path]:
    """The directory, or the directories in it when only they hold something of a bundle, as on a mounted stick."""
    path = Path(word)
    if not word or not path.is_dir():
        raise UsageError(f"--from {word!r} is no directory that can be read", remedy="name a mounted folder or a URL")
    if _holds_something(path):
        return [path]
    inner = sorted(each for each in path.iterdir() if each.is_dir() and _holds_something(each))
    if not inner:
        raise UsageError(
            f"--from {word} holds no part of a bundle, and no folder in it does",
            remedy="name the folder in which files like payload.tar.000 are",
        )
    return inner


def _holds_something(path: Path) -> bool:
    patterns = (layout.PART_PATTERN, layout.PIECE_PATTERN)
    try:
        names = [each.name for each in path.iterdir()]
    except OSError:
        return False
    return any(name == layout.MANIFEST or any(each.fullmatch(name) for each in patterns) for name in names)
