"""What happens when a deployment fails: undo first, then one error that says what answers now."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Optional

from airbundle_onsite.deploy.transaction import Before, Undone, running_instance, undo
from airbundle_onsite.deploy.world import Site
from airbundle_onsite.errors import AirbundleError, DeployError, IntegrityError, PreflightError, TrustError
from airbundle_onsite.store.journal import Transaction
from airbundle_onsite.units import human_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)
_KEPT = (IntegrityError, TrustError, PreflightError)


@contextlib.contextmanager
def undoing(site: Site, tx: Transaction, old: Before, *, needed: int = 0) -> Iterator[None]:
    """Undo `tx` when the body fails.

    Args:
        site: where.
        tx: the transaction.
        old: what was active before.
        needed: bytes that the new release takes under the root, for the message about a full disk.

    Raises:
        DeployError: the body failed; `restored` is what answers now.
        IntegrityError, TrustError, PreflightError: as the body raised them, when nothing had been stopped.
        KeyboardInterrupt: likewise.
    """
    try:
        yield
    except BaseException as error:
        undone = _undo_guarded(site, tx, old)
        if undone.finished and isinstance(error, (AirbundleError, OSError)):
            version = tx.last.version
            raise AirbundleError(f"{version} is active and answers, but then: {_text(error)}") from error
        outcome = _outcome(undone, old)
        if isinstance(error, OSError):
            raise DeployError(
                _disk_text(site, error, needed), restored=undone.restored, remedy=_disk_remedy(error), details=[outcome]
            ) from error
        if isinstance(error, AirbundleError) and (undone.stopped or not isinstance(error, _KEPT)):
            raise DeployError(
                error.summary, restored=undone.restored, remedy=error.remedy, details=[*error.details, outcome]
            ) from error
        site.talk.say(outcome)
        raise


def _undo_guarded(site: Site, tx: Transaction, old: Before) -> Undone:
    """`undo`, whose own failure must not hide the first one: the next run tries again."""
    with site.shield():
        try:
            return undo(site, tx, drop=True)
        except (AirbundleError, OSError) as error:
            problem = f"putting things back failed: {_text(error)}; the next run tries again"
            return Undone(_still_running(site, old), problem=problem)


def _still_running(site: Site, old: Before) -> Optional[str]:
    if old.release is None or not old.running:
        return None
    try:
        return old.version if running_instance(site, old.release) is not None else None
    except AirbundleError:
        return None


def _outcome(undone: Undone, old: Before) -> str:
    if undone.problem:
        return undone.problem
    if undone.restored and undone.stopped:
        return f"{undone.restored} was started again and answers"
    if undone.restored:
        return f"{undone.restored} was never stopped and still answers"
    if old.release is not None:
        return f"{old.version} was not running before, and is as it was"
    return "nothing was running before, and nothing is now"


def _text(error: BaseException) -> str:
    return error.summary if isinstance(error, AirbundleError) else str(error)


def _disk_text(site: Site, error: OSError, needed: int) -> str:
    if error.errno not in _FULL:
        return f"the system refused: {error}"
    facts = os.statvfs(site.layout.base)
    free = human_bytes(facts.f_bavail * facts.f_frsize)
    wanted = f", {human_bytes(needed)} are needed" if needed else ""
    return f"the filesystem {_mount_point(site)} is full: {free} are free after tidying up{wanted}"


def _disk_remedy(error: OSError) -> str:
    if error.errno in _FULL:
        return "free some space (airbundlectl --prune removes old releases), or install on another disk with --root DIR"
    return ""


def _mount_point(site: Site) -> str:
    path = site.layout.base
    while not os.path.ismount(path) and path != path.parent:
        path = path.parent
    return str(path)
