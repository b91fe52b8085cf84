"""Runs the site's command line as it is, able to die or to stand still around any line of the journal.

KILL_AT and HOLD_AT name a moment: ``staged`` right after that line was made durable, ``before staged`` right before.
AB_UMASK is the umask to run under, AB_SYSTEM the directory that stands for the machine's ``/``.
"""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from airbundle_onsite.cli import main
from airbundle_onsite.deploy.world import real_world


def hook(moment: str) -> None:
    if moment == os.environ.get("KILL_AT"):
        os.kill(os.getpid(), signal.SIGKILL)
    if moment == os.environ.get("HOLD_AT"):
        sys.stderr.write("HOLDING\n")
        sys.stderr.flush()
        time.sleep(60)


if __name__ == "__main__":
    os.umask(int(os.environ.get("AB_UMASK", "022"), 8))
    system = Path(os.environ.get("AB_SYSTEM", "/"))
    sys.exit(main(world=replace(real_world(dict(os.environ)), hook=hook, system_root=system)))
