"""The last word on fetched wheels: pip installs them for the target, in a dry run, from nothing but a directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from airbundle.contract.lock import LockedWheel, WheelSettings
from airbundle.sources.base import SourceContext
from airbundle.wheels.target import Target
from airbundle.wheels.toolbox import neutral_environment
from airbundle_onsite.errors import IntegrityError


def prove_installable(wheels: Sequence[LockedWheel], settings: WheelSettings, context: SourceContext) -> None:
    """Let pip say that it would install these very files on the target, with no index. Changes nothing.

    Args:
        wheels: of a lock, all of them in the cache.
        settings: what they were resolved for.
        context: cache, runner and environment.

    Raises:
        IntegrityError: pip would not; with what it said.
    """
    target = Target(settings.python, settings.platform.removeprefix("linux_"), settings.glibc)
    with TemporaryDirectory(prefix="airbundle-proof-") as name:
        directory = Path(name)
        for wheel in wheels:
            (directory / wheel.file.path).symlink_to(context.cache.path(wheel.file.sha256).absolute())
        lines = [f"{wheel.name}=={wheel.version}\n" for wheel in wheels]
        (directory / "requirements.txt").write_text("".join(lines))
        # Without hashes: the cache has proven them. Without dependencies: pip would look at them with this machine's
        # markers; the closure has been walked before.
        words = ["install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--no-index"]
        words += ["--find-links", str(directory), "--target", str(directory / "target"), "--only-binary", ":all:"]
        words += [*_tags(target), "-r", str(directory / "requirements.txt")]
        environment = {**neutral_environment(context.environ), "PATH": os.defpath, "HOME": name}
        done = context.runner.run([sys.executable, "-I", "-m", "pip", *words], timeout=600, env=environment)
    if done.code != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if "ERROR" in line]
        raise IntegrityError(
            f"pip would not install these wheels for {target}",
            details=lines[:6],
            remedy="run `airbundle lock SPEC` again; if it stays so, report it",
        )


def _tags(target: Target) -> list[str]:
    tags = target.rank()
    interpreter = f"cp{target.version[0]}{target.version[1]}"
    words = ["--python-version", target.python, "--implementation", "cp"]
    words += [word for abi in (interpreter, "abi3", "none") for word in ("--abi", abi)]
    platforms = dict.fromkeys(tag.platform for tag in tags if tag.platform != "any")
    return words + [word for platform in platforms for word in ("--platform", platform)]
