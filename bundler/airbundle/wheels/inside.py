"""Runs in the Python that wheels are resolved for, on the host or in an image: ``inside.py MODULE [argument …]``.

It is copied beside the tools it uses, needs nothing but the standard library of Python 3.8, and is started with
``-I``, so that neither PYTHONPATH nor user packages have a say. ``facts`` in place of a module prints what this
Python is; a file called ``glibc`` beside it caps the manylinux tags, as PEP 600 provides for.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import runpy
import sys
import types
from importlib import metadata

OWN_SETTINGS = (  # what this program itself asks of pip; see `airbundle.wheels.toolbox.neutral_environment`
    "PIP_CONFIG_FILE",
    "PIP_DISABLE_PIP_VERSION_CHECK",
    "PIP_NO_INPUT",
    "PIP_ROOT_USER_ACTION",
    "PIP_TOOLS_CACHE_DIR",
)


def main() -> None:
    for name in foreign_settings(list(os.environ)):
        del os.environ[name]
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (one import less to go missing)
    sys.path[:0] = [os.path.join(here, "tools"), *glob.glob(os.path.join(here, "*.whl"))]  # noqa: PTH118, PTH207
    limit = os.path.join(here, "glibc")  # noqa: PTH118
    if os.path.exists(limit):  # noqa: PTH110
        with open(limit) as handle:  # noqa: PTH123
            cap_manylinux(tuple(int(number) for number in handle.read().split(".")))
    module = sys.argv[1]
    if module == "facts":
        sys.stdout.write(json.dumps(facts()))
        return
    sys.argv = [module, *sys.argv[2:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def foreign_settings(environ: list[str]) -> list[str]:
    """Names that steer pip and are not ours: images bring some (NVIDIA's for PyTorch PIP_CONSTRAINT)."""
    return [name for name in environ if name.startswith("PIP_") and name not in OWN_SETTINGS]


def cap_manylinux(highest: tuple[int, ...]) -> None:
    """Make installers refuse wheels for a glibc newer than `highest`, a pair of numbers."""
    limits = types.ModuleType("_manylinux")
    vars(limits)["manylinux_compatible"] = lambda major, minor, arch: (major, minor) <= highest
    sys.modules["_manylinux"] = limits


def facts() -> dict[str, str]:
    name, glibc = platform.libc_ver()
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "implementation": platform.python_implementation(),
        "machine": platform.machine(),
        "glibc": glibc if name == "glibc" else "",
        "pip": version("pip"),
        "pip_tools": version("pip-tools"),
    }


def version(project: str) -> str:
    """Of an installed project, or an empty string."""
    try:
        return metadata.version(project)
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
