"""``local:PATH``: a directory or one file on this machine, relative to the spec."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from airbundle.contract.lock import LockedFile, LockedImage, LockedModel
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.selection import choose, is_debris
from airbundle.sources import hub
from airbundle.sources.base import SourceContext
from airbundle.weights import prove, weight_format
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError, UsageError

SCHEME = "local"


def create(context: SourceContext) -> LocalSource:
    """See `airbundle.sources.base`."""
    return LocalSource(context)


@record
class Tree:
    """Files found on the disk.

    Attributes:
        root: what was given, resolved.
        files: path inside the model -> the file, links followed.
        revision: of a hub cache's snapshot, else empty.
    """

    root: Path
    files: dict[str, Path]
    revision: str


class LocalSource:
    """Files are shared with the cache (blocks or a hard link where the filesystem can), so a lock stays buildable."""

    scheme = SCHEME

    def __init__(self, context: SourceContext) -> None:
        self._context = context

    def lock_model(self, model: ModelTable) -> LockedModel:
        """See `Source.lock_model`. Every chosen file is hashed, proven and put into the cache."""
        where = model.source.partition(":")[2]
        tree = read_tree(self._context.base, where)
        chosen = choose({path: file.stat().st_size for path, file in tree.files.items()}, model)
        prove({path: tree.files[path] for path in chosen.paths})
        done, total = 0, sum(tree.files[path].stat().st_size for path in chosen.paths)

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._context.talk.progress(f"hashing {where}", done, total)

        files = []
        for path in chosen.paths:
            sha256, size = self._context.cache.share(tree.files[path], advance)
            files.append(LockedFile(path, sha256, size, {"source": SCHEME, "root": where, "file": path}))
        return LockedModel(
            served_name=model.served_name,
            source=model.source,
            revision=tree.revision or hub.listing_digest(files),
            format=weight_format(chosen.paths),
            files=tuple(files),
            entry=chosen.entry,
            license=model.license,
            skipped=chosen.skipped,
        )

    def lock_image(self, image: ImageTable, platform: str) -> LockedImage:
        """Refused: this source has models only."""
        raise UsageError(f"{image.source}: local: holds models only", remedy="write registry: or daemon: for an image")

    def fetch(self, item: LockedFile, advance: Callable[[int], None]) -> None:
        """See `Source.fetch`."""
        where, path = item.origin["root"], item.origin["file"]
        file = read_tree(self._context.base, where).files.get(path)
        if file is None:
            raise FetchError(f"{path}: no longer in {where}", remedy="put it back, or lock again")
        sha256, size = self._context.cache.share(file, advance)
        if sha256 != item.sha256:
            raise FetchError(
                f"{path} in {where} changed since it was locked",
                details=(
                    f"found {size} bytes with SHA-256 {sha256}",
                    f"needed {item.size} bytes with SHA-256 {item.sha256}",
                ),
                remedy="put the old file back, or lock again",
            )


def read_tree(base: Path, where: str) -> Tree:
    """List a directory, or one file, with links followed as far as they stay inside.

    A hub cache is understood: ``snapshots/<revision>`` links into the ``blobs`` beside it, and the directory above
    both is taken for its only snapshot, or the one that ``refs/main`` names.

    Raises:
        FetchError: with every link that is dead or leaves the tree, and everything that is not a file.
    """
    given = (base / Path(where).expanduser()).absolute()
    if given.is_file():
        return Tree(given.parent, {given.name: given.resolve()}, "")
    if not given.is_dir():
        raise FetchError(
            f"local:{where}: {given} does not exist", remedy="the path is relative to the spec's directory"
        )
    root = _snapshot(given)
    allowed = [root.resolve()]
    revision = ""
    if root.parent.name == "snapshots" and (root.parent.parent / "blobs").is_dir():
        allowed.append((root.parent.parent / "blobs").resolve())
        revision = root.name
    files: dict[str, Path] = {}
    problems: list[str] = []
    for directory, names, leaves in os.walk(root):
        names.sort()
        for name in (*leaves, *(name for name in names if (Path(directory) / name).is_symlink())):
            file = Path(directory) / name
            path = file.relative_to(root).as_posix()
            if is_debris(path) and not (file.is_file() and not file.is_symlink()):
                continue  # plain files stay, to be left out and counted by `choose`
            problem = _problem(file, allowed)
            if problem:
                problems.append(f"{path}: {problem}")
            else:
                files[path] = file.resolve()
    if problems:
        raise FetchError(f"local:{where}: {len(problems)} entries cannot be packed", details=problems, remedy=_CURE)
    return Tree(root, files, revision)


_CURE = "replace links with the files they stand for (cp -L), and take away what is not a file"


def _problem(file: Path, allowed: list[Path]) -> str:
    target = file.resolve()
    if not target.exists():
        return f"a link to nothing ({file.readlink()})"
    if not any(target.is_relative_to(place) for place in allowed):
        return f"a link that leaves the directory, to {target}"
    if file.is_symlink() and target.suffix == ".incomplete":
        return "a download that was not finished"
    if target.is_dir():
        return "a link to a directory"
    return "" if target.is_file() else "neither a file nor a directory"


def _snapshot(given: Path) -> Path:
    """The directory with the files, where `given` may be a repository of a hub cache."""
    snapshots = given / "snapshots"
    if not (snapshots.is_dir() and (given / "blobs").is_dir()):
        return given
    revisions = sorted(path.name for path in snapshots.iterdir() if path.is_dir())
    main = given / "refs" / "main"
    name = main.read_text().strip() if main.is_file() else ""
    if name in revisions:
        return snapshots / name
    if len(revisions) == 1:
        return snapshots / revisions[0]
    raise FetchError(
        f"{given}: a hub cache with {len(revisions)} snapshots",
        details=revisions,
        remedy="name one: local:…/snapshots/<revision>",
    )
