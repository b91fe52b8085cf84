"""What every runtime fills into a launch plan, and the environment every engine gets."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path

from airbundle_onsite.contract.launch import LaunchPlan, fill

OFFLINE: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "PIP_NO_INDEX": "1",
}
"""Set inside the engine's own environment: on the host they would never reach a container."""

PROXIES = tuple(
    name
    for word in ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
    for name in (word, word.upper())
)
"""Variables that an engine must not inherit: a proxy is a way out, and breaks its calls to itself."""


def fill_plan(plan: LaunchPlan, values: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The plan's command and its environment with the offline variables under it, placeholders replaced."""
    argv = [fill(word, values) for word in plan.argv]
    env = {**OFFLINE, **{name: fill(value, values) for name, value in plan.env.items()}}
    return argv, env


def physical_cores(sysfs: Path = Path("/sys/devices/system/cpu")) -> int:
    """Physical cores among the CPUs this process may use; at least 1. Hyper-threads of a core count once."""
    allowed = sorted(os.sched_getaffinity(0))
    cores = set()
    for cpu in allowed:
        try:
            siblings = (sysfs / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text(encoding="ascii").strip()
        except OSError:
            siblings = str(cpu)
        cores.add(siblings)
    return max(1, len(cores))


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is seen by this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
