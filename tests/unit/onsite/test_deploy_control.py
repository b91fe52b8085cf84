"""The wrapper that stays on the site."""

import subprocess

import pytest

from airbundle_onsite.deploy.control import script
from parts import need


@pytest.mark.real("shellcheck")
@pytest.mark.parametrize("root", ["/opt/airbundle", "/srv/a b'模型"])
def test_shellcheck_of_the_wrapper(tmp_path, root):
    path = tmp_path / "airbundlectl"
    path.write_text(script(root, "/usr/bin/python3"))
    done = subprocess.run([need.program("shellcheck"), str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_without_a_python_it_says_so(tmp_path):
    path = tmp_path / "airbundlectl"
    path.write_text(script(str(tmp_path), "/nowhere/python3"))
    done = subprocess.run(
        ["/bin/sh", str(path), "--status"], capture_output=True, text=True, timeout=60, env={"PATH": str(tmp_path)}
    )
    assert done.returncode == 3
    assert "needs Python 3.9 or newer" in done.stderr and "/nowhere/python3" in done.stderr
