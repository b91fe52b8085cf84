"""What engines have in common whose flags are chosen ahead, for GPUs; each adds its command and its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from airbundle.choose import EnginePlan
from airbundle.contract.lock import BundleLock
from airbundle.engines import planned
from airbundle.engines.planned import Command
from airbundle.engines.recipes import probe_tries
from airbundle.engines.trying import Try
from airbundle_onsite.contract.launch import Knob, LaunchPlan


class GpuEngine:
    """See `airbundle.engines.base.Engine` and `Chooses`, and `airbundle.engines.trying.KnowsTries`.

    Args:
        name: as specs write it; also of its data, and of the wheel or image tag that tells its version.
        command: how it is started; see `planned.Command`.
        knobs: what may be tuned at the site.
        require: raises UsageError for a lock that it cannot serve.
        files: for config/, by name.
    """

    def __init__(
        self,
        name: str,
        command: Command,
        knobs: tuple[Knob, ...],
        require: Callable[[BundleLock], None],
        files: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self._command, self._knobs, self._require, self._files = command, knobs, require, files

    def version(self, lock: BundleLock) -> str:
        """The wheel's, the spec's, or the image tag's."""
        return planned.engine_version(lock, self.name)

    def plans(self, lock: BundleLock) -> tuple[LaunchPlan, ...]:
        """A plan for what was asked for, and its neighbours. Raises UsageError when it cannot work."""
        self._require(lock)
        return planned.launch_plans(lock, self.name, self.version(lock), self._command, self._knobs)

    def choice(self, lock: BundleLock) -> EnginePlan:
        """See `airbundle.engines.base.Chooses`."""
        return planned.choice(lock, self.name, self.version(lock))

    def config_files(self, lock: BundleLock) -> Mapping[str, bytes]:
        """The same for every lock."""
        return self._files

    def rehearsal_tries(self, plan: LaunchPlan) -> Sequence[Try]:
        """See `airbundle.engines.trying`."""
        return probe_tries(self.name, plan)
