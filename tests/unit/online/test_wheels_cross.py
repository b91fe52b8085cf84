"""Cross resolves by the real uv, against indexes on loopback."""

from __future__ import annotations

import base64
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from airbundle import web
from airbundle.cache import Cache
from airbundle.contract.lock import LockedWheel, WheelSettings
from airbundle.contract.spec import IndexTable, WheelsTable
from airbundle.download import Downloader
from airbundle.sources.base import SourceContext
from airbundle.wheels import resolve_cross
from airbundle.wheels.proof import prove_installable
from airbundle_onsite.contract.profile import GpuProfile, HardwareProfile
from airbundle_onsite.contract.record import encode
from airbundle_onsite.errors import FetchError, IntegrityError
from airbundle_onsite.system import Silent, SystemRunner
from parts import wheels as parts
from parts.wheels import WheelIndex, make_sdist, make_wheel

GPU = GpuProfile(("NVIDIA H200",), "9.0", 1)


class Remarks(Silent):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def profile(glibc: str = "2.28", arch: str = "x86_64", gpu: GpuProfile | None = None) -> HardwareProfile:
    return HardwareProfile("p", "P", arch=arch, min_glibc=glibc, gpu=gpu)


class Office:
    """Resolves with an empty home below a temporary directory."""

    def __init__(self, path: Path, index: WheelIndex) -> None:
        self.path, self.index, self.talk = path, index, Remarks()

    def context(self, environ: Mapping[str, str] | None = None) -> SourceContext:
        known = {"PATH": os.environ["PATH"], "HOME": str(self.path), **(environ or {})}
        return SourceContext(Cache(self.path / "cache"), self.talk, SystemRunner(), self.path, known.get)

    def resolve(
        self,
        *requirements: str,
        python: str = "3.12",
        target: HardwareProfile | None = None,
        environ: Mapping[str, str] | None = None,
        earlier: Mapping[str, LockedWheel] | None = None,
        **more: object,
    ) -> tuple[tuple[LockedWheel, ...], WheelSettings]:
        table = WheelsTable(requirements, "cross", **{"index": self.index.url, **more})  # type: ignore[arg-type]
        return resolve_cross(table, python, target or profile(), self.context(environ), earlier or {})

    def versions(self, *requirements: str, **more: object) -> dict[str, str]:
        """Name -> version, without pip."""
        wheels, _ = self.resolve(*requirements, **more)  # type: ignore[arg-type]
        return {wheel.name: wheel.version for wheel in wheels if wheel.name != "pip"}

    def make(
        self, name: str, version: str, requires: Sequence[str] = (), tags: str = "py3-none-any", **more: str
    ) -> Path:
        return make_wheel(self.index.directory, name, version, requires, tags, **more)  # type: ignore[arg-type]


@pytest.fixture
def office(tmp_path: Path, wheel_index: WheelIndex) -> Office:
    """With pip in its index."""
    made = Office(tmp_path / "home", wheel_index)
    made.path.mkdir()
    made.make("pip", "99.0", requires_python=">=3.9")
    return made


@pytest.fixture
def other(tmp_path: Path) -> Iterator[WheelIndex]:
    """A second index."""
    with parts.index(tmp_path / "other") as running:
        yield running


def test_markers_are_the_target_s_and_not_the_builder_s(office: Office) -> None:
    office.make("appa", "1.0", ['olddep; python_version < "3.10"', 'armdep; platform_machine == "aarch64"'])
    office.make("olddep", "1.0")
    office.make("armdep", "1.0")
    assert office.versions("appa", python="3.9") == {"appa": "1.0", "olddep": "1.0"}
    assert office.versions("appa", python="3.13") == {"appa": "1.0"}
    assert office.versions("appa", python="3.13", target=profile(arch="aarch64")) == {"appa": "1.0", "armdep": "1.0"}


@pytest.mark.parametrize(
    "tags",
    ["cp312-cp312-manylinux_2_17_x86_64", "cp312-cp312-manylinux1_x86_64", "cp39-abi3-manylinux2014_x86_64"],
)
def test_older_manylinux_wheels_are_seen(office: Office, tags: str) -> None:
    office.make("native", "1.0", tags=tags)
    assert office.versions("native") == {"native": "1.0"}


