"""From a spec to a model that answers, without docker: install, upgrade, rollback, and a release that is no good."""

import pytest

from parts import journeys
from parts.process import free_port

SPEC = "demo-smollm2.toml"


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    return journeys.Office(tmp_path_factory.mktemp("office"))


@pytest.fixture(scope="module")
def first(office):
    return office.build(SPEC, "v1")


@pytest.fixture(scope="module")
def second(office):
    return office.build(SPEC, "v2", "serving.context=1024")


@pytest.fixture
def site(tmp_path):
    made = journeys.Site(tmp_path / "site 站点", free_port())
    yield made
    if (made.root / "bin").exists():
        made.control("--uninstall", "--yes").check()


@pytest.mark.timeout(900)
def test_install_upgrade_roll_back_and_forth(site, first, second):
    site.install(first, "--verify").check()
    assert not site.root.exists(), "--verify changes nothing"
    site.install(first, "--yes").check()
    assert "Paris" in site.ask()
    assert site.version() == "v1"

    site.install(second, "--yes").check()
    assert "Paris" in site.ask()
    assert site.version() == "v2"

    site.control("--rollback", "--yes").check()
    assert site.version() == "v1"
    assert "Paris" in site.ask()

    site.control("--rollback", "--yes").check()
    assert site.version() == "v2"
    assert "Paris" in site.ask()


@pytest.mark.timeout(900)
def test_a_release_that_fails_its_smoke_test_is_never_activated(site, office, first):
    bad = office.build(SPEC, "v3-bad", 'smoke=[{question="What is the capital of France?", expect=["Atlantis"]}]')
    site.install(first, "--yes").check()
    said = site.install(bad, "--yes").check(7)
    assert "v1" in said.err and "Atlantis" in said.err
    assert site.version() == "v1"
    assert "Paris" in site.ask()


def test_the_same_lock_gives_the_same_bytes_under_another_umask(office, first, tmp_path):
    lock = office.directory / f"{SPEC}.v1.lock.json"
    words = ["build", journeys.MANIFESTS / SPEC, "--output", tmp_path, "--lock", lock, "--set", "bundle.version=v1"]
    journeys.airbundle(*words, "--cache", journeys.store.root() / "airbundle", umask=0o077).check()
    again = tmp_path / first.name
    assert {path.name: path.read_bytes() for path in first.iterdir()} == {
        path.name: path.read_bytes() for path in again.iterdir()
    }


@pytest.mark.real("netns")
@pytest.mark.timeout(900)
def test_the_demo_answers_with_the_network_cut(tmp_path):
    said = journeys.airbundle("demo", "--dir", tmp_path, "--cache", journeys.store.root() / "airbundle").check()
    assert "Answer:" in said.out and "Paris" in said.out
    assert "network cut" in said.err
