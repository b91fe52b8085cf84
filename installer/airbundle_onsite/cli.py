"""The site's command line: install.sh and airbundlectl both end here. One catch site, one exit code by error class."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, Optional, TextIO

import airbundle_onsite
from airbundle_onsite import streams
from airbundle_onsite.commands import COMMANDS, Options, Report
from airbundle_onsite.console import Console
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.layout import StoreLayout
from airbundle_onsite.contract.record import near_miss
from airbundle_onsite.deploy.redact import redact
from airbundle_onsite.deploy.signers import TrustOptions
from airbundle_onsite.deploy.world import Site, World, real_world
from airbundle_onsite.errors import AirbundleError, ExitCode, UsageError
from airbundle_onsite.render import checks_text, error_plain, json_text

_ALONE = object()  # an action without the word that may follow it; an empty word, from an unset variable, is an error
_UMASK = 0o022  # engines in containers run as other users and must read what is installed
_LOWEST_PORT, _HIGHEST_PORT = 1, 65535
_EPILOG = """\
exit codes: 0 fine, 1 unexpected, 2 usage, 3 preflight or fingerprint failed, 4 only warnings (with --strict),
5 integrity, 6 signature or trust, 7 deploy failed and the previous release answers, 8 deploy failed or nothing
running, 9 busy, 10 nothing could be fetched"""


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
    parser = _parser(started_by_installer=words[:1] == ["--bundle"])
    if any(word in ("-h", "--help") for word in words):
        console.result(parser.format_help().rstrip())
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


# --- the words --------------------------------------------------------------------------------------------
class _Parser(argparse.ArgumentParser):
    """Raises instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy="--help lists every option")


