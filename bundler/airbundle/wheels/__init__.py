"""Wheels for the target: resolved in the Python that will run them, or for one that is not here; never steered by
this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from airbundle import web
from airbundle.contract.lock import BundleLock, LockedFile, LockedImage, LockedWheel, WheelSettings
from airbundle.contract.spec import WheelsTable
from airbundle.download import Downloader
from airbundle.sources.base import SourceContext
from airbundle.wheels.container import image_toolbox
from airbundle.wheels.cross import CrossResolver
from airbundle.wheels.pipeline import Rim, lock_wheels
from airbundle.wheels.proof import prove_installable
from airbundle.wheels.target import make_target
from airbundle.wheels.toolbox import ca_bundle, host_toolbox, ignored_settings
from airbundle.wheels.uv import new_uv
from airbundle.wheels.variants import check_glibc, check_variants
from airbundle_onsite.contract.profile import HardwareProfile

Resolved = tuple[tuple[LockedWheel, ...], WheelSettings]
Earlier = Mapping[str, LockedWheel]
NOTHING: Earlier = {}
Fetch = Callable[[LockedFile], Path]


def resolve_cross(
    table: WheelsTable, python: str, profile: HardwareProfile, context: SourceContext, earlier: Earlier = NOTHING
) -> Resolved:
    """Resolve for a Python and a system that are not here.

    Args:
        table: ``[wheels]`` of the spec.
        python: version wanted, as ``3.12``; empty for that of this program.
        profile: tells architecture and glibc.
        context: cache, runner and environment.
        earlier: wheels of an earlier lock by name; their versions are kept where they still do.

    Raises:
        FetchError: there is no closure, with the package at fault; or the index cannot be reached.
        UsageError: nothing can be resolved for such a target.
    """
    target = make_target(python or f"3.{sys.version_info[1]}", profile.arch, profile.min_glibc)
    downloader, fetch = _network(context)
    with new_uv(context) as uv:
        found = CrossResolver(table, target, uv, downloader, fetch, context.talk).lock(
            {name: wheel.version for name, wheel in earlier.items()}
        )
    return _checked(found, profile, fetch, context)


def resolve_host(
    table: WheelsTable, python: str, profile: HardwareProfile, context: SourceContext, earlier: Earlier = NOTHING
) -> Resolved:
    """Resolve with an interpreter of this machine.

    Args:
        table: ``[wheels]`` of the spec.
        python: version wanted, as ``3.11``; empty for the one that runs this program.
        profile: caps the glibc.
        context: cache, runner and environment.
        earlier: see `resolve_cross`.

    Raises:
        FetchError: a package has no fitting wheel, or the index cannot be reached.
        UsageError: there is no such interpreter, or it does not fit the profile.
    """
    with open_rim(context) as rim, host_toolbox(python, context) as toolbox:
        found = lock_wheels(table, toolbox, profile, rim, rim.own_options, earlier)
    return _checked(found, profile, rim.fetch, context)


def resolve_image(
    table: WheelsTable,
    image: LockedImage,
    fetch: Callable[[LockedFile], None],
    profile: HardwareProfile,
    context: SourceContext,
    earlier: Earlier = NOTHING,
) -> Resolved:
    """Resolve inside the image that is shipped, in a container of the docker engine at DOCKER_HOST.

    Args:
        table: ``[wheels]`` of the spec.
        image: the image; it is loaded from the cache when the engine has not got it.
        fetch: brings one of the image's blobs into the cache.
        profile: caps the glibc, below the image's own.
        context: cache and environment.
        earlier: see `resolve_cross`.

    Raises:
        FetchError: a package has no fitting wheel, or the index or the engine cannot be reached.
        UsageError: the image has no fitting Python.
    """
    with open_rim(context) as rim, image_toolbox(image, fetch, context) as toolbox:
        found = lock_wheels(table, toolbox, profile, rim, _certificate(toolbox.certificate), earlier)
    return _checked(found, profile, rim.fetch, context)


def _checked(found: Resolved, profile: HardwareProfile, fetch: Fetch, context: SourceContext) -> Resolved:
    wheels, settings = found
    check_variants(wheels, profile)
    check_glibc(wheels, settings.glibc, fetch, context.cache.scratch("glibc"))
    return found


def _network(context: SourceContext) -> tuple[Downloader, Fetch]:
    ignored = ignored_settings(context.environ)
    if ignored:
        context.talk.say(f"set here, and without effect on what is locked: {', '.join(ignored)}")
    downloader = Downloader(context.cache, web.new_session(context.environ))

    def fetch(item: LockedFile) -> Path:
        if item.origin["source"] == "pypi" and not context.cache.has(item.sha256, item.size):
            downloader.download(item, item.origin["url"], lambda _: None)
        return context.cache.path(item.sha256)

    return downloader, fetch


def seal(lock: BundleLock, context: SourceContext) -> None:
    """Once everything is fetched: let pip say that it would install the wheels on the target, from nothing but them.

    Wheels that were resolved in place have been through that already.

    Raises:
        IntegrityError: pip would not install them.
    """
    if lock.spec.wheels and lock.spec.wheels.resolve == "cross" and lock.wheel_settings:
        prove_installable(lock.wheels, lock.wheel_settings, context)


@contextmanager
def open_rim(context: SourceContext) -> Iterator[Rim]:
    """What the pipeline needs of the world, while it runs."""
    downloader, fetch = _network(context)
    with host_toolbox("", context) as own:
        own_options = _certificate(ca_bundle(context.environ, system=False))
        yield Rim(own, own_options, downloader.size, fetch, context.cache.add_stream, context.cache.has, context.talk)


def _certificate(path: Path | str | None) -> tuple[str, ...]:
    return ("--cert", str(path)) if path else ()
