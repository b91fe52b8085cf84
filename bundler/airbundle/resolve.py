"""From a spec to a lock: every tag becomes a digest, every branch a commit, every requirement a hashed wheel."""

from __future__ import annotations

import dataclasses
import functools
import platform
import re
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from packaging.utils import canonicalize_name

from airbundle import __version__, profiles, sources, wheels
from airbundle.contract.lock import LOCK_VERSION, BundleLock, LockedFile, LockedImage
from airbundle.contract.spec import BundleSpec
from airbundle.lockfile import spec_digest
from airbundle.lockmodels import lock_model, wanted_models
from airbundle.modelchecks import use_of
from airbundle.modelproof import complete
from airbundle.sources.base import SourceContext
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import decode_json, encode, near_miss
from airbundle_onsite.errors import AirbundleError, FetchError, UsageError
from airbundle_onsite.system import Clock

T = TypeVar("T")
ResolveWheels = Callable[
    [BundleSpec, HardwareProfile, LockedImage | None, SourceContext, wheels.Earlier], wheels.Resolved
]
Upgrade = Collection[str] | None
NONE: Upgrade = ()
_PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
_DEFAULT_VERSION = re.compile(r"(\d{8})-v(\d+)")


def lock(
    spec: BundleSpec,
    *,
    context: SourceContext,
    clock: Clock,
    previous: BundleLock | None = None,
    upgrade: Upgrade = NONE,
    resolve_wheels: ResolveWheels | None = None,
) -> BundleLock:
    """Pin everything a spec names.

    Args:
        spec: what is wanted.
        context: cache, runner, environment, and the directory that relative paths start from.
        clock: for the lock's time, unless SOURCE_DATE_EPOCH is set, and for the default version.
        previous: the lock that was there; its wheels' versions are kept where they still do, and when nothing
            changed it is returned as it is.
        upgrade: wheels that may move to other versions, by name; None for all.
        resolve_wheels: in place of `airbundle.wheels`.

    Raises:
        FetchError: listing everything that could not be resolved.
        UsageError: the spec asks for what does not exist, or does not go together.
    """
    gather = _Gather()
    target = gather.of(lambda: _profile(spec, context))
    wanted = wanted_models(spec, use_of(spec))
    models = [gather.of(functools.partial(lock_model, each, context)) for each in wanted]
    image = gather.of(lambda: _lock_image(spec, target, context))
    found = None
    if spec.wheels is not None and target is not None and (image is not None or spec.wheels.resolve != "image"):
        resolver, earlier = resolve_wheels or _lock_wheels, kept_wheels(previous, upgrade)
        found = gather.of(lambda: resolver(spec, target, image, context, earlier))
    gather.end()
    assert target is not None
    now = int(context.environ("SOURCE_DATE_EPOCH") or clock.now())
    made = BundleLock(
        lock_version=LOCK_VERSION,
        created=now,
        tool=f"airbundle {__version__}",
        spec=spec,
        spec_sha256=spec_digest(spec),
        profile=target,
        models=tuple(model for model in models if model is not None),
        wheels=found[0] if found else (),
        wheel_settings=found[1] if found else None,
        images=(image,) if image else (),
    )
    return _settle(complete(made, context), now, previous)


def kept_wheels(previous: BundleLock | None, upgrade: Upgrade) -> wheels.Earlier:
    """The earlier lock's wheels, by name, less those that may move.

    Raises:
        UsageError: one that may move is not in the earlier lock.
    """
    earlier = {wheel.name: wheel for wheel in previous.wheels} if previous else {}
    if upgrade is None:
        return {}
    wanted = {canonicalize_name(name) for name in upgrade}
    unknown = sorted(wanted - set(earlier))
    if unknown:
        raise UsageError(
            f"--upgrade {unknown[0]}: no wheel of that name in the lock{near_miss(unknown[0], earlier)}",
            remedy="name one of the lock's wheels; `airbundle plan SPEC` lists them",
        )
    return {name: wheel for name, wheel in earlier.items() if name not in wanted}


