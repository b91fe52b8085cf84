"""Wheels for the target: resolved by pip-tools in the Python that will run them, never steered by this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from airbundle import web
from airbundle.contract.lock import LockedFile, LockedImage, LockedWheel, WheelSettings
from airbundle.contract.spec import WheelsTable
from airbundle.download import Downloader
from airbundle.sources.base import SourceContext
from airbundle.wheels.container import image_toolbox
from airbundle.wheels.pipeline import Rim, lock_wheels
from airbundle.wheels.toolbox import ca_bundle, host_toolbox, ignored_settings
from airbundle_onsite.contract.profile import HardwareProfile

Resolved = tuple[tuple[LockedWheel, ...], WheelSettings]


def resolve_host(table: WheelsTable, python: str, profile: HardwareProfile, context: SourceContext) -> Resolved:
    """Resolve with an interpreter of this machine.

    Args:
        table: ``[wheels]`` of the spec.
        python: version wanted, as ``3.11``; empty for the one that runs this program.
        profile: caps the glibc.
        context: cache, runner and environment.

    Raises:
        FetchError: a package has no fitting wheel, or the index cannot be reached.
        UsageError: there is no such interpreter, or it does not fit the profile.
    """
    with _rim(context) as rim, host_toolbox(python, context) as toolbox:
        return lock_wheels(table, toolbox, profile, rim, rim.own_options)


def resolve_image(
    table: WheelsTable,
    image: LockedImage,
    fetch: Callable[[LockedFile], None],
    profile: HardwareProfile,
    context: SourceContext,
) -> Resolved:
    """Resolve inside the image that is shipped, in a container of the docker engine at DOCKER_HOST.

    Args:
        table: ``[wheels]`` of the spec.
        image: the image; it is loaded from the cache when the engine has not got it.
        fetch: brings one of the image's blobs into the cache.
        profile: caps the glibc, below the image's own.
        context: cache and environment.

    Raises:
        FetchError: a package has no fitting wheel, or the index or the engine cannot be reached.
        UsageError: the image has no fitting Python.
    """
    with _rim(context) as rim, image_toolbox(image, fetch, context) as toolbox:
        return lock_wheels(table, toolbox, profile, rim, _certificate(toolbox.certificate))


@contextmanager
def _rim(context: SourceContext) -> Iterator[Rim]:
    ignored = ignored_settings(context.environ)
    if ignored:
        context.talk.say(f"set here, and without effect on what is locked: {', '.join(ignored)}")
    downloader = Downloader(context.cache, web.new_session(context.environ))

    def fetch(item: LockedFile) -> Path:
        if not context.cache.has(item.sha256, item.size):
            downloader.download(item, item.origin["url"], lambda _: None)
        return context.cache.path(item.sha256)

    with host_toolbox("", context) as own:
        own_options = _certificate(ca_bundle(context.environ, system=False))
        yield Rim(own, own_options, downloader.size, fetch, context.talk)


def _certificate(path: Path | str | None) -> tuple[str, ...]:
    return ("--cert", str(path)) if path else ()
