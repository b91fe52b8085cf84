"""What every command of the site takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import record
from airbundle_onsite.deploy import activate, signers
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import ExitCode
from airbundle_onsite.render import checks_text
from airbundle_onsite.units import human_seconds


@record
class Options:
    """The command line, decided.

    Attributes:
        command: a key of `COMMANDS`.
        value: the word that follows it, e.g. a version or a file.
        root: installation root.
        bundle: directory of the bundle; None for airbundlectl.
        name: bundle name, when several are installed.
        port, stage_only, reinstall, allow_older: see `install.InstallOptions`.
        trust: see `signers.TrustOptions`.
        keep: for prune: how many more versions stay.
        yes: answer every question with yes.
        json: results as JSON.
        strict: warnings give exit code 4.
        paranoid: see `install.InstallOptions`.
        with_tensors: for inventory: list the tensors of model files.
        sources: further directories and URLs that parts are taken from.
        proxy: URL of a proxy for those URLs; empty for none.
        values: all the words that follow it, where it takes several.
    """

    command: str
    value: Optional[str] = None
    root: Path = Path(layout.DEFAULT_ROOT)
    bundle: Optional[Path] = None
    name: Optional[str] = None
    port: Optional[int] = None
    trust: signers.TrustOptions = signers.TrustOptions()
    reinstall: bool = False
    allow_older: bool = False
    keep: int = 0
    yes: bool = False
    json: bool = False
    strict: bool = False
    paranoid: bool = False
    with_tensors: bool = False
    sources: tuple[str, ...] = ()
    proxy: str = ""
    values: tuple[str, ...] = ()


@record
class Report:
    """A result: `text` for people, `data` for JSON, and the exit code."""

    text: str
    data: Any
    code: ExitCode = ExitCode.OK


@record
class Command:
    """One word of the command line.

    Attributes:
        run: does it.
        help: one line.
        value: name of the word that follows; empty for none.
        optional: whether that word may be left out.
        several: whether it may be several words.
        changes: whether it changes the site, and so is logged.
    """

    run: Callable[[Site, Options], Report]
    help: str
    value: str = ""
    optional: bool = False
    changes: bool = False
    several: bool = False


def outcome_report(outcome: activate.Outcome) -> Report:
    """What came of an activation."""
    return Report(f"{outcome.answer} ({human_seconds(outcome.seconds)})", outcome)


def checks_report(checks: list[CheckResult], code: ExitCode) -> Report:
    """Checks and the exit code that they mean."""
    return Report(checks_text(checks), {"exit_code": int(code), "checks": checks}, code)
