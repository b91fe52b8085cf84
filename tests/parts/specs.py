"""A spec that needs nothing from outside: an index on loopback, and stand-ins for the engine's wheels."""

from __future__ import annotations

from pathlib import Path

from parts import wheels
from parts.wheels import WheelIndex

_SPEC = """
[bundle]
name = "tiny"
version = "{version}"
[target]
profile = "cpu-x86_64"
[model]
source = "{source}"
served_name = "{served_name}"
{more}
[engine]
name = "llama.cpp"
[runtime]
kind = "venv"
[wheels]
requirements = ["xllamacpp"]
index = "{index}"
"""


def write_spec(
    path: Path,
    index: WheelIndex,
    model: Path | str,
    *,
    version: str = "v1",
    served_name: str = "tiny",
    more: str = "",
) -> Path:
    """Write the spec of a bundle ``tiny`` for the venv runtime, and fill the index with what it asks for.

    The engine's wheel only stands in for it: what is built can be verified and staged, but not started.

    Args:
        path: the spec's.
        model: a local one, or a source such as ``hf:owner/name``.
        more: further lines of the model's table.
    """
    for name, number in (("xllamacpp", "1.0"), ("pip", "99.0")):
        wheels.make_wheel(index.directory, name, number, tags="py3-none-any")
    source = model if isinstance(model, str) else f"local:{model}"
    path.write_text(_SPEC.format(version=version, source=source, served_name=served_name, more=more, index=index.url))
    return path
