"""From requirements to locked wheels: with the real tools against an index on loopback, and with answers they give."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from airbundle.cache import Cache, hash_file
from airbundle.contract.lock import LockedFile, LockedWheel
from airbundle.contract.spec import IndexTable, WheelsTable
from airbundle.sources.base import SourceContext
from airbundle.wheels import open_rim, resolve_host
from airbundle.wheels.pipeline import Rim, lock_wheels, moment
from airbundle.wheels.toolbox import host_toolbox
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import encode
from airbundle_onsite.errors import FetchError, UsageError
from airbundle_onsite.system import Completed, Silent, SystemRunner
from parts import wheels as parts
from parts.wheels import WheelIndex, make_sdist, make_wheel

PROFILE = HardwareProfile("p", "P", arch=platform.machine(), min_glibc="2.28")
ARCH = platform.machine()


class Remarks(Silent):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def context(tmp_path: Path, environ: Mapping[str, str] | None = None, talk: Remarks | None = None) -> SourceContext:
    known = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **(environ or {})}
    return SourceContext(Cache(tmp_path / "cache"), talk or Remarks(), SystemRunner(), tmp_path, known.get)


@pytest.fixture
def index(wheel_index: WheelIndex) -> WheelIndex:
    """An index with pip, and `app` that needs `lib`, which needs `leaf` on other systems only."""
    make_wheel(wheel_index.directory, "pip", "99.0", requires_python=">=3.9")
    make_wheel(wheel_index.directory, "pip", "99.1", requires_python=">=3.99")
    make_wheel(wheel_index.directory, "app", "1.0", ["Lib>=1"])
    make_wheel(wheel_index.directory, "lib", "1.5", ['leaf; sys_platform == "win32"'], requires_python=">=3.8")
    make_wheel(wheel_index.directory, "leaf", "1.0")
    return wheel_index


def test_the_closure_is_locked(index: WheelIndex, tmp_path: Path) -> None:
    table = WheelsTable(("app", "lib"), index=index.url)
    wheels, settings = resolve_host(table, "", PROFILE, context(tmp_path))
    assert [(wheel.name, wheel.version, wheel.requested_by) for wheel in wheels] == [
        ("app", "1.0", ("spec",)),
        ("lib", "1.5", ("app", "spec")),
        ("pip", "99.0", ("airbundle",)),
    ]
    lib = wheels[1]
    path = index.directory / lib.file.path
    assert (lib.file.size, lib.requires_python, lib.index) == (path.stat().st_size, ">=3.8", index.url)
    assert lib.file.origin == {"source": "pypi", "url": index.url.replace("/simple", f"/files/{lib.file.path}")}
    assert (settings.python, settings.glibc) == (f"3.{sys.version_info[1]}", "2.28")
    assert str(tmp_path) not in settings.resolver
    again = resolve_host(WheelsTable(("lib", "app"), index=index.url), "", PROFILE, context(tmp_path))
    assert [encode(wheel) for wheel in again[0]] == [encode(wheel) for wheel in wheels]


def test_nothing_ambient_steers_the_result(index: WheelIndex, tmp_path: Path) -> None:
    lure = make_wheel(tmp_path / "links", "lib", "2.0")
    (tmp_path / "constraints.txt").write_text("app==0.9\n")
    configuration = tmp_path / "pip.conf"
    configuration.write_text(f"[global]\nfind-links = {lure.parent}\nconstraint = {tmp_path}/constraints.txt\n")
    environ = {"PIP_FIND_LINKS": str(lure.parent), "PIP_CONFIG_FILE": str(configuration), "PIP_PRE": "1"}
    argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--index-url", index.url, "lib"]
    subprocess.run([*argv, "-d", str(tmp_path / "d")], env={**os.environ, **environ}, check=True, timeout=60)
    assert [path.name for path in (tmp_path / "d").iterdir()] == [lure.name], "the lure must work on plain pip"

    (tmp_path / ".config" / "pip").mkdir(parents=True)
    (tmp_path / ".config" / "pip" / "pip.conf").write_text(configuration.read_text())
    talk = Remarks()
    wheels, _ = resolve_host(WheelsTable(("app",), index=index.url), "", PROFILE, context(tmp_path, environ, talk))
    assert {wheel.name: wheel.version for wheel in wheels} == {"app": "1.0", "lib": "1.5", "pip": "99.0"}
    assert any("without effect" in line and "PIP_FIND_LINKS" in line for line in talk.lines)


def test_the_profile_caps_glibc(index: WheelIndex, tmp_path: Path) -> None:
    make_wheel(index.directory, "native", "1.0", tags=f"py3-none-manylinux_2_17_{ARCH}")
    make_wheel(index.directory, "native", "2.0", tags=f"py3-none-manylinux_2_29_{ARCH}")
    table = WheelsTable(("native",), index=index.url)
    for glibc, version in (("2.28", "1.0"), ("2.29", "2.0")):
        profile = HardwareProfile("p", "P", arch=ARCH, min_glibc=glibc)
        (native,) = [
            wheel for wheel in resolve_host(table, "", profile, context(tmp_path))[0] if wheel.name == "native"
        ]
        assert native.version == version


def test_requirements_that_exclude_each_other(index: WheelIndex, tmp_path: Path) -> None:
    table = WheelsTable(("app", "lib<1"), index=index.url)
    make_wheel(index.directory, "lib", "0.5")
    with pytest.raises(FetchError) as caught:
        resolve_host(table, "", PROFILE, context(tmp_path))
    assert "exclude each other" in caught.value.summary
    assert caught.value.details == ("The user requested lib<1", "app 1.0 depends on Lib>=1")


def test_a_name_that_the_index_has_not(index: WheelIndex, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"^absent>=2: the index has nothing") as caught:
        resolve_host(WheelsTable(("absent>=2",), index=index.url), "", PROFILE, context(tmp_path))
    assert "check the name" in caught.value.remedy


# --- with a toolbox that gives recorded answers ------------------------------------------------------------------


class Scripted:
    """A toolbox whose answers are given by the command's first words."""

    place, directory = "in image sha256:0123", "/d"

    def __init__(self, **answers: Completed) -> None:
        self.answers, self.ran, self.files = answers, list[Sequence[str]](), dict[str, bytes]()

    def run(self, words: Sequence[str], *, timeout: float = 0) -> Completed:
        self.ran.append(words)
        for name in ("_".join(words[:3]), "_".join(words[:2]), words[0]):
            if name in self.answers:
                return self.answers[name]
        raise AssertionError(f"not scripted: {words}")

    def write(self, name: str, data: bytes) -> None:
        self.files[name] = data

    def read(self, name: str) -> Iterator[bytes]:
        yield self.files[name]


