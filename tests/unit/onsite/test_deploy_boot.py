"""Started at boot: a unit of systemd on request, which systemd finds nothing wrong with."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from airbundle_onsite.deploy.boot import UnitFacts, render_unit
from parts import need
from parts.sites import Done, Site, release_bundle, site

FACTS = UnitFacts("demo", "/opt/airbundle", "venv")
ODD = UnitFacts("demo", '/srv/a b\'模型 100% $HOME "x"', "docker", False, "model", "unix:///run/d.sock", "/bin/true")


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_what_a_unit_says() -> None:
    found = settings(render_unit(FACTS))
    assert found["ExecStart"] == '/bin/sh "/opt/airbundle/bin/airbundlectl" start --name demo'
    assert found["ExecStop"].endswith("stop --name demo")
    assert (found["Type"], found["RemainAfterExit"], found["WantedBy"]) == ("oneshot", "yes", "multi-user.target")
    assert (found["ProtectSystem"], found["ReadWritePaths"]) == ("strict", '"/opt/airbundle"')
    assert (found["NoNewPrivileges"], found["IPAddressDeny"], found["IPAddressAllow"]) == ("yes", "any", "localhost")
    assert "User" not in found and "ExecStartPre" not in found


def test_a_unit_for_containers_open_to_others_and_with_a_gpu() -> None:
    found = settings(render_unit(ODD))
    assert "ExecStop" not in found, "stopped by us, the engine would not start the container again"
    assert "docker.service" in found["After"] and found["Environment"] == '"DOCKER_HOST=unix:///run/d.sock"'
    assert "IPAddressDeny" not in found and found["User"] == "model"
    assert found["ExecStartPre"] == "-+/bin/true -u -c=0"
    assert found["ReadWritePaths"] == '"/srv/a b\'模型 100%% $HOME \\"x\\""'
    assert "$$HOME" in found["ExecStart"] and "100%%" in found["ExecStart"]


def test_nothing_that_takes_a_gpu_away() -> None:
    text = render_unit(FACTS)
    for setting in ("PrivateDevices", "ProtectClock", "DevicePolicy", "MemoryDenyWriteExecute", "ProtectKernelModules"):
        assert f"\n{setting}" not in text


@pytest.mark.real("systemd")
@pytest.mark.parametrize("facts", [FACTS, ODD], ids=["plain", "odd"])
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path, facts: UnitFacts) -> None:
    root = tmp_path / facts.root.lstrip("/")
    tool = root / "bin/airbundlectl"
    tool.parent.mkdir(parents=True)
    shutil.copy("/bin/true", tool)
    here = dataclasses.replace(facts, root=str(root), user=facts.user and "daemon", modprobe="/bin/true")
    unit = tmp_path / "airbundle-demo.service"
    unit.write_text(render_unit(here))
    done = verify(unit)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=very"))
    assert "protect system" in verify(unit).stderr, "it would say when something is wrong"


def verify(unit: Path) -> subprocess.CompletedProcess[str]:
    argv = [need.program("systemd-analyze"), "verify", "--man=no", "--recursive-errors=no", str(unit)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


# --- from the command line --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release_bundle(tmp_path_factory.mktemp("bundles"), "v1")


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A machine that systemd runs."""
    made = tmp_path / "system"
    (made / "run/systemd/system").mkdir(parents=True)
    return made


@pytest.fixture
def one(tmp_path: Path, bundle: Path) -> Iterator[Site]:
    with site(tmp_path / "root 站点") as made:
        done = made.install(bundle)
        assert done.code == 0, done
        yield made


def run(made: Site, system: Path, *words: str) -> Done:
    return made.run(*words, env={"AB_SYSTEM": str(system)})


def unit(system: Path) -> Path:
    return system / "etc/systemd/system/airbundle-demo.service"


@pytest.mark.real("systemd")
def test_enabled_shown_and_gone_with_the_last_release(one: Site, system: Path) -> None:
    engines = one.engines()
    done = run(one, system, "enable-boot", "--json")
    assert (done.code, done.json["state"], done.json["changed"]) == (0, "enabled", True), done
    link = unit(system).parent / "multi-user.target.wants/airbundle-demo.service"
    assert str(link.readlink()) == "/etc/systemd/system/airbundle-demo.service"
    checked = verify(unit(system))
    assert (checked.returncode, checked.stderr) == (0, "")
    assert one.engines() == engines, "what runs is not touched"
    assert run(one, system, "enable-boot", "--json").json.get("changed", False) is False
    status = run(one, system, "status")
    assert "at boot    it is started" in status.out and "anew" not in status.out
    unit(system).write_text(unit(system).read_text().replace("LimitNOFILE=65536", "LimitNOFILE=1"))
    assert "--enable-boot writes it anew" in run(one, system, "status").out
    gone = run(one, system, "uninstall", "--yes", "--json")
    assert gone.json["outside"] == [f"unit {unit(system)}"], gone
    assert not unit(system).exists() and not link.is_symlink()


def test_what_the_unit_starts_answers(one: Site, system: Path) -> None:
    """As after a boot: nothing runs, and what the run directory says is of another boot."""
    assert run(one, system, "enable-boot").code == 0
    assert one.run("stop").code == 0
    command = next(line for line in unit(system).read_text().splitlines() if line.startswith("ExecStart="))
    assert command == f'ExecStart=/bin/sh "{one.root}/bin/airbundlectl" start --name demo'
    state = one.root / "run/demo@v1-service/supervisor.json"
    kept = json.loads(state.read_text())
    kept.update(status="running", engine={"pid": os.getpid(), "start": 1, "boot": "another"})
    state.write_text(json.dumps(kept))
    clean = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [one.root / "bin/airbundlectl", "start", "--name", "demo"],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean,
    )
    assert done.returncode == 0, done
    assert one.answer() == "Paris, says v1"


def test_disabling_leaves_what_runs(one: Site, system: Path) -> None:
    assert "not started at boot" in run(one, system, "disable-boot").out
    assert run(one, system, "enable-boot").code == 0
    assert "is removed; what runs goes on" in run(one, system, "disable-boot").out
    assert not unit(system).exists() and one.answer() == "Paris, says v1"


def test_refused_without_systemd_and_over_somebody_else_s_unit(one: Site, system: Path, tmp_path: Path) -> None:
    done = run(one, tmp_path / "nowhere", "enable-boot")
    assert done.code == 3 and "not run by systemd" in done.err and "airbundlectl start --name demo" in done.err
    unit(system).parent.mkdir(parents=True)
    unit(system).write_text("[Service]\nExecStart=/bin/true\n")
    done = run(one, system, "enable-boot")
    assert done.code == 3 and "belongs to another installation" in done.err
    assert run(one, system, "uninstall", "--yes").code == 0
    assert unit(system).read_text() == "[Service]\nExecStart=/bin/true\n"
