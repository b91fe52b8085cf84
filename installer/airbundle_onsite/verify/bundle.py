"""From a directory on the media to a manifest that may be believed.

Rules, in this order; each step uses only what the steps before it have proven:

1. What lies in the directory is listed. Nothing is followed (links), opened for writing, or executed.
2. SHA256SUMS is parsed strictly.
3. bundle.json is hashed and held against SHA256SUMS; bytes that differ are never parsed.
4. Its signatures are checked over those bytes, before they are parsed. One by a signer named by the site must be among
   them; without such names one must still be valid, a person is asked whether to accept its key, and an unsigned bundle
   passes with a warning.
5. bundle.json is decoded.
6. The other outer files are hashed against bundle.json.
7. Every part is there with its size (where more places were named for parts: in one of them), nothing unlisted is
   there, and SHA256SUMS says the same as bundle.json.

Every problem is gathered before anything is reported. The bytes of the parts are checked by `verify.parts` and
`verify.stream`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Callable, Optional

from airbundle_onsite import signature
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import decode_json, record
from airbundle_onsite.errors import AirbundleError, ContractError, IntegrityError, TrustError
from airbundle_onsite.signature import Signature
from airbundle_onsite.verify import checksums, media
from airbundle_onsite.verify.source import Directory, PartSource, lacking_pieces, pieces_of

MANIFEST_LIMIT = 32 * 1024 * 1024
SIGNATURE_LIMIT = 64 * 1024
_MAX_LINES = 50
_BUILT_WRONGLY = "use the install.sh of this very bundle; if that says the same, ask the sender for another bundle"
_BRING = "bring the medium that has it, and name its folder with --from DIR as well"
_FOLDERS = frozenset({layout.IMAGES, layout.WHEELS, layout.MODELS, layout.CONFIG, layout.LICENSES})
_CHECK_SIGNATURE = "verify.signature"


@record
class TrustedManifest:
    """A manifest whose bytes were proven; made only by this module.

    Attributes:
        manifest: what bundle.json says.
        sha256: of bundle.json.
        directory: where the bundle lies.
        signer: principal and fingerprint of every allowed signer who signed, joined by commas; fingerprints alone
            when the site named no signers; empty for an unsigned bundle.
        signature: the content of bundle.json.sig that was checked; empty for an unsigned bundle.
        signers: the valid signatures in it.
        source: where its parts are read from.
    """

    manifest: BundleManifest
    sha256: str
    directory: Path
    signer: str
    source: PartSource
    signature: bytes = b""
    signers: tuple[Signature, ...] = ()


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
class Problem:
    """Something wrong with one file. `found` is a clause such as ``found 3 bytes, needed 4``."""

    file: str
    found: str
    remedy: str = media.RECOPY

    def __str__(self) -> str:
        return f"{self.file}: {self.found}"


_NOTHING_SAID = Consent()


def trust(
    directory: Path,
    allowed_signers: Optional[bytes] = None,
    consent: Consent = _NOTHING_SAID,
    source: Optional[PartSource] = None,
) -> TrustedManifest:
    """Prove the manifest and the outer shape of the bundle in `directory`; changes nothing there.

    Args:
        directory: the bundle.
        allowed_signers: content of an allowed-signers file; None when this site has pinned nobody yet.
        consent: what a person has said.
        source: where the parts are, when they are not all in `directory`.

    Raises:
        TrustError: the signature is missing although signers are named, or wrong.
        IntegrityError: anything else is wrong; `details` has every problem of every file.
    """
    examination = _Examination(directory, allowed_signers, consent, source)
    trusted, checks = examination.result()
    failed = [check for check in checks if check.status == "fail"]
    if trusted is not None and not failed:
        return trusted
    raise _error(directory, failed)


def structure_checks(
    directory: Path,
    allowed_signers: Optional[bytes] = None,
    consent: Consent = _NOTHING_SAID,
    source: Optional[PartSource] = None,
) -> tuple[Optional[TrustedManifest], list[CheckResult]]:
    """The same as results, for a report that goes on after a failure.

    The manifest is returned whenever it is itself proven, even when parts are missing: so that every other part can
    still be checked. To install, use `trust`.
    """
    return _Examination(directory, allowed_signers, consent, source).result()


class _Examination:
    """Goes through the rules once, and keeps what each step found."""

    def __init__(
        self, directory: Path, allowed_signers: Optional[bytes], consent: Consent, source: Optional[PartSource]
    ) -> None:
        self._directory, self._allowed, self._consent = directory, allowed_signers, consent
        self._source = source
        self._checks: list[CheckResult] = []
        self._names: dict[str, str] = {}  # name -> kind, empty for a regular file
        self._signer = ""
        self._signature, self._signers = b"", tuple[Signature, ...]()

    def result(self) -> tuple[Optional[TrustedManifest], list[CheckResult]]:
        if not self._list_directory():
            return None, self._checks
        sums = self._read_checksums()
        data = self._read_manifest(sums)
        manifest = None
        if data is not None and self._check_signature(data):
            manifest = self._decode(data)
        if manifest is None:
            spread = {name for name in sums if self._source is not None and layout.PART_PATTERN.fullmatch(name)}
            needed = dict.fromkeys(name for name in sums if name not in spread)
            self._check_listing(needed, spread | _pieces_among(self._names))
            return None, self._checks
        sha256 = hashlib.sha256(data or b"").hexdigest()
        source = self._source or Directory(self._directory)
        trusted = TrustedManifest(
            manifest, sha256, self._directory, self._signer, source, self._signature, self._signers
        )
        self._check_outer(manifest)
        sizes: dict[str, Optional[int]] = dict.fromkeys(outer.name for outer in manifest.outer)
        if self._source is None:
            sizes.update((part.name, part.size) for part in manifest.payload.parts)
        self._check_listing({**sizes, layout.MANIFEST: None}, _also_allowed(manifest))
        if self._source is not None:
            self._check_parts_elsewhere(manifest, self._source)
        self._check_agreement(sums, trusted)
        return trusted, self._checks

    # --- the steps ----------------------------------------------------------------------------------------
    def _list_directory(self) -> bool:
        try:
            with os.scandir(self._directory) as entries:
                self._names = {
                    entry.name: media.kind_of(entry.stat(follow_symlinks=False).st_mode) for entry in entries
                }
        except OSError as error:
            found = f"it cannot be read as a directory: {error.strerror}"
            remedy = "name the directory that holds install.sh and bundle.json"
            self._add("verify.directory", "the bundle's directory", [Problem(str(self._directory), found, remedy)])
            return False
        if not self._names.keys() & {layout.CHECKSUMS, layout.MANIFEST, layout.SIGNATURE, layout.INSTALLER}:
            found = "it holds no bundle"
            remedy = "name the directory that holds install.sh and bundle.json"
            self._add("verify.directory", "the bundle's directory", [Problem(str(self._directory), found, remedy)])
            return False
        return True

    def _read_checksums(self) -> dict[str, str]:
        sums: dict[str, str] = {}
        try:
            sums, reasons = checksums.parse(media.read_small(self._directory / layout.CHECKSUMS, checksums.LIMIT))
        except media.Unreadable as error:
            reasons = [str(error)]
        problems = [Problem(layout.CHECKSUMS, reason) for reason in reasons]
        self._add("verify.checksums", f"{layout.CHECKSUMS} lists {len(sums)} files", problems)
        return sums

    def _read_manifest(self, sums: Mapping[str, str]) -> Optional[bytes]:
        """bundle.json's bytes when they are those SHA256SUMS names."""
        problems = []
        data: Optional[bytes] = None
        try:
            data = media.read_small(self._directory / layout.MANIFEST, MANIFEST_LIMIT)
        except media.Unreadable as error:
            problems.append(Problem(layout.MANIFEST, str(error)))
        needed = sums.get(layout.MANIFEST)
        if data is not None and needed is not None:
            found = hashlib.sha256(data).hexdigest()
            if found != needed:
                problems.append(Problem(layout.MANIFEST, _differs(found, needed, f" by {layout.CHECKSUMS}")))
        if problems:
            self._add("verify.manifest", layout.MANIFEST, problems)
            return None
        if needed is None:
            summary = f"{layout.MANIFEST} was not read: {layout.CHECKSUMS} does not vouch for it"
            self._checks.append(CheckResult("verify.manifest", "skip", summary))
            return None
        return data

    def _check_signature(self, data: bytes) -> bool:
        """Whether bundle.json may be parsed."""
        if layout.SIGNATURE not in self._names:
            return self._unsigned()
        try:
            signed = media.read_small(self._directory / layout.SIGNATURE, SIGNATURE_LIMIT)
            found = signature.examine(data, signed, self._allowed, self._consent.named)
            self._require_signers(found)
        except media.Unreadable as error:
            self._add(_CHECK_SIGNATURE, "the signature", [Problem(layout.SIGNATURE, str(error))])
            return False
        except TrustError as error:
            problems = [Problem(layout.SIGNATURE, each, error.remedy) for each in (error.summary, *error.details)]
            self._add(_CHECK_SIGNATURE, "the signature", problems)
            return False
        if self._unnamed and self._consent.ask is not None:
            self._consent.ask([each.fingerprint for each in found.others])
        self._signature, self._signers = signed, found.valid
        self._signer = ", ".join(map(str, found.others if self._unnamed else found.accepted))
        self._checks.append(self._signed(found))
        return True

    @property
    def _unnamed(self) -> bool:
        """Whether nothing says yet whose signature is wanted."""
        return self._allowed is None and not self._consent.named

    def _require_signers(self, found: signature.Findings) -> None:
        """Raise TrustError unless the signatures found are what is wanted."""
        named = tuple(signature.Signer("", each) for each in self._consent.named)
        needed = (*signature.listed_signers(self._allowed or b""), *named)
        if not (found.others if self._unnamed else found.accepted):
            raise signature.not_allowed(found, needed)
        absent = [each for each in self._consent.named if each not in {item.fingerprint for item in found.valid}]
        if absent:
            those = ", ".join(map(str, (*found.accepted, *found.others)))
            raise TrustError(
                f"signed by {those}, and not by {', '.join(absent)}, which was named",
                remedy="name the fingerprint that the sender tells you over another channel",
            )

    def _signed(self, found: signature.Findings) -> CheckResult:
        summary = f"{layout.MANIFEST} is signed by {self._signer}"
        if self._unnamed:
            remedy = "compare this fingerprint with the sender's, over another channel"
            pinned = "a key this site has not pinned" if len(found.others) == 1 else "keys this site has not pinned"
            return CheckResult(_CHECK_SIGNATURE, "warn", f"{summary}, {pinned}", remedy=remedy, evidence=found.refused)
        others = "".join(f", also signed by {each}, which is not among the allowed signers" for each in found.others)
        bad = ", but another signature is not good" if found.refused else ""
        remedy = "the signature named first is good; ask the sender about the others" if found.refused else ""
        return CheckResult(
            _CHECK_SIGNATURE,
            "warn" if found.refused else "pass",
            f"{summary}{others}{bad}",
            remedy=remedy,
            evidence=found.refused,
        )

    def _unsigned(self) -> bool:
        named = [str(each) for each in signature.listed_signers(self._allowed or b"")] + list(self._consent.named)
        wanted = self._allowed is not None or self._consent.named
        if wanted and not self._consent.unsigned:
            found = f"it is missing, needed a signature by one of this site's allowed signers: {', '.join(named)}"
            remedy = (
                f"ask the sender for the signed bundle, with its {layout.SIGNATURE}; --allow-unsigned installs this one"
            )
            self._add(_CHECK_SIGNATURE, "the signature", [Problem(layout.SIGNATURE, found, remedy)])
            return False
        accepted = "; accepted as --allow-unsigned says" if wanted else ""
        self._checks.append(
            CheckResult(
                _CHECK_SIGNATURE,
                "warn",
                f"{layout.MANIFEST} is not signed: damage is found, but not deliberate change{accepted}",
                remedy="ask the sender for a signed bundle if the way here cannot be trusted",
            )
        )
        return True

    def _decode(self, data: bytes) -> Optional[BundleManifest]:
        problems = []
        manifest: Optional[BundleManifest] = None
        try:
            manifest = decode_json(BundleManifest, data, layout.MANIFEST)
        except ContractError as error:
            problems = [Problem(layout.MANIFEST, reason, _BUILT_WRONGLY) for reason in error.problems]
        else:
            problems = [Problem(layout.MANIFEST, reason, _BUILT_WRONGLY) for reason in _contradictions(manifest)]
        title = f"{manifest.name} {manifest.version}" if manifest else layout.MANIFEST
        self._add("verify.manifest", f"{layout.MANIFEST} describes {title}", problems)
        return None if problems else manifest

    def _check_outer(self, manifest: BundleManifest) -> None:
        problems = []
        for outer in manifest.outer:
            if outer.name not in self._names:
                continue  # reported as missing by the listing
            try:
                size, found = media.hash_file(self._directory / outer.name)
            except media.Unreadable as error:
                problems.append(Problem(outer.name, str(error)))
                continue
            if size != outer.size:
                problems.append(Problem(outer.name, f"found {size} bytes, needed {outer.size}"))
            elif found != outer.sha256:
                problems.append(Problem(outer.name, _differs(found, outer.sha256)))
        self._add("verify.outer", f"the {len(manifest.outer)} files beside {layout.MANIFEST} are whole", problems)

    def _check_parts_elsewhere(self, manifest: BundleManifest, source: PartSource) -> None:
        """Of every piece of every part there is a copy somewhere, as far as names and sizes tell."""
        problems = []
        for part in manifest.payload.parts:
            lacking = lacking_pieces(source, part)
            if lacking:
                more = f", and {len(lacking) - 1} more pieces of it" if len(lacking) > 1 else ""
                what = f"{lacking[0]} is missing{more}" if source.copies(part.name) else "it is missing"
                found = f"{what}, needed {part.size} bytes; looked in {', '.join(source.places)}"
                problems.append(Problem(part.name, found, _BRING))
        count = len(manifest.payload.parts)
        self._add("verify.spread", f"all {count} parts are there, in {', '.join(source.places)}", problems)

    def _check_listing(self, needed: Mapping[str, Optional[int]], allowed: Collection[str] = ()) -> None:
        """Nothing missing, nothing unlisted, parts of the right size.

        Args:
            needed: names with sizes, where known.
            allowed: names that may be there, or not.
        """
        always = {layout.CHECKSUMS, layout.MANIFEST, layout.SIGNATURE}
        problems: list[Problem] = []
        for name, size in needed.items():
            if name in self._names:
                problems.extend(self._wrong_entry(name, size) if name not in always else ())
            elif name not in always:
                problems.append(Problem(name, "it is missing" + (f", needed {size} bytes" if size else "")))
        debris = []
        for name, kind in sorted(self._names.items()):
            if name in needed or name in always or name in allowed:
                continue
            if layout.is_debris(name):
                debris.append(name)
            else:
                found = f"found {kind or 'a file'} that the bundle does not list"
                problems.append(Problem(_shown(name), found, "move what is not listed out of the bundle's directory"))
        ignored = f"; left by an operating system and ignored: {', '.join(debris)}" if debris else ""
        self._add("verify.listing", f"all {len(needed)} listed files are there, and no others{ignored}", problems)

    def _wrong_entry(self, name: str, size: Optional[int]) -> list[Problem]:
        if self._names[name]:
            return [Problem(name, f"found {self._names[name]}, needed a file")] if size is not None else []
        if size is None:
            return []
        try:
            found = (self._directory / name).lstat().st_size
        except OSError as error:
            return [Problem(name, f"it cannot be examined: {error.strerror}")]
        if found == size:
            return []
        return [Problem(name, f"found {found} bytes, needed {size}")]

    def _check_agreement(self, sums: Mapping[str, str], trusted: TrustedManifest) -> None:
        manifest = trusted.manifest
        needed = {layout.MANIFEST: trusted.sha256}
        needed.update((outer.name, outer.sha256) for outer in manifest.outer)
        needed.update((part.name, part.sha256) for part in manifest.payload.parts)
        problems = []
        for name in sorted(needed.keys() | sums.keys()):
            if name not in sums:
                problems.append(Problem(layout.CHECKSUMS, f"{name} is not listed, but {layout.MANIFEST} lists it"))
            elif name not in needed:
                problems.append(Problem(layout.CHECKSUMS, f"{name} is listed, but {layout.MANIFEST} does not list it"))
            elif sums[name] != needed[name]:
                found = _differs(sums[name], needed[name], f" by {layout.MANIFEST}")
                problems.append(Problem(layout.CHECKSUMS, f"{name}: {found}"))
        self._add("verify.agreement", f"{layout.CHECKSUMS} and {layout.MANIFEST} say the same", problems)

    # --- results ------------------------------------------------------------------------------------------
    def _add(self, check_id: str, passed: str, problems: list[Problem]) -> None:
        if not problems:
            self._checks.append(CheckResult(check_id, "pass", passed))
            return
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        remedies = dict.fromkeys(problem.remedy for problem in problems if problem.remedy)
        self._checks.append(
            CheckResult(
                check_id,
                "fail",
                f"{problems[0]}{more}",
                remedy="; ".join(remedies),
                evidence=tuple(str(problem) for problem in problems) if len(problems) > 1 else (),
            )
        )


