"""`airbundle keygen` and `resign`, and the option that names a key to sign with."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from airbundle import signing
from airbundle.commands.app import BUNDLE, App, with_app
from airbundle_onsite.contract import layout
from airbundle_onsite.errors import UsageError
from airbundle_onsite.system import SystemRunner

VARIABLE = "AIRBUNDLE_SIGN_KEY"
_F = TypeVar("_F", bound=Callable[..., Any])


def signing_options(command: _F) -> _F:
    """``--sign-key``, as often as wanted; without it, what the environment names."""
    return click.option(
        "--sign-key",
        "sign_keys",
        multiple=True,
        envvar=VARIABLE,
        type=click.Path(path_type=Path),
        metavar="KEY",
        help=f"Sign with this key: a private key, or a .pub whose other half an agent holds. Repeatable. (${VARIABLE})",
    )(command)


def open_keys(paths: Sequence[Path]) -> list[signing.SigningKey]:
    """The keys named, each ready to sign. Raises UsageError or TrustError for one that is not."""
    return [signing.open_key(path.expanduser(), ask=_ask, runner=SystemRunner()) for path in paths]


def signed_text(bundle: Path, signers: Sequence[str]) -> str:
    """A sentence on who signed it."""
    if signers:
        return f"Signed by {', '.join(signers)}. Tell the site this fingerprint over another channel."
    return f"Not signed. To sign it: airbundle resign {bundle} --sign-key KEY (airbundle keygen makes one)"


@click.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--comment", default="airbundle", show_default=True, help="Whose key it is, as in office@example.com.")
@click.option("--no-passphrase", is_flag=True, help="Leave the private key unencrypted, for machines that sign alone.")
@with_app
def keygen(app: App, path: Path | None, comment: str, no_passphrase: bool) -> None:
    """Make a key to sign bundles with: PATH and PATH.pub (~/.config/airbundle/key)."""
    target = signing.default_path(os.environ) if path is None else path
    pair = signing.keygen(target, comment, "" if no_passphrase else _new_passphrase())
    lines = [
        f"{pair.private}: the private key. Keep it here, and a copy where only you can get at it.",
        f"Fingerprint: {pair.fingerprint}",
        "The line for a site's allowed_signers:",
        pair.allowed_signers,
        f"To sign: airbundle build SPEC --sign-key {pair.private}",
    ]
    app.result("\n".join(lines), pair)


@click.command()
@click.argument("bundle", type=BUNDLE)
@signing_options
@click.option("--replace", is_flag=True, help="Drop the signatures of other keys.")
@with_app
def resign(app: App, bundle: Path, sign_keys: Sequence[Path], replace: bool) -> None:
    """Verify every byte of BUNDLE, then add a signature of each key to it."""
    if not sign_keys:
        raise UsageError(
            "no key to sign with was named",
            remedy=f"add --sign-key {signing.default_path(os.environ)}, or make a key with `airbundle keygen`",
        )
    signers = signing.resign(bundle, open_keys(sign_keys), replace=replace, talk=app.console)
    app.result(
        f"{bundle / layout.SIGNATURE}: signed by {', '.join(signers)}", {"bundle": str(bundle), "signed_by": signers}
    )


def _ask(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError(
            f"{prompt}: nobody can type it, standard input is no terminal",
            remedy="let an agent hold the key (ssh-add KEY) and name KEY.pub, or use a key without a passphrase",
        )
    return str(click.prompt(prompt, hide_input=True, err=True))


def _new_passphrase() -> str:
    if not sys.stdin.isatty():
        raise UsageError(
            "a new key needs a passphrase, and standard input is no terminal",
            remedy="run it in a terminal, or add --no-passphrase",
        )
    return str(click.prompt("Passphrase for the new key", hide_input=True, confirmation_prompt=True, err=True))


COMMANDS = (keygen, resign)