def said(code: int = 0, stdout: str = "", stderr: str = "") -> Completed:
    return Completed((), code, stdout, stderr)


def facts(**changes: str) -> Completed:
    known = {"python": "3.11", "implementation": "CPython", "machine": "x86_64", "glibc": "2.36"}
    return said(stdout=json.dumps({**known, "pip": "26.0", "pip_tools": "7.6", **changes}))


def report(*names: str, **more: object) -> Completed:
    items = [
        {
            "download_info": {
                "url": f"https://u:p@h/{name}#sha256=x",
                "archive_info": {"hashes": {"sha256": "ab" * 32}},
            },
            "metadata": {"name": name.split("-")[0], "version": name.split("-")[1], "requires_python": ">=3.9"},
            **more,
        }
        for name in names
    ]
    environment = {"python_full_version": "3.11.2", "python_version": "3.11"}
    return said(stdout="a remark\n" + json.dumps({"install": items, "environment": environment}))


def rim(fetch: Callable[[LockedFile], Path] | None = None) -> Rim:
    own = Scripted(pip_install=report("pip-26.0-py3-none-any.whl"))

    def nothing(chunks: object) -> tuple[str, int]:
        raise AssertionError("nothing is built")

    found = fetch or (lambda item: Path("/none"))
    return Rim(own, (), lambda name, url: len(name), found, nothing, lambda sha256, size: False, Silent())


