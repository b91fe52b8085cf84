"""The small probe's program: writes down what a host is. Asks nothing, changes nothing else, needs no root."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn, Optional, TextIO

import airbundle_onsite
from airbundle_onsite import probes, streams
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.record import encode
from airbundle_onsite.errors import AirbundleError, ExitCode, UsageError
from airbundle_onsite.summary import fingerprint_text, more_as_root
from airbundle_onsite.system import SystemClock, SystemRunner

FILE = "site-fingerprint.json"
_ROOT = "/opt/airbundle"  # where an installation would go, for the space there
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy="--help lists every option")


def main(
    argv: Optional[Sequence[str]] = None, *, stdout: Optional[TextIO] = None, stderr: Optional[TextIO] = None
) -> int:
    """Take this host's fingerprint and write it to a file.

    Args:
        argv: the words after the program's name; None takes this process's.
        stdout, stderr: text streams; None takes this process's.

    Returns:
        The exit code; see `ExitCode`.
    """
    standard = streams.standard()
    out, err = stdout or standard.out, stderr or standard.err
    try:
        return _run(sys.argv[1:] if argv is None else list(argv), out)
    except AirbundleError as error:
        _write(err, "\n".join(error.lines()))
        return int(error.exit_code)
    except OSError as error:
        fault = AirbundleError(f"the system refused: {error}", remedy="name another place: sh probe.sh --output FILE")
        _write(err, "\n".join(fault.lines()))
        return int(ExitCode.UNEXPECTED)
    except KeyboardInterrupt:
        _write(err, "Interrupted; nothing was written.")
        return int(ExitCode.UNEXPECTED)


def _run(words: list[str], out: TextIO) -> int:
    parser = _Parser(prog="probe.sh", description=__doc__, allow_abbrev=False, add_help=False)
    parser.add_argument("-o", "--output", metavar="FILE", help=f"where to write ({FILE} beside the probe)")
    parser.add_argument("--root", metavar="DIR", default=_ROOT, help=f"where a bundle would be installed ({_ROOT})")
    parser.add_argument("--beside", metavar="DIR", help=argparse.SUPPRESS)  # the probe's own directory
    parser.add_argument("--json", action="store_true", help="print the fingerprint instead of a summary")
    parser.add_argument("--version", action="store_true", help="print the version of this program")
    parser.add_argument("-h", "--help", action="store_true", help="print this")
    options = parser.parse_args(words)
    if options.help or options.version:
        text = parser.format_help().rstrip() if options.help else f"airbundle {airbundle_onsite.__version__}"
        return _written(out, text)
    if options.output == "":
        raise UsageError("--output is empty, needed the name of a file", remedy="leave it out for the usual name")
    taken = take(Path(options.root), options.beside)
    path = save(encode(taken), places(options.output, options.beside))
    if options.json:
        return _written(out, encode(taken).decode("utf-8").rstrip())
    return _written(out, _report(taken, path))


def take(root: Path, beside: Optional[str] = None) -> Fingerprint:
    """This host's fingerprint, with the space where a bundle would be installed, at `root`."""
    paths = {"root": root, "docker": Path("/var/lib/docker"), "temp": Path(tempfile.gettempdir())}
    if beside:
        paths["bundle"] = Path(beside)
    return probes.take(paths, runner=SystemRunner(), clock=SystemClock(), environ=os.environ)


def places(output: Optional[str], beside: Optional[str]) -> Iterator[Path]:
    """Where to write, in the order to be tried: a file that was named is the only one."""
    if output:
        yield Path(output)
        return
    if beside:
        yield Path(beside) / FILE
    yield Path.cwd() / FILE  # the medium may be read-only
    yield Path(tempfile.gettempdir()) / FILE


def save(data: bytes, candidates: Iterator[Path]) -> Path:
    """Write to the first candidate that takes it; returns its path.

    Raises:
        UsageError: none does.
    """
    problems: list[str] = []
    for path in candidates:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            if error.errno not in (*_REFUSED, errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
                raise
            problems.append(f"{path}: {error.strerror}")
            if error.errno == errno.EISDIR or temporary.exists():
                temporary.unlink()
            continue
        return path
    raise UsageError(
        "the fingerprint could not be written",
        details=tuple(problems),
        remedy="name a file in a directory that this user may write to: sh probe.sh --output FILE",
    )


def _report(taken: Fingerprint, path: Path) -> str:
    lines = [fingerprint_text(taken), ""]
    more = more_as_root(taken)
    if more:
        lines += ["Read without root. As root it would add:", *(f"  {each}" for each in more)]
    lines += [f"Written: {path}", "Take this file back to whoever builds the bundle. Nothing else was changed."]
    return "\n".join(lines)


def _written(stream: TextIO, text: str) -> int:
    return int(ExitCode.OK if _write(stream, text) else ExitCode.UNEXPECTED)


def _write(stream: TextIO, text: str) -> bool:
    """Whether the text could be written; a terminal that cannot show a character gets a question mark for it."""
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        stream.flush()
    except OSError:
        streams.silence(stream)
        return False
    return True
