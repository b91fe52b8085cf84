"""What pip may know of the environment, and which Python is taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airbundle.wheels import inside
from airbundle.wheels.toolbox import (
    PythonFacts,
    ca_bundle,
    facts_of,
    find_python,
    ignored_settings,
    neutral_environment,
)
from airbundle_onsite.errors import UsageError
from airbundle_onsite.system import Completed, SystemRunner

OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Saying:
    """A toolbox that answers every command alike."""

    place, directory = "in a test", "/nowhere"

    def __init__(self, code: int, stdout: str, stderr: str = "") -> None:
        self._answer = Completed((), code, stdout, stderr)

    def run(self, words: object, *, timeout: float = 0) -> Completed:
        return self._answer

    def write(self, name: str, data: bytes) -> None:
        raise AssertionError("nothing to write")


def test_only_proxies_and_netrc_pass() -> None:
    environ = {
        "PIP_INDEX_URL": "https://elsewhere/simple",
        "PIP_FIND_LINKS": "/opt/wheels",
        "PYTHONPATH": "/x",
        "https_proxy": "http://proxy:1",
        "NO_PROXY": "host",
        "NETRC": "/n",
    }
    passed = neutral_environment(environ.get)
    assert passed["PIP_CONFIG_FILE"] == "/dev/null"
    assert (passed["https_proxy"], passed["NO_PROXY"], passed["NETRC"]) == ("http://proxy:1", "host", "/n")
    assert not {"PIP_INDEX_URL", "PIP_FIND_LINKS", "PYTHONPATH"} & set(passed)
    assert ignored_settings(environ.get) == ["PIP_INDEX_URL", "PIP_FIND_LINKS"]


def test_the_ca_file_is_the_first_that_is_named(tmp_path: Path) -> None:
    first, second = tmp_path / "a.pem", tmp_path / "b.pem"
    first.touch()
    second.touch()
    environ = {"REQUESTS_CA_BUNDLE": str(second), "SSL_CERT_FILE": str(first)}
    assert ca_bundle(environ.get, system=True) == second
    assert ca_bundle({**environ, "PIP_CERT": str(first)}.get, system=True) == first
    assert ca_bundle({}.get, system=False) is None
    assert ca_bundle({"PIP_CERT": str(tmp_path / "gone")}.get, system=True) is None


def test_a_dead_shim_is_passed_over(tmp_path: Path) -> None:
    other = "3.99"
    for name, text in (("shims", "#!/bin/sh\nexit 127\n"), ("real", "#!/bin/sh\nexit 0\n")):
        (tmp_path / name).mkdir()
        path = tmp_path / name / f"python{other}"
        path.write_text(text)
        path.chmod(0o755)
    path = f"{tmp_path}/shims:{tmp_path}/real"
    assert find_python(other, path, SystemRunner()) == f"{tmp_path}/real/python{other}"
    with pytest.raises(UsageError, match=r"no working python3\.99"):
        find_python(other, f"{tmp_path}/shims", SystemRunner())


def test_this_python_needs_no_path() -> None:
    assert find_python("", "", SystemRunner()) == find_python(OWN, "", SystemRunner()) == sys.executable


def test_facts_of_a_real_python(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", inside.__file__, "facts"], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    facts = facts_of(Saying(0, done.stdout))
    assert (facts.python, facts.implementation) == (OWN, "CPython")
    assert facts.pip_tools


def test_settings_of_pip_that_an_image_brings_have_no_effect(tmp_path: Path) -> None:
    """An image's own environment is there in the container, whatever is handed in."""
    (tmp_path / "pip.conf").write_text("[global]\nno-binary = :all:\n")
    image = {"PIP_CONSTRAINT": "/etc/pip/constraint.txt", "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    argv = [sys.executable, "-I", inside.__file__, "pip", "config", "list"]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, env={**image, **neutral_environment({}.get)}, check=True
    )
    assert "disable-pip-version-check" in done.stdout
    assert "constraint" not in done.stdout and "no-binary" not in done.stdout


@pytest.mark.parametrize(
    ("toolbox", "said"),
    [
        (Saying(127, "", "python3: not found"), "does not run"),
        (Saying(0, '{"python":"3.8","implementation":"CPython","machine":"x","glibc":"2"}'), r"3\.8, needed"),
        (Saying(0, '{"python":"3.11","implementation":"PyPy","machine":"x","glibc":"2"}'), "PyPy"),
    ],
)
def test_a_python_that_will_not_do(toolbox: Saying, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        facts_of(toolbox)


def test_the_cap_on_glibc_is_what_installers_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_manylinux", None)
    inside.cap_manylinux((2, 28))
    allowed = sys.modules["_manylinux"].manylinux_compatible
    assert [allowed(2, minor, "x86_64") for minor in (17, 28, 31)] == [True, True, False]


def test_facts_are_a_record() -> None:
    assert PythonFacts("3.11", "CPython", "x86_64", "2.36").pip == ""
