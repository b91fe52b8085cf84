"""The site's command line: install.sh and airbundlectl both end here. One catch site, one exit code by error class."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Optional, TextIO

import airbundle_onsite
from airbundle_onsite import streams
from airbundle_onsite.arguments import help_text, parse
from airbundle_onsite.commands import COMMANDS
from airbundle_onsite.commands.base import Report
from airbundle_onsite.console import Console
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.layout import StoreLayout
from airbundle_onsite.deploy.redact import redact
from airbundle_onsite.deploy.world import Site, World, real_world
from airbundle_onsite.errors import AirbundleError, ExitCode
from airbundle_onsite.render import checks_text, error_plain, json_text

_UMASK = 0o022  # engines in containers run as other users and must read what is installed


def main(
    argv: Optional[Sequence[str]] = None,
    *,
    world: Optional[World] = None,
    stdout: Optional[TextIO] = None,
    stderr: Optional[TextIO] = None,
    stdin: Optional[TextIO] = None,
) -> int:
    """Run one command.

    Args:
        argv: the words after the program's name; None takes this process's.
        world: what to work with; None takes this machine.
        stdout, stderr, stdin: text streams; None takes this process's.

    Returns:
        The exit code; see `ExitCode`.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    world = real_world(dict(os.environ)) if world is None else world
    standard = streams.standard()
    console = Console(
        stdout or standard.out,
        stderr or standard.err,
        stdin or standard.into,
        assume_yes="--yes" in words,
        redact=redact,
        monotonic=world.clock.monotonic,
    )
    as_json = "--json" in words
    try:
        code = int(_run(words, world, console))
        return code if code or not console.lost else int(ExitCode.UNEXPECTED)
    except AirbundleError as error:
        _report_error(console, error, as_json)
        return int(error.exit_code)
    except KeyboardInterrupt:
        console.say("Interrupted. What had been begun was put back; the same command can be run again.")
        return int(ExitCode.UNEXPECTED)
    except OSError as error:
        console.note(traceback.format_exc())
        _report_error(console, _refused(error), as_json)
        return int(ExitCode.UNEXPECTED)
    except Exception as error:  # noqa: BLE001  the last resort: a bug must still end in a sentence and an exit code
        console.note(traceback.format_exc())
        fault = AirbundleError(
            f"unexpected {type(error).__name__}: {error}",
            remedy="run the same command again, which puts things in order; if it stays, send a --support-bundle",
            details=traceback.format_exc().splitlines()[-6:],
        )
        _report_error(console, fault, as_json)
        return int(ExitCode.UNEXPECTED)
    finally:
        console.close()


def _refused(error: OSError) -> AirbundleError:
    """What the operating system would not do, with the file it was about."""
    place = f"{error.filename}: " if error.filename else ""
    return AirbundleError(
        f"the system refused: {place}{error.strerror or error}",
        remedy="see that the directory is there, can be written and has space; then run the same command again",
    )


def _run(words: list[str], world: World, console: Console) -> ExitCode:
    if any(word in ("-h", "--help") for word in words):
        console.result(help_text(started_by_installer=words[:1] == ["--bundle"]))
        return ExitCode.OK
    if "--version" in words:
        console.result(f"airbundle {airbundle_onsite.__version__}")
        return ExitCode.OK
    options = parse(words, world.environ.get("AIRBUNDLE_ROOT", ""))
    command = COMMANDS[options.command]
    console.note(f"airbundle {airbundle_onsite.__version__}: {' '.join(words)}")

    def on_locked(where: StoreLayout) -> None:
        if command.changes:
            console.keep_log(where.logs, options.command)

    with _signals(console) as shield:
        site = Site(options.root, world, talk=console, confirm=console.confirm, shield=shield, on_locked=on_locked)
        report = command.run(site, options)
    _show(console, report, options.json)
    return report.code


def _show(console: Console, report: Report, as_json: bool) -> None:
    console.result(json_text(report.data) if as_json else report.text)


def _report_error(console: Console, error: AirbundleError, as_json: bool) -> None:
    checks: Sequence[CheckResult] = getattr(error, "checks", ())
    if as_json:
        console.result(json_text({**error_plain(error), **({"checks": checks} if checks else {})}))
    elif checks:
        console.say(checks_text(checks))
    console.say("\n".join(error.lines()))
    if console.log_path is not None:
        console.say(f"  Full log: {console.log_path}")


# --- signals ----------------------------------------------------------------------------------------------
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _ignored(number: int) -> bool:
    """Whether whoever started this process wanted it to go on, as nohup does with a closed terminal."""
    return signal.getsignal(number) is signal.SIG_IGN


Shield = Callable[[], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def _signals(console: Console) -> Iterator[Shield]:
    """Ctrl-C, TERM and a closed terminal all end a run in the same orderly way; the shield makes them wait."""
    shielded = 0

    def handle(number: int, _frame: Optional[FrameType]) -> None:
        if shielded:
            console.say(f"{signal.Signals(number).name}: things are being put in order, one moment")
        else:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def shield() -> Iterator[None]:
        nonlocal shielded
        shielded += 1
        try:
            yield
        finally:
            shielded -= 1

    try:
        kept = {number: signal.signal(number, handle) for number in _SIGNALS if not _ignored(number)}
    except ValueError:  # not the main thread: whoever calls from there has its own signals
        yield shield
        return
    umask = os.umask(_UMASK)
    try:
        yield shield
    finally:
        os.umask(umask)
        for number, handler in kept.items():
            signal.signal(number, handler)
