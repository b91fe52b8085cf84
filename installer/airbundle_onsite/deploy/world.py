"""What a deployment may use: the injected world, and the site it works on."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from airbundle_onsite import probes, runtimes
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.layout import StoreLayout
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import PreflightError
from airbundle_onsite.runtimes.base import Environment, Runtime
from airbundle_onsite.store.journal import Hook, Journal, no_hook
from airbundle_onsite.store.lock import Lock
from airbundle_onsite.store.releases import Store
from airbundle_onsite.system import Clock, Runner, Silent, SystemClock, SystemRunner, Talk

ROOT_REMEDY = "run this as root, or choose a directory of your own with --root DIR"
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT)

TakeFingerprint = Callable[[Mapping[str, Path], Runner, Clock, Mapping[str, str]], Fingerprint]


def take_fingerprint(
    paths: Mapping[str, Path], runner: Runner, clock: Clock, environ: Mapping[str, str]
) -> Fingerprint:
    """The host's real fingerprint."""
    return probes.take(paths, runner=runner, clock=clock, environ=environ)


@record
class World:
    """Everything outside this program, replaceable in tests.

    Attributes:
        runner, clock: see `airbundle_onsite.system`.
        environ: environment variables.
        make_runtime: gives the runtime of a kind.
        take_fingerprint: reads the host.
        hook: called around every line of the journal.
        system_root: where the machine's own ``/`` is seen, for units of systemd.
    """

    runner: Runner
    clock: Clock
    environ: Mapping[str, str]
    make_runtime: Callable[[str, Environment], Runtime] = runtimes.create
    take_fingerprint: TakeFingerprint = take_fingerprint
    hook: Hook = no_hook
    system_root: Path = Path("/")


def real_world(environ: Mapping[str, str]) -> World:
    """This machine."""
    return World(SystemRunner(), SystemClock(), environ)


def root_problem(root: Path) -> str:
    """Why nothing could be installed under `root`, made or not yet made; empty when nothing speaks against it."""
    place = root
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return f"{place} is no directory"
    if not os.access(place, os.W_OK | os.X_OK):  # also on a filesystem mounted read-only, where root may not either
        read_only = os.statvfs(place).f_flag & os.ST_RDONLY
        return f"{place} is on a read-only filesystem" if read_only else f"this user may not write in {place}"
    return ""


class Site:
    """One installation root, with what is needed to work on it.

    Args:
        root: the installation root; links in it are resolved, so that nothing below follows one.
        world: see `World`.
        talk: where remarks and progress go.
        confirm: asks the person a yes-no question.
        shield: while it is entered, Ctrl-C and the like wait: for putting things back.
        on_locked: called with the store's layout when the lock has been taken.
    """

    def __init__(
        self,
        root: Path,
        world: World,
        *,
        talk: Talk = Silent(),  # noqa: B008  stateless
        confirm: Callable[[str], bool] = lambda question: True,
        shield: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        on_locked: Callable[[StoreLayout], None] = lambda layout: None,
    ) -> None:
        self.layout = StoreLayout(str(root.expanduser().resolve()))
        self.world = world
        self.talk = talk
        self.confirm = confirm
        self.shield = shield
        self.store = Store(self.layout)
        self.journal = Journal(self.layout.journal, world.clock, world.hook)
        self._on_locked = on_locked
        self._runtimes: dict[str, Runtime] = {}

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the root's lock.

        Raises:
            BusyError: another process holds it.
            PreflightError: the root cannot be written.
        """
        lock = Lock(self.layout.lock)
        try:
            lock.__enter__()
        except OSError as error:
            reason = root_problem(self.layout.base)
            if not reason and error.errno not in _REFUSED:
                raise
            raise PreflightError(
                f"{self.layout.root} cannot be written: {reason or error.strerror}", remedy=ROOT_REMEDY
            ) from error
        try:
            self._on_locked(self.layout)
            yield
        finally:
            lock.__exit__(None, None, None)

    def runtime(self, kind: str) -> Runtime:
        """The runtime of that kind, made once."""
        if kind not in self._runtimes:
            environment = Environment(
                root=self.layout.base,
                runner=self.world.runner,
                clock=self.world.clock,
                talk=self.talk,
                docker_host=self.world.environ.get("DOCKER_HOST", ""),
            )
            self._runtimes[kind] = self.world.make_runtime(kind, environment)
        return self._runtimes[kind]

    def fingerprint(self, **paths: Path) -> Fingerprint:
        """Read the host; `paths` are further places whose disks matter, by purpose."""
        world = self.world
        wanted = {"root": self.layout.base, **paths}
        return world.take_fingerprint(wanted, world.runner, world.clock, world.environ)

    def now(self) -> int:
        """Seconds since the epoch."""
        return int(self.world.clock.now())