X86 = HardwareProfile("p", "P", min_glibc="2.28")
TABLE = WheelsTable(("thing",))
NO_WHEEL = said(
    2, "", "ERROR: Could not find a version that satisfies the requirement thing>=1 (from versions: none)\n"
)


def test_credentials_of_an_index_stay_out_of_the_lock() -> None:
    toolbox = Scripted(facts=facts(), piptools=said(stdout=""), pip_install=report("thing-1-py3-none-any.whl"))
    wheels, settings = lock_wheels(TABLE, toolbox, X86, rim(), (), {})
    assert wheels[1].file.origin["url"] == "https://h/thing-1-py3-none-any.whl"
    assert settings.resolver == "pip-tools 7.6, pip 26.0, in image sha256:0123"
    assert toolbox.files["glibc"] == b"2.28"


def test_tools_are_brought_where_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"wheel")
    toolbox = Scripted(
        facts=facts(pip="", pip_tools=""), piptools=said(stdout=""), pip_install=report("thing-1-py3-none-any.whl")
    )
    lock_wheels(TABLE, toolbox, X86, rim(lambda item: tmp_path / "w"), ("--cert", "/ca"), {})
    assert toolbox.files["pip-26.0-py3-none-any.whl"] == b"wheel"
    (install,) = [words for words in toolbox.ran if words[-1] == "pip-tools"]
    assert "/d/tools" in install
    assert "--cert" in install


def test_a_package_without_wheels_is_named_with_the_cure() -> None:
    toolbox = Scripted(facts=facts(), piptools=NO_WHEEL, pip_index=said(0, "thing (1.0)"))
    with pytest.raises(FetchError, match=r"^thing>=1: the index has it, but no wheel for Python 3\.11") as caught:
        lock_wheels(TABLE, toolbox, X86, rim(), (), {})
    assert "--only-binary" in caught.value.summary
    assert 'wheels.build = ["thing"]' in caught.value.remedy


def test_a_package_that_is_nowhere() -> None:
    toolbox = Scripted(facts=facts(), piptools=NO_WHEEL, pip_index=said(1, "", "ERROR: No matching distribution"))
    with pytest.raises(FetchError, match=r"^thing>=1: the index has nothing"):
        lock_wheels(TABLE, toolbox, X86, rim(), (), {})


@pytest.mark.parametrize(
    ("found", "words"),
    [(facts(machine="aarch64"), "which is aarch64"), (facts(glibc=""), "does not use glibc")],
)
def test_a_python_that_does_not_fit_the_profile(found: Completed, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        lock_wheels(TABLE, Scripted(facts=found), X86, rim(), (), {})


def test_a_yanked_release_is_refused() -> None:
    toolbox = Scripted(facts=facts(), piptools=said(), pip_install=report("thing-1-py3-none-any.whl", is_yanked=True))
    with pytest.raises(FetchError, match=r"^thing==1: its makers have withdrawn") as caught:
        lock_wheels(TABLE, toolbox, X86, rim(), (), {})
    assert "--upgrade thing" in caught.value.remedy


def test_a_member_that_is_missing_is_named() -> None:
    toolbox = Scripted(facts=facts(), piptools=said(), pip_install=report("other-1-py3-none-any.whl"))
    with pytest.raises(FetchError, match="the spec needs thing, which is not among the wheels"):
        lock_wheels(TABLE, toolbox, X86, rim(), (), {})


def test_a_date_is_midnight_in_utc() -> None:
    assert moment("2026-11-30") == "2026-11-30T00:00:00Z"
    assert moment("2026-11-30T12:00:00Z") == "2026-11-30T12:00:00Z"


# --- bound indexes, earlier locks, and packages built here, with the real tools -----------------------------------


def versions(wheels: Sequence[LockedWheel]) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in wheels if wheel.name != "pip"}


