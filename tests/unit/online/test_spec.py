"""Specs: what is wrong is said with file, line, key and the likely word, all of it at once."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from airbundle.data import data_dir
from airbundle.spec import STARTERS, load_spec, starter_spec
from airbundle.specschema import SCHEMA_FILE, schema_bytes, spec_schema
from airbundle.tomllines import line_of, locate
from airbundle_onsite.errors import UsageError

GOOD = """\
[bundle]
name = "demo"

[target]
profile = "cpu-x86_64"

[model]
source = "local:weights"
served_name = "m"

[engine]
name = "llama.cpp"

[runtime]
kind = "venv"

[wheels]
requirements = [
  "xllamacpp",
]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path, *overrides: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load_spec(path, overrides)
    return caught.value


def test_a_good_spec_has_its_values_and_defaults(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, GOOD))
    assert (spec.bundle.name, spec.bundle.version) == ("demo", "")
    assert spec.wheels is not None
    assert spec.wheels.requirements == ("xllamacpp",)
    assert (spec.serving.context, spec.serving.port, spec.image) == (4096, 8000, None)


def test_every_problem_comes_with_its_line(tmp_path: Path) -> None:
    text = GOOD.replace('name = "demo"', 'name = "demo"\nverson = "1"')  # line 3
    text = text.replace('kind = "venv"', 'kind = "vnev"').replace("cpu-x86_64", "cpu-x86-64")
    text += '[serving]\nport = 70000\n[[smoke]]\nquestion = "a"\n[[smoke]]\nquestion = "b"\nexpect = ["("]\n'
    path = write(tmp_path, text)
    details = refused(path).details

    def starts(start: str) -> str:
        (found,) = [detail for detail in details if detail.startswith(f"{path}:{start}")]
        return found

    assert "did you mean 'version'" in starts("3: bundle.verson: unknown key")
    assert "did you mean 'cpu-x86_64'" in starts("6: target.profile:")
    assert "did you mean 'venv'" in starts("16: runtime.kind:")
    assert "70000 is not within 1 to 65535" in starts("23: serving.port:")
    assert "not a regular expression" in starts("28: smoke[1].expect:")
    assert len(details) == 5


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ('served_name = "m"\n', "", 7, "model.served_name: required, but missing"),
        ("local:weights", "loca:weights", 8, "did you mean 'local'"),
        ("local:weights", "local:", 8, "nothing after"),
        ('"llama.cpp"', '"lama.cpp"', 12, "did you mean 'llama.cpp'"),
        ('"xllamacpp",', '"xllamacpp >> 1",', 18, "is not a requirement"),
        ('"xllamacpp",', '"x @ file:///x.whl",', 18, "names a URL"),
        ("[wheels]", '[wheels]\nindex = "https://me:pw@host/simple"', 18, "holds credentials"),
        ("[wheels]", '[wheels]\nindex = "wheels/"', 18, "is not an http or https URL"),
        ('kind = "venv"', 'kind = "docker"', 15, "an [image] table is needed"),
        ("[wheels]", '[wheels]\nresolve = "image"', 18, "an [image] table is needed"),
        ("[engine]", '[serving]\nhost = "localhost"\n[engine]', 12, "is not an IP address"),
        ("[engine]", "[serving]\ncontext = 0\n[engine]", 12, "is not within"),
        ("[engine]", '[serving]\ncontext = "4k"\n[engine]', 12, "expected an integer"),
    ],
)
def test_one_wrong_thing(tmp_path: Path, old: str, new: str, line: int, said: str) -> None:
    path = write(tmp_path, GOOD.replace(old, new))
    details = refused(path).details
    assert any(detail.startswith(f"{path}:{line}: ") and said in detail for detail in details), details


def test_not_toml_says_where(tmp_path: Path) -> None:
    assert "line 2" in refused(write(tmp_path, '[bundle]\nname = "open\n')).summary


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    assert "airbundle init" in refused(tmp_path / "none.toml").remedy


def test_overrides_are_toml_or_else_text(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    spec = load_spec(path, ["serving.port=9000", "model.source=local:elsewhere", 'bundle.version="1.0"'])
    assert (spec.serving.port, spec.model.source, spec.bundle.version) == (9000, "local:elsewhere", "1.0")
    spec = load_spec(path, ['wheels.requirements=["xllamacpp", "rich"]'])
    assert spec.wheels is not None
    assert len(spec.wheels.requirements) == 2


def test_a_wrong_override_is_named_in_place_of_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    (detail,) = refused(path, "bundle.version=1.0").details
    assert detail.startswith("--set bundle.version=1.0: expected a string")
    assert "quote it" in detail
    (detail,) = refused(path, "serving.prt=1").details
    assert detail.startswith("--set serving.prt=1: unknown key")
    for wrong in ("serving.port", "=1", "a..b=1", "bundle.name.x=1"):
        assert "--set" in refused(path, wrong).summary


@pytest.mark.parametrize("kind", STARTERS)
def test_starter_specs_work_as_they_stand(kind: str, tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, starter_spec(kind)))
    assert spec.smoke
    jsonschema.validate(json.loads(json.dumps(_plain(starter_spec(kind)))), spec_schema())


def test_an_unknown_starter_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'docker'"):
        starter_spec("dokcer")


def test_every_manifest_loads() -> None:
    paths = sorted(data_dir("manifests").glob("*.toml"))
    assert len(paths) >= 3
    for path in paths:
        load_spec(path)


def test_the_schema_file_is_what_the_records_say() -> None:
    path = data_dir("manifests") / SCHEMA_FILE
    assert path.read_bytes() == schema_bytes(), f"stale: write schema_bytes() to {path}"


def test_the_schema_refuses_what_the_loader_refuses() -> None:
    jsonschema.Draft202012Validator.check_schema(spec_schema())
    validator = jsonschema.Draft202012Validator(spec_schema())
    assert not list(validator.iter_errors(_plain(GOOD)))
    for old, new in (("kind", "knd"), ('"venv"', '"vnev"'), ('"demo"', "7"), ('served_name = "m"', "")):
        assert list(validator.iter_errors(_plain(GOOD.replace(old, new, 1)))), (old, new)


def test_keys_are_found_past_strings_of_several_lines() -> None:
    lines = locate('a = """\n[x]\nb = 1\n"""\n[t]\n"q.r" = 1\nc.d = 2\n[[s]]\nk = 1\n[[s]]\nk = 2\n')
    assert lines["a"] == 1
    assert "b" not in lines
    assert (lines["t"], lines["t.c.d"], lines["s[0].k"], lines["s[1].k"]) == (5, 7, 9, 11)
    assert line_of(lines, "s[1].other.deep") == 10
    assert line_of(lines, "nowhere.at.all") == 0


def _plain(text: str) -> object:
    return tomllib.loads(text)


def test_what_stands_beside_the_model(tmp_path: Path) -> None:
    tables = '[[model.extra]]\nrole = "draft"\nsource = "local:d"\nserved_name = "d"\n'
    (extra,) = load_spec(write(tmp_path, GOOD + tables)).model.extra
    assert (extra.role, extra.source, extra.served_name) == ("draft", "local:d", "d")
    wrong = tables.replace('"draft"', '"daft"').replace("local:d", "lokal:d")
    details = "\n".join(refused(write(tmp_path, GOOD + wrong)).details)
    assert "model.extra[0].role: expected one of 'draft'" in details and "did you mean 'draft'" in details
    assert "model.extra[0].source: no source 'lokal' (did you mean 'local'?)" in details
    assert "given to two of the models" in refused(write(tmp_path, GOOD + tables.replace('"d"', '"m"'))).details[0]
