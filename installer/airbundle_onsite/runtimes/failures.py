"""What a runtime raises when an engine cannot be installed, started or stopped."""

from __future__ import annotations

from airbundle_onsite.errors import AirbundleError, ExitCode


class EngineError(AirbundleError):
    """An engine could not be installed, started or stopped; `details` is the end of its log."""

    exit_code = ExitCode.NOTHING_RUNNING
