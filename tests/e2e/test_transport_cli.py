"""repair, split, join, push, pull and build --single as a person types them: exit codes, JSON, and what they leave."""

import os
import subprocess

import pytest

from parts.bundles import flip
from parts.gguf import language_model
from parts.journeys import airbundle
from parts.keys import make_key, sign
from parts.shells import install_sh
from parts.sites import release_bundle, site
from parts.specs import write_spec


@pytest.fixture
def bundle(tmp_path):
    return release_bundle(tmp_path / "office", "v1", weights=b"GGUF" + os.urandom(3_000_000), part_size=1_000_000)


def test_build_single_gives_one_file(tmp_path, wheel_index):
    (tmp_path / "m.gguf").write_bytes(language_model())
    spec, dist = write_spec(tmp_path / "tiny.toml", wheel_index, tmp_path / "m.gguf"), tmp_path / "dist"
    made = airbundle("build", spec, "-o", dist, "--single", "--json").check().json
    assert made["bundle"] == str(dist / "tiny-v1.tar")
    assert [path.name for path in dist.iterdir()] == ["tiny-v1.tar"]
    subprocess.run(["tar", "-xf", "tiny-v1.tar"], cwd=dist, check=True, timeout=60)
    airbundle("verify", dist / "tiny-v1").check()
    assert os.access(dist / "tiny-v1/install.sh", os.X_OK)
    (dist / "tiny-v1").rename(tmp_path / "away")
    assert "exists already" in airbundle("build", spec, "-o", dist, "--single").check(2).err
    airbundle("build", spec, "-o", dist, "--single", "--force").check()
    assert [path.name for path in dist.iterdir()] == ["tiny-v1.tar"]


def test_a_signed_bundle_in_small_parts_installs_where_its_key_is_pinned(bundle, tmp_path):
    """56 MB parts for a site reached 64 MiB at a time, in small: split, sign, carry, install."""
    key = make_key(tmp_path, "key")
    sign(bundle, key)
    (tmp_path / "allowed").write_text(key.line)
    said = airbundle("split", bundle, "--part-size", "1000000", "-o", tmp_path / "plain").check()
    assert "NOT signed" in said.out
    with site(tmp_path / "root") as here:
        words = (
            "--yes",
            "--root",
            str(here.root),
            "--port",
            str(here.port),
            "--allowed-signers",
            str(tmp_path / "allowed"),
        )
        assert install_sh(tmp_path / "plain/demo-v1", *words).returncode == 6
        signed = ("--sign-key", tmp_path / "key", "--allowed-signers", tmp_path / "allowed")
        made = (
            airbundle("split", bundle, "--part-size", "1200kB", "-o", tmp_path / "new", *signed, "--json").check().json
        )
        assert (made["parts"], made["signed_by"]) == (3, [key.fingerprint])
        done = install_sh(tmp_path / "new/demo-v1", *words)
        assert done.returncode == 0, done.stderr
        assert here.answer() == "Paris, says v1"


def test_a_repair_of_a_signed_bundle_is_trusted_by_the_bundles_own_signature(bundle, tmp_path):
    key = make_key(tmp_path, "key")
    sign(bundle, key)
    (tmp_path / "allowed").write_text(key.line)
    subprocess.run(["cp", "-r", bundle, tmp_path / "stick"], check=True, timeout=60)
    flip(tmp_path / "stick/payload.tar.001", 4)
    (tmp_path / "stick/bundle.json.sig").write_bytes(b"worn out\n")
    with site(tmp_path / "root") as here:
        allowed = ("--allowed-signers", tmp_path / "allowed")
        request = tmp_path / "request.json"
        assert here.run("--bundle", tmp_path / "stick", "--repair-request", request, *allowed).code == 0
        made = airbundle("repair", bundle, "--request", request, "-o", tmp_path / "answer", "--json").check().json
        assert [each.partition(",")[0] for each in made["pieces"]] == ["payload.tar.001"]
        # The stick's signature is gone, so the answer's install.sh is started, with the stick as a source of parts.
        done = here.install(made["directory"], "--from", tmp_path / "stick", *allowed)
        assert done.code == 0, done
        assert here.answer() == "Paris, says v1"


def test_join_into_a_file_and_into_one_part(bundle, tmp_path):
    made = airbundle("join", bundle, "--tar", tmp_path / "demo.tar", "--json").check().json
    assert made["size"] == (tmp_path / "demo.tar").stat().st_size
    assert airbundle("join", bundle, "-o", tmp_path / "one", "--json").check().json["parts"] == 1
    flip(bundle / "payload.tar.002", 4)
    said = airbundle("join", bundle, "--tar", tmp_path / "bad.tar").check(5)
    assert "payload.tar.002, piece 1 of 1" in said.err
    assert not list(tmp_path.glob("*bad.tar*"))


@pytest.mark.real("registry")
def test_push_and_pull(bundle, registry, tmp_path):
    target = f"registry:{registry.host}/cli/demo:v1"
    pushed = airbundle("push", bundle, target, "--json").check().json
    pulled = airbundle("pull", target, "-o", tmp_path / "out", "--json").check().json
    assert pulled["digest"] == pushed["digest"]
    airbundle("verify", tmp_path / "out/demo-v1").check()
    assert "exists already" in airbundle("pull", target, "-o", tmp_path / "out").check(2).err
    assert "nothing of this name" in airbundle("pull", f"{target}x", "-o", tmp_path / "other").check(10).err
    assert "write registry:HOST" in airbundle("push", bundle, "somewhere").check(2).err