def _pieces_among(names: Iterable[str]) -> set[str]:
    """Those that could be pieces of parts, before the manifest can tell."""
    return {name for name in names if layout.PIECE_PATTERN.fullmatch(name)} | {layout.PIECE_CHECKSUMS}


def _also_allowed(manifest: BundleManifest) -> set[str]:
    """Names that may be in a bundle's directory, or elsewhere: its parts, and their pieces as files."""
    parts = manifest.payload.parts
    pieces = (layout.piece_name(part.name, piece.number) for part in parts for piece in pieces_of(part))
    return {*(part.name for part in parts), *pieces, layout.PIECE_CHECKSUMS}


def _contradictions(manifest: BundleManifest) -> list[str]:
    """What the manifest says that cannot be, though each record of it is well formed."""
    found = [
        f"{part.name} has one piece, yet two different SHA-256 are listed"
        for part in manifest.payload.parts
        if len(part.pieces) == 1 and part.pieces[0] != part.sha256
    ]
    # A release's directory also holds the site's own records, which no file of a payload may take the place of.
    paths = {entry.path for entry in manifest.files}
    for path in sorted(paths):
        parents = [str(parent) for parent in PurePosixPath(path).parents][:-1]
        if not parents or parents[-1] not in _FOLDERS:
            found.append(f"path {path!r:.120} is in none of the folders {', '.join(sorted(_FOLDERS))}")
        found.extend(f"{parent!r:.120} is a file and a folder" for parent in parents if parent in paths)
    return found


def _error(directory: Path, failed: list[CheckResult]) -> AirbundleError:
    """One error for everything that failed: about trust when the signature is at fault, else about integrity."""
    details = [line for check in failed for line in (check.evidence or (check.summary,))]
    shown = details[:_MAX_LINES]
    if len(details) > len(shown):
        shown.append(f"and {len(details) - len(shown)} more")
    remedy = "; ".join(dict.fromkeys(check.remedy for check in failed if check.remedy))
    count = f"{len(details)} problem{'s' if len(details) != 1 else ''}"
    if any(check.id == _CHECK_SIGNATURE for check in failed):
        return TrustError(f"{directory} cannot be trusted: {count} found", details=shown, remedy=remedy)
    return IntegrityError(f"{directory} is not a whole bundle: {count} found", details=shown, remedy=remedy)


def _differs(found: str, needed: str, by: str = "") -> str:
    return f"found SHA-256 {found[:16]}…, needed {needed[:16]}…{by}"


def _shown(name: str) -> str:
    return name if layout.is_outer_name(name) else repr(name)
