"""`airbundle repair`, `split`, `join`, `push` and `pull`: a finished bundle on its way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from airbundle import push as registry
from airbundle import repair as repairs
from airbundle import splitting
from airbundle.commands.app import BUNDLE, App, read_file, size, with_app
from airbundle.commands.signing import open_keys, signing_options
from airbundle_onsite.contract import layout
from airbundle_onsite.errors import UsageError
from airbundle_onsite.units import human_bytes

_OUTPUT = click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default=Path("dist"))
_INSECURE = click.option("--insecure", is_flag=True, help="Speak http to a registry that is not on this machine.")


@click.command("repair")
@click.argument("bundle", type=BUNDLE)
@click.option("--request", required=True, type=click.Path(path_type=Path), help="What the site wrote.")
@_OUTPUT
@with_app
def repair_command(app: App, bundle: Path, request: Path, output: Path) -> None:
    """Answer a site's --repair-request: only the pieces of BUNDLE that went bad on the way."""
    made = repairs.repair(bundle, repairs.read_request(request), output, app.console)
    app.result(repairs.repair_text(made), made)


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option("--part-size", type=size, required=True, help="Bytes per part, as 56MB.")
@click.option("--allowed-signers", type=click.Path(path_type=Path), help="Who must have signed BUNDLE.")
@_OUTPUT
@signing_options
@with_app
def split(
    app: App, bundle: Path, part_size: int, allowed_signers: Path | None, output: Path, sign_keys: Sequence[Path]
) -> None:
    """Write BUNDLE once more, with parts of another size; it has to be signed anew."""
    _repart(app, bundle, output, part_size, allowed_signers, sign_keys)


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option("--tar", "tar_file", type=click.Path(path_type=Path), help="One tar file of the whole directory instead.")
@click.option("--allowed-signers", type=click.Path(path_type=Path), help="Who must have signed BUNDLE.")
@_OUTPUT
@signing_options
@with_app
def join(
    app: App,
    bundle: Path,
    tar_file: Path | None,
    allowed_signers: Path | None,
    output: Path,
    sign_keys: Sequence[Path],
) -> None:
    """Write BUNDLE once more with a single part, or, with --tar, as it is into one file."""
    if tar_file is None:
        _repart(app, bundle, output, 0, allowed_signers, sign_keys)
        return
    count = splitting.write_tar(bundle, tar_file, app.console)
    app.result(tar_text(tar_file, count), {"file": str(tar_file), "size": count})


def tar_text(file: Path, count: int) -> str:
    """What a tar file is good for."""
    lines = [f"{file}: {human_bytes(count)}. It holds the bundle as it is, signature and all: tar -xf {file.name}"]
    if count > layout.FAT32_LIMIT:
        lines.append(f"FAT32 holds at most {layout.FAT32_LIMIT} bytes in a file: format the stick as exFAT or ext4.")
    return "\n".join(lines)


def _repart(
    app: App,
    bundle: Path,
    output: Path,
    part_size: int,
    allowed_signers: Path | None,
    sign_keys: Sequence[Path],
) -> None:
    keys = open_keys(sign_keys)
    allowed = None if allowed_signers is None else read_file(allowed_signers)
    made = splitting.repart(bundle, output, part_size=part_size, keys=keys, talk=app.console, allowed_signers=allowed)
    lines = [f"{made.directory}: {made.parts} part(s) of at most {human_bytes(made.largest)}; the payload is the same."]
    if made.signed_by:
        lines.append(f"Signed by {', '.join(made.signed_by)}.")
    elif made.was_signed:
        lines.append(
            "It is NOT signed: the old signature is about the old list of parts, and a site that has pinned its signer "
            f"will refuse it. To sign it: airbundle resign {made.directory} --sign-key KEY"
        )
    lines.append("A site that has this version installed already takes it for other content: --reinstall.")
    if made.left_out:
        lines.append(
            f"{', '.join(made.left_out)} listed the old parts and was left out; the old bundle's tells the rest."
        )
    app.result("\n".join(lines), made)


@click.command("push")
@click.argument("bundle", type=BUNDLE)
@click.argument("target", metavar="registry:HOST/REPOSITORY:TAG")
@_INSECURE
@with_app
def push_command(app: App, bundle: Path, target: str, insecure: bool) -> None:
    """Push BUNDLE to a container registry; what is there already is not sent again."""
    made = registry.push(bundle, target, environ=os.environ.get, talk=app.console, insecure=insecure)
    known = f", {human_bytes(made.known)} were there" if made.known else ""
    text = f"{made.reference}: {human_bytes(made.sent)} sent{known}\n{made.digest}\nairbundle pull {target} fetches it."
    app.result(text, made)


@click.command("pull")
@click.argument("source", metavar="registry:HOST/REPOSITORY:TAG")
@_OUTPUT
@_INSECURE
@with_app
def pull_command(app: App, source: str, output: Path, insecure: bool) -> None:
    """Fetch a bundle that `airbundle push` put into a registry; every byte is checked."""
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is no directory", remedy="choose another with -o")
    made = registry.pull(source, output, environ=os.environ.get, talk=app.console, insecure=insecure)
    app.result(f"{made.directory}: {human_bytes(made.size)}, {made.digest}", made)


COMMANDS = (repair_command, split, join, push_command, pull_command)
