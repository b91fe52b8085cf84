"""What each word of the site's command line does: from options to a report. Writes nothing to the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from airbundle_onsite.commands import bundle, installed
from airbundle_onsite.commands.base import Command

COMMANDS: Mapping[str, Command] = {
    "install": Command(
        bundle.run_install, "verify, preflight, install, prove and activate (the default)", changes=True
    ),
    "verify": Command(bundle.run_verify, "prove every byte and the signature, compare the host; changes nothing"),
    "repair-request": Command(bundle.run_repair_request, "read every byte; ask in FILE for what is bad", "FILE"),
    "receive": Command(
        bundle.run_receive, "take in parts (files, folders, URLs) as they come", "PART", False, True, True
    ),
    "received": Command(bundle.run_received, "what was received so far, and what is lacking"),
    "preflight": Command(bundle.run_preflight, "whether this host can take the bundle; changes nothing"),
    "dry-run": Command(bundle.run_dry, "what an installation would do; changes nothing"),
    "fingerprint": Command(bundle.run_fingerprint, "what this host is, as JSON", "FILE", optional=True),
    "inventory": Command(bundle.run_inventory, "what is installed, for a bundle that leaves it out", "FILE"),
    "stage": Command(bundle.run_stage, "install without activating", changes=True),
    "activate": Command(installed.run_activate, "make an installed version the active one", "VERSION", changes=True),
    "rollback": Command(installed.run_rollback, "go back to the version before, or to VERSION", "VERSION", True, True),
    "status": Command(installed.run_status, "what is active, and whether it answers"),
    "list": Command(installed.run_list, "every installed version"),
    "smoke": Command(installed.run_smoke, "run the smoke tests against what runs"),
    "start": Command(
        installed.run_start, "start the active version; restart it when it runs and does not answer", changes=True
    ),
    "restart": Command(installed.run_restart, "start the active version afresh, also when it answers", changes=True),
    "stop": Command(installed.run_stop, "stop the active version", changes=True),
    "enable-boot": Command(
        installed.run_enable_boot, "start the active version at boot: writes a unit of systemd", changes=True
    ),
    "disable-boot": Command(installed.run_disable_boot, "remove that unit; what runs goes on", changes=True),
    "prune": Command(installed.run_prune, "remove versions other than the active one and the one before", changes=True),
    "support-bundle": Command(installed.run_support, "logs, journal and facts in one file, without secrets", "FILE"),
    "uninstall": Command(installed.run_uninstall, "remove VERSION, or all versions", "VERSION", True, True),
}
