"""From single contacts to attempts: joined by target and process, and held against what is allowed by name."""

from __future__ import annotations

import dataclasses
import fnmatch
import time
import tomllib
from collections.abc import Iterable, Sequence
from importlib import resources

from airbundle.rehearse.report import Attempt
from airbundle.rehearse.sinkhole import Contact
from airbundle_onsite.contract.record import decode, record

_DETAILS = 6  # different ones kept of each attempt
_REVERSE = (".in-addr.arpa", ".ip6.arpa")
GENERAL_CURE = (
    "point the engine at what the bundle holds (a local path, an offline variable in the launch plan's environment), "
    'or, if it is harmless, allow it by name in the spec: [rehearsal] allow = ["{target}"]'
)


@record
class HostCure:
    """What is known of a host that engines ask for: a pattern, what it is for, and what keeps an engine from asking."""

    host: str
    what: str
    cure: str
    source: str


@record
class _Cures:
    cures: tuple[HostCure, ...]


def known_cures() -> tuple[HostCure, ...]:
    """The table of hosts that engines are known to ask for."""
    text = resources.files("airbundle.rehearse").joinpath("data/hosts.toml").read_text("utf-8")
    return decode(_Cures, tomllib.loads(text), "hosts.toml").cures


def cures(attempts: Iterable[Attempt]) -> list[str]:
    """What to do about these attempts, without repeating anything."""
    table, found = known_cures(), []
    targets = list(dict.fromkeys(attempt.target for attempt in attempts))
    for target in targets:
        known = next((each for each in table if matches(each.host, target)), None)
        if known is not None:
            found.append(f"{target} ({known.what}): {known.cure}")
    if targets:
        found.append(GENERAL_CURE.format(target=targets[0]))
    return list(dict.fromkeys(found))


def matches(rule: str, target: str) -> bool:
    """Whether a rule (a name or address; ``*`` stands for any characters) covers a target, ignoring case."""
    return fnmatch.fnmatchcase(target.lower().rstrip("."), rule.lower().rstrip("."))


def gather(
    contacts: Sequence[tuple[Contact, str]],
    *,
    began: float,
    allow: Sequence[str],
    own_names: Iterable[str],
    shorten: str = "",
) -> tuple[Attempt, ...]:
    """Join contacts to attempts, in order of time.

    Args:
        contacts: each with the id of the step during which it came.
        began: seconds since the epoch.
        allow: names and addresses that may be asked for; see `matches`.
        own_names: names of the machine or container itself.
        shorten: a directory that is left out of command lines, with its final slash.
    """
    made: dict[tuple[str, tuple[str, ...]], Attempt] = {}
    for contact, step in sorted(contacts, key=lambda item: item[0].at):
        target = contact.name or contact.address
        argv = tuple(word.replace(shorten, "") if shorten else word for word in contact.asker.argv)
        key = (target, argv)
        if key not in made:
            made[key] = Attempt(
                target=target,
                kind="name" if contact.name else "address",
                count=0,
                at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(contact.at)),
                seconds=round(contact.at - began, 3),
                step=step,
                pid=contact.asker.pid,
                argv=argv,
                allowed=_reason(target, allow, own_names),
            )
        made[key] = _joined(made[key], contact)
    return tuple(made.values())


def _joined(attempt: Attempt, contact: Contact) -> Attempt:
    ports = attempt.ports if contact.kind == "dns" else (*attempt.ports, _port(contact))
    details = (*attempt.details, contact.detail) if contact.detail else attempt.details
    return dataclasses.replace(
        attempt,
        count=attempt.count + 1,
        ports=tuple(dict.fromkeys(ports)),
        details=tuple(dict.fromkeys(details))[:_DETAILS],
    )


def _port(contact: Contact) -> str:
    return "ping" if contact.kind == "echo" else f"{contact.port}/{contact.kind}"


def _reason(target: str, allow: Sequence[str], own_names: Iterable[str]) -> str:
    """Why a target fails nothing; empty when it does."""
    rule = next((rule for rule in allow if matches(rule, target)), None)
    if rule is not None:
        return f"allowed by {rule!r}"
    lowered = target.lower()
    if lowered in {name.lower() for name in own_names if name}:
        return "its own name"
    if lowered == "localhost" or lowered.endswith(".localhost"):
        return "this machine"
    if lowered.endswith(_REVERSE):
        return "a question for the name of an address"
    return ""