class _Gather:
    """Runs steps and keeps what went wrong, so that one failure does not hide another."""

    def __init__(self) -> None:
        self._errors: list[AirbundleError] = []

    def of(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except AirbundleError as error:
            self._errors.append(error)
            return None

    def end(self) -> None:
        """Raise what there is: one error as it is, several as one."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            kind = UsageError if all(isinstance(error, UsageError) for error in self._errors) else FetchError
            raise kind(
                f"{len(self._errors)} things of this spec could not be resolved",
                details=[line for error in self._errors for line in error.lines()],
                remedy="cure each and run the same command again",
            )


def _profile(spec: BundleSpec, context: SourceContext) -> HardwareProfile:
    if spec.target.profile:
        return _with_driver(profiles.load(spec.target.profile), spec.target.driver)
    path = context.base / spec.target.fingerprint
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"target.fingerprint: {path}: {error.strerror}", remedy="`bash install.sh --fingerprint FILE` writes one"
        ) from error
    return profiles.from_fingerprint(decode_json(Fingerprint, data, str(path)))


def _with_driver(profile: HardwareProfile, driver: str) -> HardwareProfile:
    """The profile with the site's own driver as the lowest; without GPUs or a driver, as it is."""
    if not driver or profile.gpu is None:
        return profile
    return dataclasses.replace(profile, gpu=dataclasses.replace(profile.gpu, min_driver=driver))


def _lock_image(spec: BundleSpec, target: HardwareProfile | None, context: SourceContext) -> LockedImage | None:
    if spec.image is None:
        return None
    wanted = spec.image.platform or _PLATFORMS.get(target.arch if target else platform.machine(), "linux/amd64")
    return sources.create(spec.image.scheme, context).lock_image(spec.image, wanted)


def _lock_wheels(
    spec: BundleSpec,
    target: HardwareProfile,
    image: LockedImage | None,
    context: SourceContext,
    earlier: wheels.Earlier,
) -> wheels.Resolved:
    assert spec.wheels is not None
    if spec.wheels.resolve == "cross":
        return wheels.resolve_cross(spec.wheels, spec.target.python, target, context, earlier)
    if spec.wheels.resolve == "host" or image is None:
        return wheels.resolve_host(spec.wheels, spec.target.python, target, context, earlier)

    def fetch(item: LockedFile) -> None:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            context.talk.progress(f"fetching {image.name}", done, item.size)

        sources.create(item.origin["source"], context).fetch(item, advance)

    return wheels.resolve_image(spec.wheels, image, fetch, target, context, earlier)


def _settle(made: BundleLock, now: int, previous: BundleLock | None) -> BundleLock:
    """Give the lock its version and time: the previous ones when it pins the same things, else new ones."""
    if previous is not None and _pins(previous) == _pins(made):
        same = dataclasses.replace(made, created=previous.created, spec=previous.spec)
        return previous if encode(same) == encode(dataclasses.replace(previous, tool=made.tool)) else same
    if made.spec.bundle.version:
        return made
    day, number = time.strftime("%Y%m%d", time.gmtime(now)), 1
    earlier = _DEFAULT_VERSION.fullmatch(previous.spec.bundle.version) if previous else None
    if earlier and earlier[1] == day:
        number = int(earlier[2]) + 1
    bundle = dataclasses.replace(made.spec.bundle, version=f"{day}-v{number}")
    return dataclasses.replace(made, spec=dataclasses.replace(made.spec, bundle=bundle))


def _pins(made: BundleLock) -> bytes:
    """The lock without what does not change the bundle's contents: time, tool, version, remarks."""
    bundle = dataclasses.replace(made.spec.bundle, version="")
    return encode(
        dataclasses.replace(
            made,
            created=0,
            tool="",
            spec=dataclasses.replace(made.spec, bundle=bundle),
            models=tuple(dataclasses.replace(model, facts={}) for model in made.models),
            wheel_settings=None,
        )
    )
