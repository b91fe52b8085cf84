"""Writing parts: any mix of bytes and copies, hashes of what stands in the files, and no thread left behind."""

import errno
import hashlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airbundle.partwriter import PartWriter, part_sizes
from airbundle_onsite.contract import layout

MIB = 1024 * 1024


def _ignored(_count):
    pass


def _names():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(("parts", "pieces", "sync"))}


def test_hashes_are_of_what_stands_in_the_parts(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"".join(bytes([value]) * MIB for value in range(70)))
    told = []
    size = 5 + 70 * MIB + 7 * MIB + 1
    sizes = part_sizes(size, 65 * MIB)
    writer = PartWriter(tmp_path, sizes, told.append)
    with source.open("rb") as file:
        writer.write(b"first")
        assert writer.copy(file.fileno(), 0, 70 * MIB) == 70 * MIB
        assert writer.copy(file.fileno(), 63 * MIB + 1, 90 * MIB) == 7 * MIB - 1  # no more is there
        writer.write(b"xy")
    parts = writer.finish()
    writer.close()
    assert sum(told) == size
    assert [part.name for part in parts] == ["payload.tar.000", "payload.tar.001"]
    joined = hashlib.sha256()
    for part, needed in zip(parts, sizes, strict=True):
        data = (tmp_path / part.name).read_bytes()
        joined.update(data)
        assert len(data) == part.size == needed
        assert part.sha256 == hashlib.sha256(data).hexdigest()
        starts = range(0, len(data), layout.PIECE_SIZE)
        assert part.pieces == tuple(hashlib.sha256(data[at : at + layout.PIECE_SIZE]).hexdigest() for at in starts)
    content = source.read_bytes()
    wanted = b"first" + content + content[63 * MIB + 1 :] + b"xy"
    assert joined.digest() == hashlib.sha256(wanted).digest()
    assert not _names()


def test_a_file_that_the_kernel_does_not_copy_is_read(tmp_path):
    source = Path("/proc/self/cmdline")  # one that sendfile refuses
    wanted = source.read_bytes()
    writer = PartWriter(tmp_path, [len(wanted)], _ignored)
    with source.open("rb") as file:
        assert writer.copy(file.fileno(), 0, len(wanted)) == len(wanted)
    (part,) = writer.finish()
    writer.close()
    assert (tmp_path / part.name).read_bytes() == wanted
    assert part.sha256 == part.pieces[0] == hashlib.sha256(wanted).hexdigest()


def test_giving_up_midway_ends_every_thread(tmp_path):
    writer = PartWriter(tmp_path, [100 * MIB, 100 * MIB], _ignored)
    writer.write(bytes(5 * MIB))
    writer.close()
    assert not _names()


def test_a_part_that_cannot_be_read_back_is_an_error_and_the_writer_does_not_wait_for_ever(tmp_path):
    writer = PartWriter(tmp_path, [600 * MIB], _ignored)
    (tmp_path / "payload.tar.000").unlink()
    with pytest.raises(FileNotFoundError, match=r"payload\.tar\.000"):
        for _ in range(600):
            writer.write(bytes(MIB))
        writer.finish()
    writer.close()
    assert not _names()


def test_a_disk_that_takes_no_more(tmp_path):
    (tmp_path / "payload.tar.000").symlink_to("/dev/full")
    writer = PartWriter(tmp_path, [MIB], _ignored)
    with pytest.raises(OSError) as caught:
        writer.write(bytes(MIB))
    writer.close()
    assert caught.value.errno == errno.ENOSPC
    assert not _names()


def test_a_writer_that_nobody_closes_keeps_no_process_alive(tmp_path):
    """As after a Ctrl-C between its making and the `try` that closes it."""
    script = (
        "import pathlib, sys; from airbundle.partwriter import PartWriter\n"
        "writer = PartWriter(pathlib.Path(sys.argv[1]), [1024], lambda _: None)\n"
        "raise KeyboardInterrupt\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, timeout=60)
    assert done.stderr.endswith(b"KeyboardInterrupt\n")
