"""The table of commands: complete, and nothing is imported for the others."""

import importlib
import pkgutil
import subprocess
import sys

from airbundle import commands


def test_the_table_has_every_command_of_every_module():
    listed = {
        command.name: info.name
        for info in pkgutil.iter_modules(commands.__path__)
        for command in getattr(importlib.import_module(f"{commands.__name__}.{info.name}"), "COMMANDS", ())
    }
    assert listed == commands.MODULES


def test_a_command_imports_no_other_s_libraries():
    script = (
        "import sys; from airbundle.cli import main; main(['keygen', '--help'])\n"
        "sys.exit(', '.join({'requests', 'huggingface_hub', 'jinja2', 'elftools'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "Usage: airbundle keygen" in done.stdout


def test_an_unknown_command_is_named():
    argv = [sys.executable, "-m", "airbundle", "bulid"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "No such command 'bulid'" in done.stderr
