"""A machine that systemd runs is switched off and on again: the service answers without anybody's doing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airbundle_onsite import cli
from parts.machine import Machine
from parts.process import wait_until
from parts.sites import release_bundle

pytestmark = [pytest.mark.real("machine"), pytest.mark.timeout(600)]

SITE = "import sys; sys.path.insert(0, '/srv/installer'); from airbundle_onsite.cli import main; sys.exit(main())"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    try:
        yield made
    finally:
        made.power_off()


def test_enabled_the_service_comes_back_by_itself_under_the_unit_s_confinement(machine: Machine) -> None:
    sources, target = Path(cli.__file__).parents[1], machine.root / "srv/installer"
    shutil.copytree(sources, target, ignore=shutil.ignore_patterns("*.pyc"))
    release_bundle(machine.root / "srv", "v1")
    tool = "/opt/air bundle/bin/airbundlectl"
    machine.boot()
    words = ("--bundle", "/srv/demo-v1", "--yes", "--port", "8123", "--root", "/opt/air bundle")
    installed = machine.run("python3", "-B", "-c", SITE, *words)
    assert installed.returncode == 0, installed
    enabled = machine.run(tool, "enable-boot")
    assert enabled.returncode == 0, enabled

    machine.power_off()
    machine.boot()
    wait_until(lambda: machine.run("systemctl", "is-active", "airbundle-demo").stdout == "active\n", 60, "the unit")
    status = machine.run(tool, "status")
    assert status.returncode == 0 and "is running and answers" in status.stdout, status
    tree = machine.run("systemctl", "status", "--no-pager", "--full", "airbundle-demo").stdout
    assert "fake_engine.py" in tree, "the engine is in the unit's control group"
    supervisor = machine.root / "opt/air bundle/run/demo@v1-service/supervisor.json"
    pid = json.loads(supervisor.read_text())["engine"]["pid"]
    facts = machine.run("cat", f"/proc/{pid}/status").stdout
    assert "NoNewPrivs:\t1" in facts and "Seccomp:\t2" in facts

    assert machine.run("systemctl", "stop", "airbundle-demo").returncode == 0
    assert "is not running" in machine.run(tool, "status").stdout
    removed = machine.run(tool, "uninstall", "--yes")
    assert removed.returncode == 0 and "unit /etc/systemd/system/airbundle-demo.service" in removed.stdout, removed
    assert not list((machine.root / "etc/systemd/system").rglob("airbundle-*"))
