"""The words of a command line, and what they mean."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, Optional

from airbundle_onsite.commands import COMMANDS
from airbundle_onsite.commands.base import Command, Options
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.record import near_miss
from airbundle_onsite.deploy.signers import TrustOptions
from airbundle_onsite.errors import UsageError

_ALONE = object()  # an action without the word that may follow it; an empty word, from an unset variable, is an error
_LOWEST_PORT, _HIGHEST_PORT = 1, 65535
_EPILOG = """\
exit codes: 0 fine, 1 unexpected, 2 usage, 3 preflight or fingerprint failed, 4 only warnings (with --strict),
5 integrity, 6 signature or trust, 7 deploy failed and the previous release answers, 8 deploy failed or nothing
running, 9 busy, 10 nothing could be fetched"""

_VALUED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "--bundle": {"metavar": "DIR", "help": "the bundle (install.sh passes its own directory)"},
        "--from": {
            "dest": "sources",
            "metavar": "PLACE",
            "action": "append",
            "help": "take parts from this folder or http(s) URL as well; repeatable",
        },
        "--patch": {
            "dest": "sources",
            "metavar": "DIR",
            "action": "append",
            "help": "the folder that airbundle repair made",
        },
        "--proxy": {"metavar": "URL", "help": "reach URLs through this proxy (default: none)"},
        "--root": {"metavar": "DIR", "help": f"where to install (default $AIRBUNDLE_ROOT or {layout.DEFAULT_ROOT})"},
        "--name": {"help": "which bundle, when several are installed"},
        "--port": {"type": int, "metavar": "N", "help": "port of the service"},
        "--allowed-signers": {"metavar": "FILE", "help": "accept only these signers"},
        "--accept-signer": {
            "metavar": "SHA256:…",
            "action": "append",
            "help": "accept this key from now on, beside others",
        },
        "--replace-signer": {
            "metavar": "SHA256:…",
            "action": "append",
            "help": "accept this key from now on, instead of others",
        },
        "--keep": {"type": int, "default": 0, "metavar": "N", "help": "prune: keep N more versions"},
    }
)
"""Options that a word follows, as argparse takes them."""

_FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "--allow-unsigned": "accept a bundle without a signature",
        "--reinstall": "replace the same version, whatever it holds",
        "--allow-older": "accept a bundle older than one installed before",
        "--yes": "do not ask",
        "--json": "results as JSON on standard output",
        "--strict": "exit code 4 when there are warnings",
        "--paranoid": "hash also what was proven when it was installed",
        "--with-tensors": "inventory: read the models, list their tensors",
        "--version": "print the version of this program",
    }
)
_WITH_SEVERAL = frozenset(f"--{name}" for name, command in COMMANDS.items() if command.several)
_WITH_VALUE = frozenset(_VALUED) | {f"--{name}" for name, command in COMMANDS.items() if command.value}


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
        actions.add_argument(f"--{name}", dest=f"do_{name}", help=command.help, **_form_of(command))
    options = parser.add_argument_group("options")
    for flag, form in _VALUED.items():
        options.add_argument(flag, **form)
    for flag, said in _FLAGS.items():
        options.add_argument(flag, action="store_true", help=said)
    options.add_argument("-h", "--help", action="store_true", help="print this")
    return parser


def _form_of(command: Command) -> dict[str, Any]:
    """What argparse is told of the words that follow an action."""
    if not command.value:
        return {"action": "store_true"}
    if command.several:
        return {"nargs": "+", "metavar": command.value}
    if command.optional:
        return {"nargs": "?", "const": _ALONE, "metavar": command.value}
    return {"metavar": command.value}


def help_text(*, started_by_installer: bool = False) -> str:
    """Every action and option; it speaks of install.sh where that was typed."""
    return _parser(started_by_installer=started_by_installer).format_help().rstrip()


def parse(words: Sequence[str], default_root: str = "") -> Options:
    """Decide what a command line means.

    Args:
        words: without the program's name.
        default_root: from the environment; empty for none.

    Raises:
        UsageError: naming the word that is wrong.
    """
    known, extra = _parser().parse_known_args(_with_dashes(words))
    command, following = _action(known, extra)
    _check_values(known)
    return Options(
        command=command,
        value=following[0] if following else None,
        values=following,
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


def _action(known: argparse.Namespace, extra: list[str]) -> tuple[str, tuple[str, ...]]:
    """The action, and the words that follow it.

    Raises:
        UsageError: there is none or more than one, something follows that should not, or a word was not understood.
    """
    values = vars(known)
    chosen = [name for name in COMMANDS if values[f"do_{name}"] not in (None, False)]
    if len(extra) == 1 and len(chosen) == 1 and values[f"do_{chosen[0]}"] is _ALONE and not extra[0].startswith("-"):
        values[f"do_{chosen[0]}"] = extra.pop()  # as in: uninstall --yes VERSION
    if extra:
        options = [*(f"--{name}" for name in COMMANDS), *_VALUED, *_FLAGS]
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
    return command, tuple(value) if isinstance(value, list) else (value,) if isinstance(value, str) else ()


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
