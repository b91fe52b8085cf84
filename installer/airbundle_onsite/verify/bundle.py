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
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Optional

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.manifest import BundleManifest, decode_manifest
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import ContractError
from airbundle_onsite.signature import Signature
from airbundle_onsite.verify import checksums, listing, media
from airbundle_onsite.verify.problems import Problem, check_of, differs, error_of
from airbundle_onsite.verify.signed import Consent, Signed, check_signature
from airbundle_onsite.verify.source import Directory, PartSource

MANIFEST_LIMIT = 32 * 1024 * 1024
"""Most bytes of bundle.json that are read."""

_BUILT_WRONGLY = "use the install.sh of this very bundle; if that says the same, ask the sender for another bundle"
_FOLDERS = frozenset({layout.IMAGES, layout.WHEELS, layout.MODELS, layout.CONFIG, layout.LICENSES})
_NOTHING_SAID = Consent()


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
    raise error_of(directory, failed)


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
    """Goes through the rules once, and keeps the result of each step."""

    def __init__(
        self, directory: Path, allowed_signers: Optional[bytes], consent: Consent, source: Optional[PartSource]
    ) -> None:
        self._directory, self._allowed, self._consent = directory, allowed_signers, consent
        self._source = source
        self._checks: list[CheckResult] = []
        self._names: dict[str, str] = {}  # name -> kind, empty for a regular file

    def result(self) -> tuple[Optional[TrustedManifest], list[CheckResult]]:
        if not self._list_directory():
            return None, self._checks
        sums = self._read_checksums()
        data = self._read_manifest(sums)
        signed = self._check_signature(data) if data is not None else None
        manifest = self._decode(data) if data is not None and signed is not None else None
        if data is None or signed is None or manifest is None:
            self._check_names_alone(sums)
            return None, self._checks
        sha256 = hashlib.sha256(data).hexdigest()
        self._check_structure(manifest, sums, sha256)
        source = self._source or Directory(self._directory)
        trusted = TrustedManifest(
            manifest, sha256, self._directory, signed.signer, source, signed.signature, signed.signers
        )
        return trusted, self._checks

    def _list_directory(self) -> bool:
        try:
            self._names = listing.names_in(self._directory)
            found = "" if listing.looks_like_bundle(self._names) else "it holds no bundle"
        except OSError as error:
            found = f"it cannot be read as a directory: {error.strerror}"
        if found:
            remedy = f"name the directory that holds {layout.INSTALLER} and {layout.MANIFEST}"
            problem = Problem(str(self._directory), found, remedy)
            self._checks.append(check_of("verify.directory", "the bundle's directory", [problem]))
        return not found

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
                problems.append(Problem(layout.MANIFEST, differs(found, needed, f" by {layout.CHECKSUMS}")))
        if problems:
            self._add("verify.manifest", layout.MANIFEST, problems)
            return None
        if needed is None:
            summary = f"{layout.MANIFEST} was not read: {layout.CHECKSUMS} does not vouch for it"
            self._checks.append(CheckResult("verify.manifest", "skip", summary))
            return None
        return data

    def _check_signature(self, data: bytes) -> Optional[Signed]:
        file = self._directory / layout.SIGNATURE if layout.SIGNATURE in self._names else None
        signed, result = check_signature(data, file, self._allowed, self._consent)
        self._checks.append(result)
        return signed

    def _decode(self, data: bytes) -> Optional[BundleManifest]:
        problems = []
        manifest: Optional[BundleManifest] = None
        try:
            manifest = decode_manifest(data)
        except ContractError as error:
            problems = [Problem(layout.MANIFEST, reason, _BUILT_WRONGLY) for reason in error.problems]
        else:
            problems = [Problem(layout.MANIFEST, reason, _BUILT_WRONGLY) for reason in _contradictions(manifest)]
        title = f"{manifest.name} {manifest.version}" if manifest else layout.MANIFEST
        self._add("verify.manifest", f"{layout.MANIFEST} describes {title}", problems)
        return None if problems else manifest

    def _check_names_alone(self, sums: Mapping[str, str]) -> None:
        """Without a manifest: the names that SHA256SUMS lists are there; parts may be elsewhere."""
        spread = {name for name in sums if self._source is not None and layout.PART_PATTERN.fullmatch(name)}
        needed = dict.fromkeys(name for name in sums if name not in spread)
        allowed = spread | listing.pieces_among(self._names)
        self._checks.append(listing.check_listing(self._directory, self._names, needed, allowed))

    def _check_structure(self, manifest: BundleManifest, sums: Mapping[str, str], sha256: str) -> None:
        self._checks.append(listing.check_outer(self._directory, self._names, manifest))
        sizes: dict[str, Optional[int]] = dict.fromkeys(outer.name for outer in manifest.outer)
        if self._source is None:
            sizes.update((part.name, part.size) for part in manifest.payload.parts)
        needed, allowed = {**sizes, layout.MANIFEST: None}, listing.may_lie_here(manifest)
        self._checks.append(listing.check_listing(self._directory, self._names, needed, allowed))
        if self._source is not None:
            self._checks.append(listing.check_parts_elsewhere(manifest, self._source))
        self._checks.append(listing.check_agreement(sums, manifest, sha256))

    def _add(self, check_id: str, passed: str, problems: list[Problem]) -> None:
        self._checks.append(check_of(check_id, passed, problems))


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
