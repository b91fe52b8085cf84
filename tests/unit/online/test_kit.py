"""The probe that is carried to a site: small, whole, and the same each time; it runs as a site would run it."""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from airbundle import kit, profiles
from airbundle.cli import cli
from airbundle_onsite.contract.fingerprint import Fingerprint
from airbundle_onsite.contract.record import decode_json
from airbundle_onsite.errors import UsageError
from parts import need

SHELL = shutil.which("sh") or "/bin/sh"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("kits") / "Kit 中文"
    kit.write_kit(place)
    return place


@pytest.fixture
def carried(made: Path, tmp_path: Path) -> Path:
    """A copy as on a stick: without execute bits."""
    there = tmp_path / "stick" / made.name
    shutil.copytree(made, there)
    for path in there.iterdir():
        path.chmod(0o644)
    return there


def probe(directory: Path, *words: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    given = {
        "PATH": os.environ["PATH"],
        "AIRBUNDLE_PYTHON": sys.executable,
        "DOCKER_HOST": "unix:///nowhere",
        **environ,
    }
    return subprocess.run(
        [SHELL, str(directory / "probe.sh"), *words], cwd=cwd, env=given, capture_output=True, text=True, timeout=120
    )


def test_it_is_small_and_the_same_each_time(made: Path) -> None:
    files = {path.name: path.read_bytes() for path in made.iterdir()}
    assert files == kit.kit_files()
    assert sum(map(len, files.values())) < 200_000
    for name, data in files.items():
        if name != "probe.pyz":
            assert b"{{" not in data and b"{%" not in data and b"\r" not in data, name


def test_it_holds_what_it_imports_and_little_else() -> None:
    """Every module in it is loaded, and nothing that it lacks is asked for."""
    names = set(zipfile.ZipFile(io.BytesIO(kit.probe_pyz())).namelist())
    modules = {name[:-3].replace("/", ".").removesuffix(".__init__") for name in names if name.endswith(".py")}
    code = (
        "import sys, json, airbundle_onsite.probe, airbundle_onsite._vendor.pynvml; print(json.dumps([*sys.modules]))"
    )
    root = Path(kit.__file__).parents[2] / "installer"
    words = [sys.executable, "-S", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, env={"PYTHONPATH": str(root)}, timeout=60)
    loaded = {name for name in json.loads(done.stdout) if name.startswith("airbundle_onsite")}
    assert modules - {"__main__"} == loaded


def test_its_entry_can_be_parsed_by_old_pythons() -> None:
    archive = zipfile.ZipFile(io.BytesIO(kit.probe_pyz()))
    tree = ast.parse(archive.read("__main__.py"), feature_version=(3, 4))
    assert not any(isinstance(node, ast.JoinedStr) for node in ast.walk(tree))


def test_it_writes_a_fingerprint_that_the_office_can_match(carried: Path) -> None:
    done = probe(carried)
    assert done.returncode == 0, done.stderr
    path = carried / kit.FINGERPRINT
    assert f"Written: {path}" in done.stdout and done.stderr == ""
    taken = decode_json(Fingerprint, path.read_bytes(), "fingerprint")
    assert {"root", "bundle", "temp"} <= {disk.purpose for disk in taken.disks}
    matched = CliRunner().invoke(cli, ["profiles", "match", str(path), "--json"])
    assert matched.exit_code == 0 and json.loads(matched.output)[0]["profile"]
    assert profiles.from_fingerprint(taken).arch == os.uname().machine
    assert sorted(each.name for each in carried.iterdir()) == sorted([*kit.kit_files(), kit.FINGERPRINT])


def test_a_file_can_be_named_and_json_asked_for(carried: Path, tmp_path: Path) -> None:
    done = probe(carried, "--output", str(tmp_path / "site.json"), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == json.loads((tmp_path / "site.json").read_text())
    assert not (carried / kit.FINGERPRINT).exists()


@pytest.mark.parametrize("place", ["nowhere/site.json", ""])
def test_a_place_that_cannot_be_written_is_named(carried: Path, tmp_path: Path, place: str) -> None:
    done = probe(carried, "--output", str(tmp_path / place) if place else "")
    assert done.returncode == 2 and "What to do" in done.stderr
    assert (str(tmp_path / place) in done.stderr) == bool(place)


def test_from_read_only_media_it_writes_where_it_was_started(tmp_path: Path) -> None:
    from airbundle_onsite import probe as program

    blocked = tmp_path / "medium"
    blocked.write_text("no directory, so that not even root can write below it")
    places = list(program.places(None, str(blocked)))
    assert places[0] == blocked / kit.FINGERPRINT and places[-1].parent == Path("/tmp")
    kept = program.save(b"{}", iter([blocked / "f.json", tmp_path / "f.json"]))
    assert kept == tmp_path / "f.json" and kept.read_bytes() == b"{}"
    with pytest.raises(UsageError) as caught:
        program.save(b"{}", iter([blocked / "f.json", tmp_path]))
    assert len(caught.value.details) == 2 and sorted(each.name for each in tmp_path.iterdir()) == ["f.json", "medium"]


def test_windows_line_endings_are_found(carried: Path) -> None:
    script = carried / "probe.sh"
    script.write_bytes(script.read_bytes().replace(b"\n", b"\r\n"))
    done = probe(carried)
    assert done.returncode == 5 and "CR LF" in done.stderr and "binary mode" in done.stderr


def test_damage_and_a_missing_part_are_named(carried: Path) -> None:
    program = carried / "probe.pyz"
    program.write_bytes(program.read_bytes()[:-1] + b"\xff")
    damaged = probe(carried)
    assert damaged.returncode == 5 and "probe.pyz is damaged" in damaged.stderr
    program.unlink()
    missing = probe(carried)
    assert missing.returncode == 5 and "no probe.pyz" in missing.stderr


def test_without_a_python_it_says_what_is_missing_and_what_to_send_instead(carried: Path, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "python3"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\nprintf 3.6.8\n")
    old.chmod(0o755)
    done = probe(carried, AIRBUNDLE_PYTHON=str(old))
    assert done.returncode == 3 and "is 3.6.8" in done.stderr
    assert "needed Python 3.9 or newer" in done.stderr and "nvidia-smi -q" in done.stderr
    absent = probe(carried, AIRBUNDLE_PYTHON="/nowhere/python3")
    assert absent.returncode == 3 and "/nowhere/python3 does not run" in absent.stderr


@pytest.mark.real("shellcheck")
def test_shellcheck(made: Path) -> None:
    words = [need.program("shellcheck"), str(made / "probe.sh")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_an_older_kit_is_replaced_and_other_files_are_not_touched(tmp_path: Path) -> None:
    kit.write_kit(tmp_path / "k")
    (tmp_path / "k" / kit.FINGERPRINT).write_text("{}")
    (tmp_path / "k" / "probe.sh").write_text("old")
    kit.write_kit(tmp_path / "k")
    assert (tmp_path / "k" / "probe.sh").read_bytes() == kit.kit_files()["probe.sh"]
    (tmp_path / "k" / "thesis.odt").write_text("x")
    with pytest.raises(UsageError, match=r"thesis\.odt"):
        kit.write_kit(tmp_path / "k")
    with pytest.raises(UsageError, match="no directory"):
        kit.write_kit(tmp_path / "k" / "thesis.odt")


def test_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["kit", "-o", str(tmp_path / "out"), "--json"])
    facts: dict[str, Any] = json.loads(done.output)
    assert done.exit_code == 0 and set(facts["files"]) == set(kit.kit_files())
    assert (tmp_path / "out" / "probe.sh").stat().st_mode & 0o111
