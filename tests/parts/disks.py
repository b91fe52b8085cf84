"""Small real filesystems: ext4 on a loop device, FAT and exFAT through FUSE."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from parts import need


class Disks:
    """Makes small filesystems and unmounts them all on leaving."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Disks:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ext4(self, size_mb: int) -> Path:
        """Mount point of a fresh ext4 filesystem of that many MiB, nothing reserved for root."""
        need.need("ext4")
        return self._stack.enter_context(_ext4(size_mb))

    def fat(self, size_mb: int) -> Path:
        """Mount point of a fresh FAT32 filesystem of that many MiB: no modes, no links, names ignore case."""
        need.need("fat")
        return self._stack.enter_context(_fat(size_mb))


class Stick:
    """A removable medium that can be mounted again and again: FAT32 or exFAT, without modes and links.

    fusefat keeps files in a directory that it renames only by their old path: on it, bundles are copied, not built.
    """

    def __init__(self, kind: str, image: Path, work: Path) -> None:
        self._kind, self._image, self._mount = kind, image, work / "mnt"

    @contextmanager
    def mounted(self, *, read_only: bool = False) -> Iterator[Path]:
        """Where it is mounted, until the block ends."""
        with ExitStack() as stack:
            if self._kind == "fat":
                _run("fusefat", "-o", "ro" if read_only else "rw+", str(self._image), str(self._mount))
                away = ("fusermount", "-u", str(self._mount))
            else:
                device = _run("losetup", "--show", "--find", str(self._image)).strip()
                stack.callback(_run, "losetup", "--detach", device)
                _run("mount.exfat-fuse", *(["-o", "ro"] if read_only else []), device, str(self._mount))
                away = ("umount", str(self._mount))
            stack.callback(_unmount, away)
            yield self._mount


def _unmount(words: tuple[str, ...]) -> None:
    """Unmount a medium; it is an error when something still holds it, and it goes away even so."""
    try:
        _run(*words)
    except RuntimeError:
        _run("umount", "-l", words[-1])
        raise


@contextmanager
def stick(kind: str, size_mb: int) -> Iterator[Stick]:
    """A fresh medium of that many MiB, ``fat`` or ``exfat``; not mounted yet."""
    need.need(kind)
    with _work() as work:
        image, _ = _image(work, size_mb)
        _run(*(("mkfs.vfat", "-F", "32") if kind == "fat" else ("mkfs.exfat",)), str(image))
        yield Stick(kind, image, work)


@contextmanager
def read_only_noexec(directory: Path) -> Iterator[Path]:
    """The same directory seen at another path, as media mounted read-only and noexec."""
    need.need("ext4")
    with _work() as work:
        mount = work / "media"
        mount.mkdir()
        _run("mount", "--bind", str(directory), str(mount))
        try:
            _run("mount", "-o", "remount,bind,ro,noexec", str(mount))
            yield mount
        finally:
            _run("umount", "-l", str(mount))


@contextmanager
def _ext4(size_mb: int) -> Iterator[Path]:
    with _work() as work:
        image, mount = _image(work, size_mb)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image))
        _run("mount", "-o", "loop", str(image), str(mount))
        try:
            (mount / "lost+found").rmdir()
            yield mount
        finally:
            _run("umount", "-l", str(mount))


@contextmanager
def _fat(size_mb: int) -> Iterator[Path]:
    with _work() as work:
        image, mount = _image(work, size_mb)
        _run("mkfs.vfat", "-F", "32", str(image))
        _run("fusefat", "-o", "rw+", str(image), str(mount))
        try:
            yield mount
        finally:
            _run("fusermount", "-u", "-z", str(mount))


@contextmanager
def _work() -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix="ab-disk-"))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _image(work: Path, size_mb: int) -> tuple[Path, Path]:
    image, mount = work / "disk.img", work / "mnt"
    mount.mkdir()
    with image.open("wb") as handle:
        handle.truncate(size_mb << 20)
    return image, mount


def _run(name: str, *words: str) -> str:
    done = subprocess.run([need.program(name), *words], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"{name} {' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout
