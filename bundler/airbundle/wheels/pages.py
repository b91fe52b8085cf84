"""Reads a project's page of a package index: JSON, else HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import PurePosixPath
from urllib.parse import unquote, urljoin, urlsplit

from packaging.utils import canonicalize_name

from airbundle.download import Downloader, Refused
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
_PAGE_LIMIT = 64 << 20  # bytes; the largest pages of PyPI have a tenth of that


@record
class IndexFile:
    """A file that an index offers; `yanked` is the reason, or empty when it is not."""

    name: str
    url: str
    yanked: str = ""
    requires_python: str = ""


def project_files(downloader: Downloader, index: str, project: str) -> list[IndexFile] | None:
    """The files of a project, as the index lists them; None when it has no such project.

    Raises:
        FetchError: the index cannot be read.
    """
    url = f"{index.rstrip('/')}/{canonicalize_name(project)}/"
    try:
        data, headers = downloader.read(f"{project}'s page", url, limit=_PAGE_LIMIT, headers={"Accept": _ACCEPT})
    except Refused as error:
        if error.status in (404, 410):
            return None
        raise
    if "json" in headers.get("Content-Type", ""):
        return _of_json(data, url)
    return _of_html(data.decode("utf-8", "replace"), url)


def _of_json(data: bytes, url: str) -> list[IndexFile]:
    try:
        return [_json_file(each, url) for each in json.loads(data)["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise FetchError(f"{url}: not a page of a package index ({error})", remedy="see wheels.index") from error


def _json_file(each: Mapping[str, object], url: str) -> IndexFile:
    yanked = each.get("yanked")
    return IndexFile(
        str(each["filename"]),
        urljoin(url, str(each["url"])),
        (yanked if isinstance(yanked, str) and yanked else "no reason given") if yanked not in (None, False) else "",
        str(each.get("requires-python") or ""),
    )


def _of_html(text: str, url: str) -> list[IndexFile]:
    page = _Page()
    page.feed(text)
    return [_html_file(each, url) for each in page.links]


def _html_file(link: Mapping[str, str | None], url: str) -> IndexFile:
    target = urljoin(url, link.get("href") or "")
    yanked = (link["data-yanked"] or "no reason given") if "data-yanked" in link else ""
    name = unquote(PurePosixPath(urlsplit(target).path).name)
    return IndexFile(name, target.partition("#")[0], yanked, link.get("data-requires-python") or "")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag == "a" and dict(attrs).get("href"):
            self.links.append(dict(attrs))
