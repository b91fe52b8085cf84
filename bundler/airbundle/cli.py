"""The `airbundle` command: options in, results on stdout, talk on stderr, one place where errors are caught."""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback
from collections.abc import Sequence

import click

from airbundle import __version__
from airbundle.cache import default_root
from airbundle.commands import Commands
from airbundle_onsite.errors import AirbundleError, ExitCode, UsageError
from airbundle_onsite.render import error_plain, json_text


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="airbundle")
def cli() -> None:
    """Build bundles of LLM serving for sites with no internet, and prove them before they leave."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = cli.main(arguments, prog_name="airbundle", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except click.ClickException as error:
        if "--json" in arguments:
            click.echo(json_text(error_plain(UsageError(error.format_message(), remedy="--help lists every option"))))
        error.show()
        return int(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Stopped. What was fetched whole is kept; run the same command to go on.", err=True)
        return int(ExitCode.UNEXPECTED)
    except AirbundleError as error:
        return _report(error, arguments)
    except BrokenPipeError:
        _silence_stdout()
        return int(ExitCode.UNEXPECTED)
    except OSError as error:
        if error.filename is None and error.errno == errno.ENOSPC:
            _silence_stdout()  # a result that a full disk has no room for
        return _report(_refused(error), arguments)
    except Exception as error:  # noqa: BLE001 - the one place where a bug becomes a message and a log
        return _report(_bug(error), arguments)
    return int(code) if isinstance(code, int) else 0


def _silence_stdout() -> None:
    """Lead it nowhere, so that what it still holds does not fail once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: AirbundleError, arguments: Sequence[str]) -> int:
    if "--json" in arguments:
        click.echo(json_text(error_plain(error)))
    click.echo("\n".join(error.lines()), err=True)
    return int(error.exit_code)


def _refused(error: OSError) -> AirbundleError:
    """What the operating system would not do, as an error with a cure where there is a usual one."""
    cures = {
        errno.ENOSPC: "free some space, or choose another disk with -o or --cache; what was fetched whole is kept",
        errno.EDQUOT: "free some space, or choose another disk with -o or --cache; what was fetched whole is kept",
        errno.EACCES: "choose a directory of your own with -o or --cache, or correct its owner",
        errno.EPERM: "choose a directory of your own with -o or --cache, or correct its owner",
        errno.EROFS: "choose a directory that can be written with -o or --cache",
        errno.EMFILE: "allow more open files: ulimit -n 4096",
    }
    place = f"{error.filename}: " if error.filename else ""
    remedy = cures.get(error.errno or 0, "correct that, and run the same command again")
    return AirbundleError(f"the system refused: {place}{error.strerror or error}", remedy=remedy)


def _bug(error: Exception) -> AirbundleError:
    summary = f"unexpected {type(error).__name__}: {error}"
    path = default_root() / "logs" / f"crash-{time.strftime('%Y%m%dT%H%M%S')}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
    except OSError:
        return AirbundleError(summary, remedy="report it", details=traceback.format_exc().splitlines()[-8:])
    return AirbundleError(summary, remedy=f"report it with {path}")


if __name__ == "__main__":
    sys.exit(main())
