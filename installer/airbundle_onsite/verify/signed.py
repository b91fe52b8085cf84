"""Whether the signatures over bundle.json are what this site wants; asked before a byte of it is parsed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional

from airbundle_onsite import signature
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import TrustError
from airbundle_onsite.signature import Findings, Signature
from airbundle_onsite.verify import media
from airbundle_onsite.verify.problems import SIGNATURE_CHECK, Problem, check_of

SIGNATURE_LIMIT = 64 * 1024
"""Most bytes of bundle.json.sig that are read."""


@record
class Consent:
    """What a person has said about signers, beside the site's allowed-signers file.

    Attributes:
        named: fingerprints of keys whose valid signatures are asked for.
        unsigned: whether a missing signature is accepted although the site has named its signers.
        ask: when the site has named nobody, it is called with the fingerprints of the valid signatures, before the
            manifest is parsed; it raises an AirbundleError to refuse them. None: they pass with a warning.
    """

    named: tuple[str, ...] = ()
    unsigned: bool = False
    ask: Optional[Callable[[Sequence[str]], None]] = None


@record
class Signed:
    """What stands behind a manifest.

    Attributes:
        signature: the content of bundle.json.sig that was checked; empty for an unsigned bundle.
        signers: the valid signatures in it.
        signer: principal and fingerprint of every allowed signer among them, joined by commas; fingerprints alone
            when the site named no signers; empty for an unsigned bundle.
    """

    signature: bytes = b""
    signers: tuple[Signature, ...] = ()
    signer: str = ""


def check_signature(
    data: bytes, file: Optional[Path], allowed: Optional[bytes], consent: Consent
) -> tuple[Optional[Signed], CheckResult]:
    """Hold the signatures over `data` against what the site and the person want.

    Args:
        data: bundle.json's bytes.
        file: the signature's; None when the bundle has none.
        allowed: content of an allowed-signers file; None when this site has pinned nobody yet.
        consent: what a person has said.

    Returns:
        What stands behind the bytes, None when they may not be parsed; and the result for a report.

    Raises:
        AirbundleError: the person who was asked refused.
    """
    if file is None:
        return _unsigned(allowed, consent)
    unnamed = allowed is None and not consent.named
    try:
        content = media.read_small(file, SIGNATURE_LIMIT)
        found = signature.examine(data, content, allowed, consent.named)
        _require_signers(found, allowed, consent, unnamed)
    except media.Unreadable as error:
        return None, _failed([Problem(layout.SIGNATURE, str(error))])
    except TrustError as error:
        return None, _failed(
            [Problem(layout.SIGNATURE, each, error.remedy) for each in (error.summary, *error.details)]
        )
    if unnamed and consent.ask is not None:
        consent.ask([each.fingerprint for each in found.others])
    signer = ", ".join(map(str, found.others if unnamed else found.accepted))
    result = _by_strangers(signer, found) if unnamed else _by_allowed(signer, found)
    return Signed(content, found.valid, signer), result


def _require_signers(found: Findings, allowed: Optional[bytes], consent: Consent, unnamed: bool) -> None:
    """Raise TrustError unless the signatures found are what is wanted."""
    named = tuple(signature.Signer("", each) for each in consent.named)
    needed = (*signature.listed_signers(allowed or b""), *named)
    if not (found.others if unnamed else found.accepted):
        raise signature.not_allowed(found, needed)
    absent = [each for each in consent.named if each not in {item.fingerprint for item in found.valid}]
    if absent:
        those = ", ".join(map(str, (*found.accepted, *found.others)))
        raise TrustError(
            f"signed by {those}, and not by {', '.join(absent)}, which was named",
            remedy="name the fingerprint that the sender tells you over another channel",
        )


def _by_strangers(signer: str, found: Findings) -> CheckResult:
    pinned = "a key this site has not pinned" if len(found.others) == 1 else "keys this site has not pinned"
    return CheckResult(
        SIGNATURE_CHECK,
        "warn",
        f"{layout.MANIFEST} is signed by {signer}, {pinned}",
        remedy="compare this fingerprint with the sender's, over another channel",
        evidence=found.refused,
    )


def _by_allowed(signer: str, found: Findings) -> CheckResult:
    others = "".join(f", also signed by {each}, which is not among the allowed signers" for each in found.others)
    bad = ", but another signature is not good" if found.refused else ""
    return CheckResult(
        SIGNATURE_CHECK,
        "warn" if found.refused else "pass",
        f"{layout.MANIFEST} is signed by {signer}{others}{bad}",
        remedy="the signature named first is good; ask the sender about the others" if found.refused else "",
        evidence=found.refused,
    )


def _unsigned(allowed: Optional[bytes], consent: Consent) -> tuple[Optional[Signed], CheckResult]:
    named = [str(each) for each in signature.listed_signers(allowed or b"")] + list(consent.named)
    wanted = allowed is not None or consent.named
    if wanted and not consent.unsigned:
        found = f"it is missing, needed a signature by one of this site's allowed signers: {', '.join(named)}"
        remedy = (
            f"ask the sender for the signed bundle, with its {layout.SIGNATURE}; --allow-unsigned installs this one"
        )
        return None, _failed([Problem(layout.SIGNATURE, found, remedy)])
    accepted = "; accepted as --allow-unsigned says" if wanted else ""
    return Signed(), CheckResult(
        SIGNATURE_CHECK,
        "warn",
        f"{layout.MANIFEST} is not signed: damage is found, but not deliberate change{accepted}",
        remedy="ask the sender for a signed bundle if the way here cannot be trusted",
    )


def _failed(problems: Sequence[Problem]) -> CheckResult:
    return check_of(SIGNATURE_CHECK, "the signature", problems)
