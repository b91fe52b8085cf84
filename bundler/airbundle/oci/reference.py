"""Names of images: ``HOST[:PORT]/REPOSITORY[:TAG][@DIGEST]``, with Docker Hub's short forms."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from docker import auth

from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

HUB = auth.INDEX_NAME  # what docker's own client means by a name without a host
_HUB_API = str(urlsplit(auth.INDEX_URL).hostname)
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@record
class Reference:
    """A name taken apart.

    Attributes:
        host: with its port; `HUB` for Docker Hub.
        repository: path on the host.
        tag: empty when only a digest is given.
        digest: ``sha256:…``, or empty.
    """

    host: str
    repository: str
    tag: str
    digest: str

    @property
    def wanted(self) -> str:
        """What to ask the registry for: the digest when there is one, else the tag."""
        return self.digest or self.tag

    @property
    def api_host(self) -> str:
        """Where its API is."""
        return _HUB_API if self.host == HUB else self.host

    @property
    def site_name(self) -> str:
        """What the image is called on the site: its name, less what only this office knows.

        A public registry's host stays, so that the name is the one that everybody's documentation has. Docker Hub's
        is not written, as usual. Loopback hosts, and hosts with a port, mean nothing elsewhere and are left out.
        An image named by digest alone gets the digest's first digits for a tag.
        """
        local = self.host == HUB or self.host == "localhost" or ":" in self.host or self.host.startswith("127.")
        host = "" if local else f"{self.host}/"
        repository = self.repository if host else self.repository.removeprefix("library/")
        return f"{host}{repository}:{self.tag or self.digest[7:19]}"

    @property
    def qualified(self) -> str:
        """With host, and ``library/`` where that is meant: what podman and containerd need, and docker takes too."""
        return f"{self.host}/{self.repository}:{self.tag or self.digest[7:19]}"

    def __str__(self) -> str:
        tag, digest = (f":{self.tag}" if self.tag else ""), (f"@{self.digest}" if self.digest else "")
        return f"{self.host}/{self.repository}{tag}{digest}"


def parse(text: str) -> Reference:
    """Take a name apart. Raises UsageError for one that no registry can have."""
    rest, _, digest = text.partition("@")
    first, slash, _ = rest.partition("/")
    host, path = HUB, rest
    if slash and (set(first) & {".", ":"} or first == "localhost" or first != first.lower()):
        host, path = first, rest.partition("/")[2]
    repository, _, tag = path.partition(":")
    if host in (HUB, _HUB_API):
        host, repository = HUB, repository if "/" in repository else f"library/{repository}"
    if not digest and not tag:
        tag = "latest"
    if digest and not _DIGEST.fullmatch(digest):
        raise UsageError(f"image {text!r}: digest {digest!r} is not sha256: and 64 hexadecimal digits", remedy=_FORM)
    if not _REPOSITORY.fullmatch(repository) or (tag and not _TAG.fullmatch(tag)):
        raise UsageError(f"image {text!r}: not a name that a registry can have", remedy=_FORM)
    return Reference(host, repository, tag, digest)


def qualified(name: str) -> str:
    """A site's name with its host: ``a/b:1`` is ``docker.io/a/b:1``, as every engine but podman reads it by itself."""
    return parse(name).qualified


def is_same(one: str, other: str) -> bool:
    """Whether two names mean the same; text that is no name is compared as it is."""
    try:
        return qualified(one) == qualified(other)
    except UsageError:
        return one == other


_FORM = "write HOST[:PORT]/REPOSITORY:TAG or HOST[:PORT]/REPOSITORY@sha256:…; the repository in lower case"
