"""Whose bundles this site accepts, and how it comes to accept somebody.

Looked at in this order: the file given with ``--allowed-signers``, the machine's own, and the one under the root, which
this module writes when a person has accepted a key. The first that exists decides alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import record
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import TrustError, UsageError
from airbundle_onsite.signature import NAMESPACE, is_fingerprint, listed_signers
from airbundle_onsite.store.disk import make_directory, write_atomic
from airbundle_onsite.verify import bundle as verify
from airbundle_onsite.verify.bundle import TrustedManifest
from airbundle_onsite.verify.signed import Consent
from airbundle_onsite.verify.source import PartSource

_PINNED = "allowed_signers"
_COMPARE = "compare it with the sender's, over another channel (`airbundle keygen` and `airbundle inspect` show it)"


@record
class TrustOptions:
    """What was said about signers when this run was started.

    Attributes:
        allowed: a file that names the accepted signers; None looks at the usual places.
        accept: fingerprints of keys to accept from now on, beside those accepted already.
        replace: fingerprints of keys to accept from now on, instead of those accepted already.
        unsigned: take a bundle without a signature although signers are named.
        yes: nobody is asked. That is no answer to whether a key is the right one.
    """

    allowed: Optional[Path] = None
    accept: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()
    unsigned: bool = False
    yes: bool = False


def pinned_file(site: Site) -> Path:
    """Where the signers that a person accepted are written down; it may not be there."""
    return site.layout.base / _PINNED


class Signers:
    """The signers of one site, for one run.

    Args:
        site: where the pinned ones are.
        options: what was said.
        machine: the file of the whole machine, which its administrator keeps.

    Raises:
        UsageError: the options contradict each other or the files there are.
        TrustError: a file that names signers is there and cannot be read.
    """

    def __init__(self, site: Site, options: TrustOptions, machine: Path = Path(layout.TRUST_FILE)) -> None:
        self._site, self._options, self._machine = site, options, machine
        self._own = pinned_file(site)
        self._path, self._allowed = self._find()
        self._named = (*options.accept, *options.replace)
        self._asked = False
        self._check_words()

    def trust(self, directory: Path, source: Optional[PartSource] = None) -> TrustedManifest:
        """Prove a bundle's manifest; whoever is at the keyboard is asked about a key that this site meets first.

        Args:
            directory: the bundle's.
            source: where its parts are, when they are not all there.

        Raises:
            TrustError: the signature is missing, wrong, by somebody else, or the person did not accept its key.
            IntegrityError: anything else is wrong.
        """
        return verify.trust(directory, self._allowed, self._consent(asking=True), source)

    def look(self, directory: Path, source: Optional[PartSource] = None) -> TrustedManifest:
        """The same without a question, for what changes nothing: an unknown key is a warning then."""
        return verify.trust(directory, self._allowed, self._consent(), source)

    def checks(
        self, directory: Path, source: Optional[PartSource] = None
    ) -> tuple[Optional[TrustedManifest], list[CheckResult]]:
        """The same as `look`, as results."""
        return verify.structure_checks(directory, self._allowed, self._consent(), source)

    def remember(self, trusted: TrustedManifest) -> None:
        """Write down whom the person has accepted, if anybody; an unsigned bundle pins nobody."""
        if self._path is not None and self._path != self._own:
            if self._path == self._options.allowed and not self._own.exists():
                self._write(self._allowed or b"")
            return
        wanted = None if self._asked else set(self._named)
        new = [
            f'airbundle namespaces="{NAMESPACE}" {each.public_line}'
            for each in trusted.signers
            if wanted is None or each.fingerprint in wanted
        ]
        before = [] if self._options.replace else (self._allowed or b"").decode("utf-8", "replace").splitlines()
        lines = [*before, *(line for line in new if line not in before)]
        if new and lines != before:
            self._write("".join(f"{line}\n" for line in lines).encode())

    # --- where they are -----------------------------------------------------------------------------------
    def _find(self) -> tuple[Optional[Path], Optional[bytes]]:
        """The file that decides, and its content; None for no file."""
        given = self._options.allowed
        if given is not None:
            try:
                content = given.read_bytes()
            except OSError as error:
                raise UsageError(
                    f"--allowed-signers {given}: {error.strerror}", remedy="name a file that can be read"
                ) from error
            if not listed_signers(content):
                raise UsageError(
                    f"--allowed-signers {given}: no line of it names a key that may sign bundles",
                    remedy=f'a line is NAME namespaces="{NAMESPACE}" ssh-ed25519 KEY: `airbundle keygen` printed it '
                    "(a .pub file has no NAME)",
                )
            return given, content
        for path in (self._machine, self._own):
            try:
                return path, path.read_bytes()
            except (FileNotFoundError, NotADirectoryError) as error:
                if path.is_symlink():
                    raise _unreadable(path, error) from error
            except OSError as error:
                raise _unreadable(path, error) from error
        return None, None

    def _check_words(self) -> None:
        for option, words in (("--accept-signer", self._options.accept), ("--replace-signer", self._options.replace)):
            for each in words:
                if not is_fingerprint(each):
                    raise UsageError(
                        f"{option} {each!r} is no fingerprint",
                        remedy="name one as ssh-keygen -l prints it: SHA256: and 43 characters",
                    )
        if self._options.accept and self._options.replace:
            raise UsageError("--accept-signer and --replace-signer at once", remedy="name every key with the second")
        if self._named and self._path not in (None, self._own):
            raise UsageError(
                f"the signers this site accepts are named by {self._path}, which this program does not change",
                remedy="add or remove a line there: `airbundle keygen` printed the one of the new key",
            )

    # --- consent ------------------------------------------------------------------------------------------
    def _consent(self, *, asking: bool = False) -> Consent:
        return Consent(self._named, self._options.unsigned, self._ask if asking else None)

    def _ask(self, found: Sequence[str]) -> None:
        """Have the person compare the fingerprints. Raises TrustError unless they are accepted."""
        those, key = ", ".join(found), "this key" if len(found) == 1 else "these keys"
        words = " ".join(f"--accept-signer {each}" for each in found)
        self._site.talk.say(f"{layout.MANIFEST} is signed by {those}. No signer was accepted on this site before.")
        if self._options.yes:
            raise TrustError(
                f"signed by {those}, and this site has accepted no signer yet: --yes does not say that {key} may be",
                remedy=f"{_COMPARE}; when both agree, add {words}",
            )
        try:
            accepted = self._site.confirm(f"Is that the sender's fingerprint, and accept only {key} from now on?")
        except UsageError as error:
            raise TrustError(
                f"signed by {those}, this site has accepted no signer yet, and nobody is here to be asked",
                remedy=f"{_COMPARE}; when both agree, add {words}",
            ) from error
        if not accepted:
            raise TrustError(
                f"signed by {those}, which was not accepted: nothing was changed",
                remedy="ask the sender which key signs; a bundle by somebody else must not be installed",
            )
        self._asked = True

    def _write(self, content: bytes) -> None:
        make_directory(self._own.parent, self._own.parent)
        write_atomic(self._own, content)
        those = ", ".join(each.fingerprint for each in listed_signers(content)) or "nobody"
        self._site.talk.say(f"From now on only bundles signed by {those} are accepted: {self._own}")


def _unreadable(path: Path, error: OSError) -> TrustError:
    return TrustError(
        f"{path} names whose bundles this site accepts, and cannot be read: {error.strerror}",
        remedy="run this as a user who may read it, or correct that file",
    )