def test_a_package_is_bound_to_one_index(index: WheelIndex, tmp_path: Path) -> None:
    make_wheel(index.directory, "needs", "1.0", ["torch>=2"])
    make_wheel(index.directory, "torch", "3.0")
    with parts.index(tmp_path / "other") as other:
        make_wheel(other.directory, "torch", "2.0+cpu", ["leaf"])
        make_wheel(other.directory, "leaf", "9.0")
        bound = (IndexTable("cpu", other.url, ("torch",)),)
        table = WheelsTable(("needs",), index=index.url, indexes=bound, constraints=("lib<1",))
        wheels, settings = resolve_host(table, "", PROFILE, context(tmp_path))
    found = {wheel.name: (wheel.version, wheel.index) for wheel in wheels if wheel.name != "pip"}
    assert found == {
        "leaf": ("1.0", index.url),
        "needs": ("1.0", index.url),
        "torch": ("2.0+cpu", other.url),
    }
    assert settings.indexes == {"cpu": other.url}


def test_earlier_versions_of_a_bound_index_stay(index: WheelIndex, tmp_path: Path) -> None:
    with parts.index(tmp_path / "other") as other:
        make_wheel(other.directory, "torch", "2.0+cpu")
        bound = (IndexTable("cpu", other.url, ("torch",)),)
        table = WheelsTable(("lib", "torch>=2"), index=index.url, indexes=bound)
        earlier = {wheel.name: wheel for wheel in resolve_host(table, "", PROFILE, context(tmp_path))[0]}
        make_wheel(other.directory, "torch", "2.1+cpu")
        make_wheel(index.directory, "lib", "1.6")
        less = {name: wheel for name, wheel in earlier.items() if name != "lib"}
        moved, _ = resolve_host(table, "", PROFILE, context(tmp_path), less)
        assert versions(moved) == {"lib": "1.6", "torch": "2.0+cpu"}
        less = {name: wheel for name, wheel in earlier.items() if name != "torch"}
        assert versions(resolve_host(table, "", PROFILE, context(tmp_path), less)[0]) == {
            "lib": "1.5",
            "torch": "2.1+cpu",
        }
        newer = WheelsTable(("lib", "torch>=2.1"), index=index.url, indexes=bound)
        assert versions(resolve_host(newer, "", PROFILE, context(tmp_path), earlier)[0])["torch"] == "2.1+cpu"
        make_wheel(index.directory, "lib", "1.7", ["torch>=2.1"])
        pulled = WheelsTable(("lib>=1.7", "torch>=2"), index=index.url, indexes=bound)
        wheels, _ = resolve_host(pulled, "", PROFILE, context(tmp_path), earlier)
        assert versions(wheels) == {"lib": "1.7", "torch": "2.1+cpu"}, "a preference and not a limit"


def test_a_yanked_release_of_a_bound_index_is_refused(index: WheelIndex, tmp_path: Path) -> None:
    with parts.index(tmp_path / "other") as other:
        other.yanked[make_wheel(other.directory, "torch", "2.0+cpu").name] = "broken"
        bound = (IndexTable("cpu", other.url, ("torch",)),)
        table = WheelsTable(("torch==2.0+cpu",), index=index.url, indexes=bound)
        with pytest.raises(FetchError, match=r"^torch==2\.0\+cpu: its makers have withdrawn"):
            resolve_host(table, "", PROFILE, context(tmp_path))


def test_earlier_versions_stay_but_the_one_that_may_move(index: WheelIndex, tmp_path: Path) -> None:
    table = WheelsTable(("app", "lib"), index=index.url)
    earlier = {wheel.name: wheel for wheel in resolve_host(table, "", PROFILE, context(tmp_path))[0]}
    make_wheel(index.directory, "app", "1.1", ["lib"])
    make_wheel(index.directory, "lib", "1.6")
    make_wheel(index.directory, "pip", "99.0.1")
    kept, _ = resolve_host(table, "", PROFILE, context(tmp_path), earlier)
    assert kept == tuple(earlier.values()), "pip itself stays, too"
    later = dict(earlier, pip=dataclasses.replace(earlier["pip"], version="98.0"))
    newest, _ = resolve_host(table, "", PROFILE, context(tmp_path), later)
    assert {wheel.name: wheel.version for wheel in newest}["pip"] == "99.0.1", "that of the lock is no more"
    index.yanked["pip-99.0-py3-none-any.whl"] = "broken"
    with pytest.raises(FetchError, match=r"^pip==99\.0: its makers have withdrawn"):
        resolve_host(table, "", PROFILE, context(tmp_path), earlier)
    index.yanked.clear()
    less = {name: wheel for name, wheel in earlier.items() if name != "lib"}
    moved, _ = resolve_host(table, "", PROFILE, context(tmp_path), less)
    assert versions(moved) == {"app": "1.0", "lib": "1.6"}
    assert versions(resolve_host(table, "", PROFILE, context(tmp_path))[0]) == {"app": "1.1", "lib": "1.6"}