@pytest.mark.parametrize(("glibc", "version"), [("2.17", "1.0"), ("2.26", "2.0"), ("2.27", "3.0"), ("2.28", "4.0")])
def test_levels_between_those_that_uv_knows(office: Office, glibc: str, version: str) -> None:
    for number, level in enumerate((17, 24, 27, 28), start=1):
        office.make("native", f"{number}.0", tags=f"cp312-cp312-manylinux_2_{level}_x86_64")
    office.make("app", "1.0", ["native"])
    assert office.versions("app", target=profile(glibc)) == {"app": "1.0", "native": version}


def test_the_lock_says_all(office: Office) -> None:
    path = office.make("lib", "1.5", requires_python=">=3.8")
    office.make("app", "1.0", ["Lib>=1"])
    wheels, settings = office.resolve("app")
    assert [(wheel.name, wheel.requested_by) for wheel in wheels] == [
        ("app", ("spec",)),
        ("lib", ("app",)),
        ("pip", ("airbundle",)),
    ]
    lib = wheels[1]
    assert (lib.file.path, lib.file.size, lib.requires_python) == (path.name, path.stat().st_size, ">=3.8")
    assert lib.file.origin == {"source": "pypi", "url": office.index.url.replace("/simple", f"/files/{path.name}")}
    assert (lib.index, lib.yanked) == (office.index.url, False)
    assert (settings.python, settings.platform, settings.glibc) == ("3.12", "linux_x86_64", "2.28")
    assert settings.resolver.startswith("uv ")


def test_what_is_locked_installs_from_nothing_but_itself(office: Office) -> None:
    office.make("native", "1.0", tags="cp39-abi3-manylinux_2_17_aarch64")
    office.make("app", "1.0", ["native", "other; platform_machine == 'x86_64'"])
    wheels, settings = office.resolve("app", python="3.13", target=profile(arch="aarch64"))
    context = office.context()
    downloader = Downloader(context.cache, web.new_session(context.environ))
    for wheel in wheels:
        downloader.download(wheel.file, wheel.file.origin["url"], lambda _: None)
    prove_installable(wheels, settings, context)
    elsewhere = dataclasses.replace(settings, platform="linux_x86_64")
    with pytest.raises(IntegrityError, match="pip would not install"):
        prove_installable(wheels, elsewhere, context)


def test_the_same_question_gives_the_same_lock(office: Office) -> None:
    for name in ("a", "b", "c"):
        office.make(name, "1.0", ["d"])
    office.make("d", "1.0")
    first, second = office.resolve("a", "b", "c"), office.resolve("c", "a", "b")
    assert [encode(wheel) for wheel in first[0]] == [encode(wheel) for wheel in second[0]]
    assert first[1] == second[1]


def test_a_package_is_bound_to_one_index(office: Office, other: WheelIndex) -> None:
    office.make("app", "1.0", ["torch>=2"])
    office.make("torch", "3.0")
    office.make("leaf", "1.0")
    make_wheel(other.directory, "torch", "2.0+cu130", ["leaf"])
    make_wheel(other.directory, "leaf", "9.0")
    make_wheel(other.directory, "unwanted", "1.0")
    bound = (IndexTable("nv", other.url, ("Torch", "unwanted")),)
    wheels, settings = office.resolve("app", indexes=bound, target=profile(gpu=GPU))
    found = {wheel.name: (wheel.version, wheel.index) for wheel in wheels if wheel.name != "pip"}
    assert found == {
        "app": ("1.0", office.index.url),
        "leaf": ("1.0", office.index.url),
        "torch": ("2.0+cu130", other.url),
    }
    assert settings.indexes == {"nv": other.url}
    assert "simple/app" not in other.requests and "simple/leaf" not in other.requests


def test_a_wheel_for_other_hardware_is_refused(office: Office) -> None:
    office.make("torch", "2.0+rocm6")
    office.make("torch", "2.0+cpu")
    office.make("torch", "2.0")
    with pytest.raises(FetchError, match=r"torch 2\.0\+rocm6 is built for ROCm; profile p is for CUDA") as caught:
        office.resolve("torch==2.0", target=profile(gpu=GPU))
    assert "[[wheels.indexes]]" in caught.value.remedy
    assert office.versions("torch==2.0+cpu") == {"torch": "2.0+cpu"}


def test_constraints_limit_and_ask_for_nothing(office: Office) -> None:
    for version in ("1.0", "2.0"):
        office.make("lib", version)
    office.make("app", "1.0", ["lib"])
    office.make("extra", "1.0")
    assert office.versions("app", constraints=("lib<2", "extra==1.0")) == {"app": "1.0", "lib": "1.0"}


