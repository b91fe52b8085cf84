"""A careless engineer at the office: wrong words, odd files, two builds at once. JSON stays JSON; nothing is lost."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from airbundle.spec import starter_spec
from airbundle_onsite.errors import ExitCode
from parts import models
from parts.journeys import airbundle
from parts.specs import write_spec
from parts.wheels import WheelIndex


@pytest.fixture
def spec(tmp_path: Path, wheel_index: WheelIndex) -> Path:
    """A spec that needs nothing from outside."""
    model = tmp_path / "m.gguf"
    model.symlink_to(models.smollm2_gguf())
    return write_spec(tmp_path / "tiny.toml", wheel_index, model)


WORDS = (
    ("bogus",),
    ("build",),
    ("build", "nofile.toml"),
    ("build", "nofile.toml", "--part-size", "4XB"),
    ("build", "nofile.toml", "--part-size", "1"),
    ("plan", "/dev/null"),
    ("init", "/nonexistent/x.toml"),
    ("profiles", "show", "nope"),
    ("profiles", "match", "/dev/null"),
    ("cache", "prune", "--keep", "/nonexistent"),
)


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_usage_errors_are_json_too(words: tuple[str, ...]) -> None:
    said = airbundle(*words, "--json")
    assert said.code == ExitCode.USAGE, said
    assert said.json["exit_code"] == ExitCode.USAGE
    assert said.json["remedy"]
    assert "Traceback" not in said.err


def test_profiles_as_json() -> None:
    assert "cpu-x86_64" in [each["id"] for each in airbundle("profiles", "--json").check().json]


FILES = {
    "a byte that is no UTF-8": (b"# caf\xe9\n", "found the byte 0xe9, needed UTF-8", "save the file as UTF-8"),
    "UTF-16": ("[bundle]\n".encode("utf-16"), "needed UTF-8", "save the file as UTF-8"),
    "no TOML": (b"x = [", "not valid TOML", "correct that place"),
    "a zero byte": (b"\0", "not valid TOML", "correct that place"),
    "deep": (b"x = " + b"[" * 100_000, "not valid TOML", "correct that place"),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_are_no_specs(tmp_path: Path, case: str) -> None:
    content, summary, remedy = FILES[case]
    path = tmp_path / "spec.toml"
    path.write_bytes(content)
    said = airbundle("plan", path).check(ExitCode.USAGE)
    assert summary in said.err
    assert remedy in said.err


def test_what_editors_on_windows_write(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    text = starter_spec("venv").replace('name = "llama.cpp"', 'name = "llama.ccp"')
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    said = airbundle("plan", path).check(ExitCode.USAGE)
    assert "1 problem in this spec" in said.err  # the one that was put there, and none about the file
    assert "did you mean 'llama.cpp'?" in said.err


def test_a_dry_run_writes_nothing(spec: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    airbundle("build", spec, "-o", tmp_path / "dist", "--dry-run", "--json").check()
    assert sorted(tmp_path.iterdir()) == before


def test_another_build_at_work_is_left_alone(spec: Path, tmp_path: Path) -> None:
    partial = tmp_path / "dist" / ".tiny-v1.partial"
    partial.mkdir(parents=True)
    (partial / "payload.tar.000").write_bytes(b"being written")
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # as that build does
        said = airbundle("build", spec, "-o", tmp_path / "dist").check(ExitCode.BUSY)
        assert f"{partial} is in use by another process" in said.err
        assert (partial / "payload.tar.000").read_bytes() == b"being written"
    finally:
        os.close(descriptor)
    for junk in ("abc", "-1", "99999999999999999"):
        said = airbundle("build", spec, "-o", tmp_path / "dist", env={"SOURCE_DATE_EPOCH": junk})
        assert (said.code, "SOURCE_DATE_EPOCH" in said.err) == (ExitCode.USAGE, True), said
    airbundle("build", spec, "-o", tmp_path / "dist").check()  # what a killed one left is no obstacle
    assert [path.name for path in (tmp_path / "dist").iterdir()] == ["tiny-v1"]


def test_places_that_refuse(spec: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    for words in (("-o", tmp_path / "file" / "x"), ("--cache", tmp_path / "file" / "x")):
        said = airbundle("build", spec, "--json", *words)
        assert said.code == ExitCode.UNEXPECTED, said
        assert json.loads(said.out)["summary"].startswith("the system refused: ")
        assert "Not a directory" in said.err
    assert (tmp_path / "file").read_bytes() == b"mine"
