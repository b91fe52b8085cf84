"""What of the caller's environment the tests see.

Kept: how this machine reaches PyPI (PIP_INDEX_URL, PIP_CERT, proxies, pip's own configuration file). Taken away:
whatever would change a result or touch the person's own things: other PIP_* settings, everything of the model hub's
client, the docker context, airbundle's cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PREFIXES = ("AIRBUNDLE_", "DOCKER_", "HF_", "HUGGING_FACE_", "HUGGINGFACE_", "LLAMA_ARG_", "PIP_", "UV_", "XDG_CACHE_")
KEPT = frozenset(
    {
        "AIRBUNDLE_TEST_CACHE",
        "PIP_CERT",
        "PIP_CLIENT_CERT",
        "PIP_CONFIG_FILE",
        "PIP_DEFAULT_TIMEOUT",
        "PIP_INDEX_URL",
        "PIP_PROXY",
        "PIP_RETRIES",
        "PIP_TRUSTED_HOST",
    }
)
ALONE = frozenset({"PYTHONHOME", "PYTHONPATH", "PYTHONWARNINGS", "SOURCE_DATE_EPOCH", "TRANSFORMERS_OFFLINE"})
LOOPBACK = "127.0.0.1,localhost"


def settled(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """The environment that tests run in, made of the caller's; new state goes below `home`."""
    kept = {name: value for name, value in environ.items() if name in KEPT or not _dropped(name)}
    direct = ",".join(filter(None, [kept.get("NO_PROXY") or kept.get("no_proxy", ""), LOOPBACK]))
    return {
        **kept,
        "AIRBUNDLE_CACHE": str(home / "cache"),
        "DOCKER_CONFIG": str(home / "docker"),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": direct,
        "no_proxy": direct,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "REGISTRY_AUTH_FILE": str(home / "registry-auth.json"),
    }


def _dropped(name: str) -> bool:
    return name in ALONE or name.startswith(PREFIXES)