def test_extras_bring_their_own(office: Office) -> None:
    office.make("app", "1.0", ["more; extra == 'all'"])
    office.make("more", "1.0")
    assert office.versions("app[all]") == {"app": "1.0", "more": "1.0"}


def test_pre_releases_only_on_request(office: Office) -> None:
    office.make("lib", "1.0")
    office.make("lib", "2.0rc1")
    office.make("app", "1.0", ["lib>=1"])
    office.make("eager", "1.0", ["lib>=2.0rc1"])
    assert office.versions("app") == {"app": "1.0", "lib": "1.0"}
    assert office.versions("app", prereleases=("lib",)) == {"app": "1.0", "lib": "2.0rc1"}
    assert office.versions("app", "lib>=2.0rc1") == {"app": "1.0", "lib": "2.0rc1"}
    office.make("young", "0.1b1")
    assert office.versions("young>0") == {"young": "0.1b1"}, "it has nothing else"
    with pytest.raises(FetchError, match="only a pre-release") as caught:
        office.resolve("eager")
    assert 'wheels.prereleases = ["lib"]' in caught.value.remedy


def test_nothing_newer_than_asked(office: Office) -> None:
    office.make("lib", "1.0")
    office.index.uploaded[office.make("lib", "2.0").name] = "2026-06-01T08:00:00Z"
    assert office.versions("lib", before="2026-06-01") == {"lib": "1.0"}
    assert office.versions("lib", before="2026-06-02") == {"lib": "2.0"}


def test_earlier_versions_stay_but_the_one_that_may_move(office: Office) -> None:
    for name in ("a", "b"):
        office.make(name, "1.0")
    earlier = {wheel.name: wheel for wheel in office.resolve("a", "b")[0]}
    for name in ("a", "b", "pip"):
        office.make(name, "99.9")
    assert office.versions("a", "b", earlier=earlier) == {"a": "1.0", "b": "1.0"}
    less = {name: wheel for name, wheel in earlier.items() if name != "a"}
    wheels, _ = office.resolve("a", "b", earlier=less)
    assert {wheel.name: wheel.version for wheel in wheels} == {"a": "99.9", "b": "1.0", "pip": "99.0"}
    assert office.versions("a", "b>=2", earlier=earlier) == {"a": "1.0", "b": "99.9"}


# --- reasons -----------------------------------------------------------------------------------------------------


def reason(office: Office, *requirements: str, **more: object) -> FetchError:
    with pytest.raises(FetchError) as caught:
        office.resolve(*requirements, **more)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("asked", ["dep==2.0", "app"])
def test_a_yanked_release_is_refused(office: Office, asked: str) -> None:
    office.make("dep", "1.0")
    office.index.yanked[office.make("dep", "2.0").name] = "loses data"
    office.make("app", "1.0", ["dep==2.0"])
    error = reason(office, asked)
    assert error.summary == "dep==2.0: its makers have withdrawn (yanked) it: loses data"
    assert office.versions("dep") == {"dep": "1.0"}


def test_a_release_that_was_yanked_since_the_last_lock_is_told(office: Office) -> None:
    office.make("dep", "1.0")
    name = office.make("dep", "2.0").name
    earlier = {wheel.name: wheel for wheel in office.resolve("dep")[0]}
    assert earlier["dep"].version == "2.0"
    office.index.yanked[name] = "loses data"
    error = reason(office, "dep", earlier=earlier)
    assert error.summary.startswith("dep==2.0: its makers have withdrawn (yanked) it")
    assert "`airbundle lock SPEC --upgrade dep`" in error.remedy
    assert office.versions("dep", earlier={"pip": earlier["pip"]}) == {"dep": "1.0"}


def test_a_source_distribution_alone_is_named(office: Office) -> None:
    office.make("app", "1.0", ["src>=1"])
    make_sdist(office.index.directory, "src", "1.0")
    error = reason(office, "app")
    assert error.summary.startswith("src 1.0: the index has only its source distribution (src-1.0.tar.gz)")
    assert 'wheels.build = ["src"]' in error.remedy


def test_the_glibc_that_a_dependency_needs_is_named(office: Office) -> None:
    office.make("app", "1.0", ["llg>=1,<2"], "cp312-cp312-manylinux_2_28_x86_64")
    office.make("llg", "1.7", tags="cp312-abi3-manylinux_2_31_x86_64")
    office.make("llg", "2.0", tags="cp312-abi3-manylinux_2_17_x86_64")
    make_sdist(office.index.directory, "llg", "1.7")
    error = reason(office, "app")
    assert error.summary.startswith("llg 1.7: its wheels need glibc 2.31, the target has 2.28")
    assert "glibc 2.31 or newer" in error.remedy
    assert office.versions("app", target=profile("2.31")) == {"app": "1.0", "llg": "1.7"}