def test_nothing_newer_than_asked(index: WheelIndex, tmp_path: Path) -> None:
    index.uploaded[make_wheel(index.directory, "lib", "1.6").name] = "2026-06-01T08:00:00Z"
    table = WheelsTable(("lib",), index=index.url, before="2026-06-01")
    assert versions(resolve_host(table, "", PROFILE, context(tmp_path))[0]) == {"lib": "1.5"}


def in_place(table: WheelsTable, where: SourceContext, earlier: Mapping[str, LockedWheel]) -> dict[str, LockedWheel]:
    """Resolve as in an image, with an interpreter of this machine in its place."""
    with open_rim(where) as rim_here, host_toolbox("", where) as toolbox:
        found, _ = lock_wheels(table, toolbox, PROFILE, rim_here, (), earlier)
    return {wheel.name: wheel for wheel in found}


def test_a_source_distribution_is_built_and_kept(index: WheelIndex, tmp_path: Path) -> None:
    make_wheel(index.directory, "helper", "1.0")
    source = make_sdist(index.directory, "src", "1.0", ["lib"], build_requires=["helper"], imports="import helper")
    table = WheelsTable(("src",), "image", index=index.url, build=("src",))
    where = context(tmp_path)
    made = in_place(table, where, {})
    assert sorted(made) == ["lib", "pip", "src"]
    src = made["src"]
    assert where.cache.has(src.file.sha256, src.file.size)
    assert src.file.origin["source"] == "built"
    assert (src.built_from["sdist"], src.built_from["requirements"]) == (source.name, "helper==1.0")
    assert src.built_from["sha256"] == hash_file(source)
    assert made["lib"].requested_by == ("src",)

    make_wheel(index.directory, "helper", "2.0")
    assert in_place(table, where, made)["src"] == src, "the earlier wheel is taken"
    where.cache.drop(src.file.sha256)
    assert in_place(table, where, made)["src"] == src, "built anew of the same, it is the same"
    where.cache.drop(src.file.sha256)
    fresh = in_place(table, where, {})["src"]
    assert (fresh.file.sha256, fresh.built_from["requirements"]) == (src.file.sha256, "helper==2.0")


def test_a_build_requirement_that_is_not_there_is_named(index: WheelIndex, tmp_path: Path) -> None:
    make_sdist(index.directory, "src", "1.0", build_requires=["absent>=3"])
    table = WheelsTable(("src",), "image", index=index.url, build=("src",))
    with pytest.raises(FetchError) as caught:
        in_place(table, context(tmp_path), {})
    assert caught.value.summary == "src: cannot be built, for its build requirement absent>=3 has no wheel here"


def test_a_build_that_fails_is_named(index: WheelIndex, tmp_path: Path) -> None:
    make_sdist(index.directory, "src", "1.0", imports="raise SystemExit('error: no compiler')")
    table = WheelsTable(("src",), "image", index=index.url, build=("src",))
    with pytest.raises(FetchError, match=r"^src: cannot be built") as caught:
        in_place(table, context(tmp_path), {})
    assert any("no compiler" in line for line in caught.value.details)


def test_a_source_distribution_is_not_built_unasked(index: WheelIndex, tmp_path: Path) -> None:
    make_sdist(index.directory, "src", "1.0")
    with pytest.raises(FetchError, match=r"^src: the index has it, but no wheel") as caught:
        resolve_host(WheelsTable(("src",), index=index.url), "", PROFILE, context(tmp_path))
    assert 'wheels.build = ["src"]' in caught.value.remedy
