"""Wheels resolved inside a real image, by the real tools, from PyPI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airbundle import sources
from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile, LockedImage
from airbundle.contract.spec import ImageTable, IndexTable, WheelsTable
from airbundle.sources.base import SourceContext
from airbundle.wheels import resolve_host, resolve_image
from airbundle.wheels.container import image_toolbox
from airbundle.wheels.toolbox import ca_bundle
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import encode
from airbundle_onsite.errors import FetchError, UsageError
from airbundle_onsite.system import Silent, SystemRunner
from parts.docker import DockerEngine
from parts.inspecting import HOST, Proxy, proxy
from parts.wheels import make_wheel

PROFILE = HardwareProfile("p", "P", min_glibc="2.28")
IN_IMAGE = WheelsTable(("xllamacpp", "rich"), "image")


@pytest.fixture
def context(tmp_path: Path, docker_engine: DockerEngine) -> SourceContext:
    """This machine's way to PyPI, the private engine, and settings of pip that must have no effect."""
    lures = {"PIP_FIND_LINKS": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1:1/simple"}
    environ = {**os.environ, **lures, "DOCKER_HOST": docker_engine.host}
    return SourceContext(Cache(tmp_path / "cache"), Silent(), SystemRunner(), tmp_path, environ.get)


def locked(source: str, context: SourceContext) -> LockedImage:
    return sources.create("registry", context).lock_image(ImageTable(f"registry:{source}"), "linux/amd64")


def fetcher(context: SourceContext) -> Callable[[LockedFile], None]:
    registry = sources.create("registry", context)

    def fetch(item: LockedFile) -> None:
        registry.fetch(item, lambda _: None)

    return fetch


def left_over(engine: DockerEngine) -> list[str]:
    containers = engine.run("ps", "-aq", "--filter", "label=airbundle.purpose=resolve").stdout.split()
    return containers + engine.run("images", "-q", "airbundle-resolve").stdout.split()


@pytest.fixture
def company(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A network whose only way out is a proxy with a CA of its own; its index wants the password that netrc has."""
    with proxy(tmp_path / "company") as made:
        bundle, netrc = tmp_path / "bundle.pem", tmp_path / "netrc"
        known = ca_bundle(os.environ.get, system=True)
        bundle.write_bytes((known.read_bytes() if known else b"") + made.ca.read_bytes())
        netrc.write_text(f"machine {HOST} login me password s3cret\n")
        netrc.chmod(0o600)
        made.index.password = "s3cret"
        make_wheel(made.index.directory, "company-part", "1.0", ["mdurl"])
        settings = {"https_proxy": made.url, "NETRC": str(netrc), "PIP_CERT": str(bundle)}
        for name, value in {**settings, "HTTPS_PROXY": made.url, "REQUESTS_CA_BUNDLE": str(bundle)}.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.mark.real("docker", "registry", "images")
def test_an_image_with_nothing_but_python_and_a_company_s_network(
    base_image: str, company: Proxy, context: SourceContext, docker_engine: DockerEngine
) -> None:
    image = locked(base_image, context)
    theirs = IndexTable("company", company.index.url, ("company-part",))
    table = WheelsTable((*IN_IMAGE.requirements, "company-part"), "image", indexes=(theirs,))
    wheels, settings = resolve_image(table, image, fetcher(context), PROFILE, context)
    found = {wheel.name: wheel for wheel in wheels}
    assert list(found) == sorted(found)
    assert {"pip", "xllamacpp", "rich", "pygments", "markdown-it-py", "mdurl", "company-part"} == set(found)
    assert (found["company-part"].index, settings.indexes) == (company.index.url, {"company": company.index.url})
    assert len(set(company.asked)) > 1, "the public index, too, is behind the proxy"
    assert b"s3cret" not in b"".join(encode(each) for each in (*wheels, settings))
    assert found["mdurl"].requested_by == ("company-part", "markdown-it-py")
    assert "manylinux" in found["xllamacpp"].file.path
    assert found["xllamacpp"].file.size > 10_000_000
    assert (settings.python, settings.glibc) == ("3.11", "2.28")
    assert f"in image sha256:{image.config.sha256[:12]}" in settings.resolver
    assert left_over(docker_engine) == []


@pytest.mark.real("docker", "registry", "images")
def test_a_source_distribution_is_built_in_the_image(
    base_image: str, context: SourceContext, docker_engine: DockerEngine
) -> None:
    image = locked(base_image, context)
    table = WheelsTable(("docopt==0.6.2",), "image", build=("docopt",))
    wheels, _ = resolve_image(table, image, fetcher(context), PROFILE, context)
    (made,) = [wheel for wheel in wheels if wheel.name == "docopt"]
    assert made.file.path == "docopt-0.6.2-py2.py3-none-any.whl"
    assert context.cache.has(made.file.sha256, made.file.size)
    assert (made.built_from["sdist"], made.file.origin["source"]) == ("docopt-0.6.2.tar.gz", "built")
    assert f"in image sha256:{image.config.sha256[:12]}" in made.built_from["place"]
    assert "setuptools==" in made.built_from["requirements"]

    earlier = {wheel.name: wheel for wheel in wheels}
    context.cache.drop(made.file.sha256)
    again, _ = resolve_image(table, image, fetcher(context), PROFILE, context, earlier)
    assert {wheel.name: wheel for wheel in again}["docopt"] == made, "built twice, it is the same"
    assert left_over(docker_engine) == []


@pytest.mark.real("docker", "registry", "images")
def test_an_interrupted_resolve_leaves_nothing(
    base_image: str, context: SourceContext, docker_engine: DockerEngine
) -> None:
    image = locked(base_image, context)
    with pytest.raises(KeyboardInterrupt), image_toolbox(image, fetcher(context), context):
        assert left_over(docker_engine)
        raise KeyboardInterrupt
    assert left_over(docker_engine) == []


@pytest.mark.real("docker", "registry", "images")
def test_an_image_without_python_is_named(
    llama_image: str, context: SourceContext, docker_engine: DockerEngine
) -> None:
    image = locked(llama_image, context)
    with pytest.raises(UsageError, match="has no python3 on its PATH") as caught:
        resolve_image(IN_IMAGE, image, fetcher(context), PROFILE, context)
    assert image.name in caught.value.summary
    assert left_over(docker_engine) == []


@pytest.mark.real("docker")
def test_an_engine_that_is_not_there_is_named(context: SourceContext, tmp_path: Path) -> None:
    blob = LockedFile("x", "0" * 64, 1)
    image = LockedImage("x:1", "registry:x", "", blob, blob, (), (), "linux/amd64")
    there = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    elsewhere = SourceContext(context.cache, Silent(), SystemRunner(), tmp_path, there.get)
    with pytest.raises(FetchError, match="reaching the docker engine") as caught:
        resolve_image(IN_IMAGE, image, lambda _: None, PROFILE, elsewhere)
    assert "DOCKER_HOST" in caught.value.remedy


def test_a_package_without_wheels_on_pypi(tmp_path: Path) -> None:
    context = SourceContext(Cache(tmp_path / "cache"), Silent(), SystemRunner(), tmp_path, os.environ.get)
    with pytest.raises(FetchError, match=r"^docopt==0\.6\.2: the index has it, but no wheel"):
        resolve_host(WheelsTable(("docopt==0.6.2",)), "", PROFILE, context)