def test_the_glibc_is_named_at_a_level_between(office: Office) -> None:
    office.make("native", "1.0", tags="cp312-cp312-manylinux_2_28_x86_64")
    assert "its wheels need glibc 2.28, the target has 2.27" in reason(office, "native", target=profile("2.27")).summary


def test_wheels_for_other_pythons_are_named(office: Office) -> None:
    office.make("native", "1.0", tags="cp310-cp310-manylinux_2_17_x86_64")
    summary = reason(office, "native").summary
    assert "native 1.0: its wheels (cp310 for x86_64) do not fit Python 3.12" in summary
    office.make("foreign", "1.0", tags="cp312-cp312-win_amd64")
    assert "foreign 1.0: its wheels (win_amd64) do not fit Python 3.12" in reason(office, "foreign").summary


def test_a_python_that_is_too_old_is_named(office: Office) -> None:
    office.make("app", "1.0", requires_python=">=3.11,<3.15")
    assert (
        "app==1.0: needs Python >=3.11, <3.15; the target has 3.10" in reason(office, "app==1.0", python="3.10").summary
    )


def test_requirements_that_exclude_each_other(office: Office) -> None:
    office.make("app", "1.0", ["lib>=2"])
    for version in ("1.0", "2.0"):
        office.make("lib", version)
    error = reason(office, "app", "lib<2")
    assert "exclude each other" in error.summary
    assert any("lib" in line for line in error.details)


def test_a_name_that_the_index_has_not(office: Office) -> None:
    assert reason(office, "absent").summary == "absent: the index has no such project"


def test_an_index_that_does_not_answer(office: Office) -> None:
    error = reason(office, "app", index="http://127.0.0.1:9/simple")
    assert "does not answer" in error.summary
    assert "netrc" in error.remedy


# --- nothing ambient counts, but for the way there ---------------------------------------------------------------


def test_ambient_settings_have_no_effect(office: Office, tmp_path: Path, other: WheelIndex) -> None:
    office.make("app", "1.0")
    lure = make_wheel(other.directory, "app", "2.0")
    (tmp_path / "limits.txt").write_text("app==0.1\n")
    configuration = f'index-url = "{other.url}"\nfind-links = ["{lure.parent}"]\n'
    for place in (office.path / ".config" / "uv" / "uv.toml", tmp_path / "uv.toml"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(configuration)
    (office.path / ".config" / "pip").mkdir()
    (office.path / ".config" / "pip" / "pip.conf").write_text(f"[global]\nindex-url = {other.url}\n")
    environ = {
        "UV_INDEX_URL": other.url,
        "UV_DEFAULT_INDEX": other.url,
        "UV_INDEX": other.url,
        "UV_FIND_LINKS": str(lure.parent),
        "UV_CONSTRAINT": str(tmp_path / "limits.txt"),
        "UV_CONFIG_FILE": str(tmp_path / "uv.toml"),
        "UV_PRERELEASE": "allow",
        "PIP_INDEX_URL": other.url,
        "PIP_FIND_LINKS": str(lure.parent),
        "XDG_CONFIG_HOME": str(office.path / ".config"),
    }
    assert office.versions("app", environ=environ) == {"app": "1.0"}
    assert other.requests == []
    told = " ".join(office.talk.lines)
    assert "without effect" in told and "UV_INDEX_URL" in told and "PIP_FIND_LINKS" in told


@pytest.mark.parametrize("named", [True, False])
def test_credentials_come_from_netrc_and_stay_out_of_the_lock(office: Office, named: bool) -> None:
    office.make("app", "1.0")
    office.index.password = "s3cret"
    place = office.path / ("elsewhere" if named else ".netrc")
    place.write_text("machine 127.0.0.1 login me password s3cret\n")
    place.chmod(0o600)
    environ = {"NETRC": str(place)} if named else {}
    os.environ["NETRC"] = str(place)  # requests reads it from there alone
    try:
        wheels, settings = office.resolve("app", environ=environ)
    finally:
        del os.environ["NETRC"]
    text = b"".join(encode(each) for each in (*wheels, settings)).decode()
    assert "s3cret" not in text and base64.b64encode(b"me:s3cret").decode() not in text