def _parser(*, started_by_installer: bool = False) -> _Parser:
    parser = _Parser(
        prog=f"bash {layout.INSTALLER}" if started_by_installer else "airbundlectl",
        description="Verifies and installs a bundle, and manages what is installed. Each action can also be written "
        "as a word: airbundlectl status.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    actions = parser.add_argument_group("actions (none: install the bundle)")
    for name, command in COMMANDS.items():
        flag, dest = f"--{name}", f"do_{name}"
        if not command.value:
            actions.add_argument(flag, action="store_true", help=command.help, dest=dest)
        elif command.several:
            actions.add_argument(flag, nargs="+", metavar=command.value, help=command.help, dest=dest)
        elif command.optional:
            actions.add_argument(flag, nargs="?", const=_ALONE, metavar=command.value, help=command.help, dest=dest)
        else:
            actions.add_argument(flag, metavar=command.value, help=command.help, dest=dest)
    options = parser.add_argument_group("options")
    options.add_argument("--bundle", metavar="DIR", help="the bundle (install.sh passes its own directory)")
    options.add_argument(
        "--from",
        dest="sources",
        metavar="PLACE",
        action="append",
        help="take parts from this folder or http(s) URL as well; repeatable",
    )
    options.add_argument(
        "--patch", dest="sources", metavar="DIR", action="append", help="the folder that airbundle repair made"
    )
    options.add_argument("--proxy", metavar="URL", help="reach URLs through this proxy (default: none)")
    options.add_argument(
        "--root", metavar="DIR", help=f"where to install (default $AIRBUNDLE_ROOT or {layout.DEFAULT_ROOT})"
    )
    options.add_argument("--name", help="which bundle, when several are installed")
    options.add_argument("--port", type=int, metavar="N", help="port of the service")
    options.add_argument("--allowed-signers", metavar="FILE", help="accept only these signers")
    options.add_argument(
        "--accept-signer", metavar="SHA256:…", action="append", help="accept this key from now on, beside others"
    )
    options.add_argument(
        "--replace-signer", metavar="SHA256:…", action="append", help="accept this key from now on, instead of others"
    )
    options.add_argument("--allow-unsigned", action="store_true", help="accept a bundle without a signature")
    options.add_argument("--reinstall", action="store_true", help="replace the same version, whatever it holds")
    options.add_argument("--allow-older", action="store_true", help="accept a bundle older than one installed before")
    options.add_argument("--keep", type=int, default=0, metavar="N", help="prune: keep N more versions")
    options.add_argument("--yes", action="store_true", help="do not ask")
    options.add_argument("--json", action="store_true", help="results as JSON on standard output")
    options.add_argument("--strict", action="store_true", help="exit code 4 when there are warnings")
    options.add_argument("--paranoid", action="store_true", help="hash also what was proven when it was installed")
    options.add_argument("--with-tensors", action="store_true", help="inventory: read the models, list their tensors")
    options.add_argument("--version", action="store_true", help="print the version of this program")
    options.add_argument("-h", "--help", action="store_true", help="print this")
    return parser


_VALUED = (
    "--bundle",
    "--from",
    "--patch",
    "--proxy",
    "--root",
    "--name",
    "--port",
    "--allowed-signers",
    "--accept-signer",
    "--replace-signer",
    "--keep",
)
_WITH_SEVERAL = frozenset(f"--{name}" for name, command in COMMANDS.items() if command.several)
_WITH_VALUE = frozenset(_VALUED) | {f"--{name}" for name, command in COMMANDS.items() if command.value}


def parse(words: Sequence[str], default_root: str = "") -> Options:
    """Decide what a command line means.

    Args:
        words: without the program's name.
        default_root: from the environment; empty for none.

    Raises:
        UsageError: naming the word that is wrong.
    """
    known, extra = _parser().parse_known_args(_with_dashes(words))
    values = vars(known)
    chosen = [name for name in COMMANDS if values[f"do_{name}"] not in (None, False)]
    if len(extra) == 1 and len(chosen) == 1 and values[f"do_{chosen[0]}"] is _ALONE and not extra[0].startswith("-"):
        values[f"do_{chosen[0]}"] = extra.pop()  # as in: uninstall --yes VERSION
    if extra:
        options = [f"--{name}" for name in COMMANDS] + [*_VALUED, "--allow-unsigned", "--allow-older"]
        hints = [f"{word}{near_miss(word.partition('=')[0], options)}" for word in extra]
        raise UsageError(f"not understood: {', '.join(hints)}", remedy="--help lists every option")
    if len(chosen) > 1:
        raise UsageError(
            f"one action at a time, found {', '.join(f'--{name}' for name in chosen)}", remedy="run them one by one"
        )
    if not chosen and known.bundle is None and not known.sources:
        raise UsageError("no action was named", remedy="for example: airbundlectl status; --help lists all")
    command = chosen[0] if chosen else "install"
    value = values[f"do_{command}"]
    if value == "":
        raise UsageError(
            f"--{command} was followed by an empty word",
            remedy=f"name a {COMMANDS[command].value}, or leave the word out where --help says that it may be",
        )
    values_given = tuple(value) if isinstance(value, list) else (value,) if isinstance(value, str) else ()
    _check_values(known)
    return Options(
        command=command,
        value=values_given[0] if values_given else None,
        values=values_given,
        sources=tuple(known.sources or ()),
        proxy=known.proxy or "",
        root=_root(known.root, default_root),
        bundle=None if known.bundle is None else Path(known.bundle),
        name=known.name,
        port=known.port,
        trust=TrustOptions(
            allowed=None if known.allowed_signers is None else Path(known.allowed_signers),
            accept=tuple(known.accept_signer or ()),
            replace=tuple(known.replace_signer or ()),
            unsigned=known.allow_unsigned,
            yes=known.yes,
        ),
        reinstall=known.reinstall,
        allow_older=known.allow_older,
        keep=known.keep,
        yes=known.yes,
        json=known.json,
        strict=known.strict,
        paranoid=known.paranoid,
        with_tensors=known.with_tensors,
    )


def _check_values(known: argparse.Namespace) -> None:
    for flag in ("bundle", "name", "allowed_signers"):
        if getattr(known, flag) == "":
            raise UsageError(
                f"--{flag.replace('_', '-')} was followed by an empty word", remedy="--help lists every option"
            )
    if known.port is not None and not _LOWEST_PORT <= known.port <= _HIGHEST_PORT:
        raise UsageError(
            f"--port {known.port} is no TCP port", remedy=f"name one from {_LOWEST_PORT} to {_HIGHEST_PORT}"
        )
    if known.keep < 0:
        raise UsageError(f"--keep {known.keep} is no number of versions", remedy="name 0 or more")


def _root(given: Optional[str], default: str) -> Path:
    """The installation root.

    Raises:
        UsageError: it is empty, which would mean the current directory, or cannot stand in a script or a log line.
    """
    text = given if given is not None else default or layout.DEFAULT_ROOT
    where = "--root" if given is not None else "AIRBUNDLE_ROOT"
    if not text:
        raise UsageError(
            f"{where} was followed by an empty word", remedy="name a directory, as in --root /opt/airbundle"
        )
    if any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) < 0xE000 for char in text):
        raise UsageError(
            f"{where} {text!r} holds a line end, a control character or bytes that are not UTF-8",
            remedy="name a directory without them",
        )
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~name of nobody, or no home directory
        raise UsageError(f"{where} {text}: {error}", remedy="name the directory without ~") from error


def _with_dashes(words: Sequence[str]) -> list[str]:
    """The word form of an action (``status``) written as an option (``--status``)."""
    made = list(words)
    before = ""
    for index, word in enumerate(words):
        if not word.startswith("-") and before not in _WITH_VALUE:
            if word not in COMMANDS:
                raise UsageError(f"no action {word!r}{near_miss(word, COMMANDS)}", remedy="--help lists all")
            made[index] = f"--{word}"
            break
        if word.startswith("-") or before not in _WITH_SEVERAL:
            before = word
    return made


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
