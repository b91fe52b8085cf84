"""What a rehearsal asks an engine written in Python: data/rehearsal/ENGINE.toml, a recipe for each range of versions.

Names are written ``module:attribute.attribute``. Where several are listed, the first that a version has is taken, since
engines move their functions about more often than they change them.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from airbundle.engines.facts import DATA
from airbundle.engines.trying import Try
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.record import decode, record

PROBE = "airbundle_probe.py"
"""The program that follows a recipe; it lies in templates/rehearse/."""
_CODE_FLAGS = ("--trust-remote-code", "--trust_remote_code")
_SECONDS = 900  # importing some gigabytes from a cold disk


@record
class Device:
    """An attribute that the engine leaves empty where it finds no device, and what it gets then."""

    object: str
    attribute: str
    value: str


@record
class Settle:
    """One of the engine's own checks of what its parser made; each gets what the one before gave.

    Attributes:
        id: of the check. does: what it is, for a person.
        call: function that takes the value; or method: of the value.
        keep: whether its result is what the next check gets.
        refusals: classes of exceptions by which the engine refuses values; any other one leaves the check unknown, as
            what it needed may be the GPU. None: every exception is a refusal.
    """

    id: str
    does: str
    call: tuple[str, ...] = ()
    method: str = ""
    keep: bool = True
    refusals: tuple[str, ...] = ()


@record
class Parser:
    """How the engine reads its command line.

    Attributes:
        kind: library of the parser.
        after: word of the launch plan after which its flags begin.
        make: the parser's class (argparse), or the command (click).
        add: functions that give the parser its flags.
        rename: attributes of the result that its next reader knows by other names.
        settle: what is done with the result.
    """

    kind: Literal["argparse", "click"]
    after: str
    make: tuple[str, ...]
    add: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    settle: tuple[Settle, ...] = ()


@record
class ModelNames:
    """How the engine reads a model.

    Attributes:
        config: function from a directory to its configuration.
        architectures: the names that the engine knows, or a function that returns them.
        fallback: the architecture by which it serves others with transformers' own code; empty without one.
        code: mapping from architectures to their code; load: method of its values that imports it.
        tokenizer: function from a directory to a tokenizer.
    """

    config: tuple[str, ...]
    architectures: tuple[str, ...]
    tokenizer: tuple[str, ...]
    fallback: str = ""
    code: tuple[str, ...] = ()
    load: str = ""


@record
class Recipe:
    """For a range of versions.

    Attributes:
        versions: specifier; empty for all. The first that takes a version counts, and the first of all for one that
            is not known.
        modules: what the server imports when it starts.
        sure: how the names are known: seen running, read in the released files, or neither.
    """

    versions: str
    modules: tuple[str, ...]
    parser: Parser
    model: ModelNames
    device: tuple[Device, ...] = ()
    sure: Literal["measured", "read", "unverified"] = "unverified"


@record
class _Recipes:
    recipe: tuple[Recipe, ...]


@cache
def recipe(engine: str, version: str) -> Recipe | None:
    """The recipe of an engine's version; None when there is none."""
    path = DATA / "rehearsal" / f"{engine}.toml"
    if not path.exists():
        return None
    found = decode(_Recipes, tomllib.loads(path.read_text(encoding="utf-8")), path.name).recipe
    try:
        exact = Version(version)
    except InvalidVersion:
        return found[0]
    return next((each for each in found if SpecifierSet(each.versions).contains(exact, prereleases=True)), None)


def probe_tries(engine: str, plan: LaunchPlan) -> tuple[Try, ...]:
    """Imports, flags and model of a plan, asked of the bundled engine; nothing for a version without a recipe."""
    found = recipe(engine, plan.engine_version)
    if found is None:
        return ()
    title = f"{engine} {plan.engine_version}".strip()
    name = f"{engine}.json"
    files = {name: json.dumps(dataclasses.asdict(found))}
    words = ("{python}", f"{{probes}}/{PROBE}", f"{{probes}}/{name}")
    code = tuple(flag for flag in _CODE_FLAGS[:1] if set(_CODE_FLAGS) & set(plan.argv))
    return (
        Try("imports", (*words, "imports"), f"{title} imports", "probe", _SECONDS, files=files),
        Try(
            f"flags.{plan.id}",
            (*words, "flags", *plan.argv),
            f"{title} itself takes the flags of plan {plan.id}",
            "probe",
            _SECONDS,
            files=files,
            model="thin",
        ),
        Try(
            f"model.{plan.model}",
            (*words, "model", "{model}", *code),
            f"{title} knows the model {plan.model}, as far as a CPU tells",
            "probe",
            _SECONDS,
            files=files,
            model="thin",
        ),
    )
