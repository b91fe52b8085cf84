"""The real parts work, with the real clients; so that a failure elsewhere is not theirs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from safetensors import safe_open

from parts import images, models, need, store, wheels
from parts.disks import read_only_noexec
from parts.hub import Fault
from parts.registry import skopeo

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.mark.real("docker")
def test_the_docker_engine_runs_a_container_of_the_base_image(docker_engine, base_archive):
    docker_engine.run("load", "-i", str(base_archive.path))
    code = "import sys; print(sys.version_info >= (3, 9))"
    done = docker_engine.run("run", "--rm", "--network", "none", base_archive.reference, "python3", "-c", code)
    assert done.stdout.strip() == "True"


@pytest.mark.real("docker")
def test_the_docker_engine_pulls_what_was_pushed_to_the_registry(docker_engine, base_image, base_archive):
    docker_engine.run("pull", base_image)
    inspected = docker_engine.run("image", "inspect", "--format", "{{.Id}}", base_image).stdout.strip()
    assert inspected == base_archive.config_digest


@pytest.mark.real("docker")
def test_the_llama_image_starts_its_server(docker_engine, llama_archive):
    docker_engine.run("load", "-i", str(llama_archive.path))
    done = docker_engine.run("run", "--rm", "--network", "none", llama_archive.reference, "--version", check=False)
    assert done.returncode == 0, done.stderr
    assert "version" in done.stdout + done.stderr


@pytest.mark.real("registry")
def test_the_registry_gives_back_the_same_image(registry, llama_image, llama_archive, tmp_path):
    assert llama_image.startswith(f"{registry.host}/airbundle-test/llama@sha256:")
    assert "1" in registry.tags("airbundle-test/llama")
    done = skopeo("copy", "--src-tls-verify=false", f"docker://{llama_image}", f"oci:{tmp_path / 'layout'}:x")
    assert done.returncode == 0, done.stderr
    index = json.loads((tmp_path / "layout" / "index.json").read_text())
    assert index["manifests"][0]["digest"] == llama_archive.manifest_digest


@pytest.mark.real("registry")
def test_a_tag_moves_when_another_image_is_pushed(registry, tmp_path):
    first = registry.push(images.small_image(tmp_path, "one", {"hello": b"1"}), "airbundle-test/moving:latest")
    second = registry.push(images.small_image(tmp_path, "two", {"hello": b"2"}), "airbundle-test/moving:latest")
    assert first != second
    assert second.endswith(registry.digest("airbundle-test/moving", "latest"))


def test_a_small_image_is_the_same_bytes_each_time(tmp_path):
    (tmp_path / "again").mkdir()
    first = images.small_image(tmp_path, "one", {"a": b"1", "b": b"2"})
    second = images.small_image(tmp_path / "again", "one", {"b": b"2", "a": b"1"})
    assert first.path.read_bytes() == second.path.read_bytes()


def test_the_hub_tells_files_sizes_and_hashes(model_hub, tiny_model):
    commit = model_hub.add("acme/tiny", tiny_model)
    info = HfApi(endpoint=model_hub.url).model_info("acme/tiny", files_metadata=True)
    assert info.sha == commit
    for sibling in info.siblings:
        data = (tiny_model / sibling.rfilename).read_bytes()
        assert sibling.size == len(data)
        if sibling.rfilename.endswith(".safetensors"):
            assert sibling.lfs.sha256 == hashlib.sha256(data).hexdigest()
        else:
            assert sibling.blob_id == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            assert sibling.lfs is None


def test_the_hub_lists_trees_in_pages(model_hub, tmp_path):
    for number in range(120):
        path = tmp_path / "repo" / f"part{number % 3}" / f"{number:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    model_hub.add("acme/many", tmp_path / "repo")
    api = HfApi(endpoint=model_hub.url)
    everything = list(api.list_repo_tree("acme/many", recursive=True))
    assert len([entry for entry in everything if hasattr(entry, "blob_id")]) == 120
    assert [entry.path for entry in api.list_repo_tree("acme/many")] == ["part0", "part1", "part2"]
    assert len(list(api.list_repo_tree("acme/many", "part1"))) == 40


def test_the_hub_serves_a_snapshot(model_hub, tiny_model, tmp_path):
    commit = model_hub.add("acme/tiny", tiny_model)
    got = Path(snapshot_download("acme/tiny", endpoint=model_hub.url, cache_dir=tmp_path, revision=commit))
    names = sorted(path.name for path in tiny_model.iterdir())
    assert sorted(path.name for path in got.iterdir()) == names
    for name in names:
        assert (got / name).read_bytes() == (tiny_model / name).read_bytes()


def test_a_branch_moves_and_the_older_commit_stays(model_hub, tiny_model, tmp_path):
    old = model_hub.add("acme/tiny", tiny_model)
    newer = models.write_tiny_model(tmp_path / "newer", seed=1, shards=1)
    new = model_hub.add("acme/tiny", newer)
    api = HfApi(endpoint=model_hub.url)
    assert (api.model_info("acme/tiny").sha, api.model_info("acme/tiny", revision=old).sha) == (new, old)
    with pytest.raises(RevisionNotFoundError):
        api.model_info("acme/tiny", revision="no-such-branch")


def test_a_gated_repository_needs_the_right_token(model_hub, tiny_model, tmp_path):
    model_hub.add("acme/gated", tiny_model, gated=True)
    place = {"endpoint": model_hub.url, "cache_dir": tmp_path}
    for token, status in ((False, 401), (model_hub.outsider_token, 403)):
        with pytest.raises(GatedRepoError) as refused:
            hf_hub_download("acme/gated", "config.json", token=token, **place)
        assert refused.value.response.status_code == status
    assert Path(hf_hub_download("acme/gated", "config.json", token=model_hub.token, **place)).is_file()


def test_an_absent_repository_is_told_as_the_hub_tells_it(model_hub):
    with pytest.raises(RepositoryNotFoundError) as refused:
        HfApi(endpoint=model_hub.url).model_info("acme/none", token=False)
    assert refused.value.response.status_code == 401


def test_a_dropped_connection_is_resumed_where_it_broke(model_hub, tmp_path):
    weights = tmp_path / "repo" / "big.bin"
    weights.parent.mkdir()
    weights.write_bytes(os.urandom(12 << 20))
    model_hub.add("acme/big", weights.parent)
    model_hub.fail("acme/big", "big.bin", Fault("drop", offset=11 << 20))
    got = hf_hub_download("acme/big", "big.bin", endpoint=model_hub.url, cache_dir=tmp_path / "cache")
    assert Path(got).read_bytes() == weights.read_bytes()
    first, second = model_hub.downloads("big.bin")
    assert first.sent == 11 << 20
    assert second.sent < 12 << 20
    assert second.range == f"bytes={(12 << 20) - second.sent}-"


def test_the_hub_can_lie_and_be_busy(model_hub, tiny_model, tmp_path):
    model_hub.add("acme/tiny", tiny_model)
    address = f"{model_hub.url}/acme/tiny/resolve/main/config.json"
    good = (tiny_model / "config.json").read_bytes()

    model_hub.fail("acme/tiny", "config.json", Fault("wrong-byte", offset=3))
    bad = DIRECT.open(address).read()
    assert [number for number in range(len(good)) if good[number] != bad[number]] == [3]

    model_hub.fail("acme/tiny", "config.json", Fault("truncate", offset=10))
    assert DIRECT.open(address).read() == good[:10]

    model_hub.fail("acme/tiny", "config.json", Fault("unavailable", times=2))
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError, match="503"):
            DIRECT.open(address)
    assert DIRECT.open(address).read() == good

    model_hub.fail("acme/tiny", "config.json", Fault("truncate", offset=10))
    with pytest.raises((HfHubHTTPError, OSError)):
        hf_hub_download("acme/tiny", "config.json", endpoint=model_hub.url, cache_dir=tmp_path)


def test_the_tiny_model_is_whole(tiny_model):
    index = json.loads((tiny_model / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 2
    size = 0
    for name, file in index["weight_map"].items():
        with safe_open(tiny_model / file, "numpy") as shard:
            size += shard.get_tensor(name).nbytes
    assert size == index["metadata"]["total_size"]


def test_the_real_model_is_a_gguf_file(smollm2_gguf):
    with smollm2_gguf.open("rb") as handle:
        assert handle.read(4) == b"GGUF"
    assert smollm2_gguf.stat().st_size > 80_000_000


def test_pip_installs_a_made_wheel_with_its_requirement_from_the_index(wheel_index, tmp_path):
    wheels.make_wheel(wheel_index.directory, "made-part", "1.2")
    wheels.make_wheel(wheel_index.directory, "made-part", "9.0", requires_python=">=99")
    wheels.make_wheel(wheel_index.directory, "made.whole", "1.0", ["made-part>=1"], scripts={"made": "made_whole:main"})
    target = tmp_path / "site"
    argv = [sys.executable, "-m", "pip", "--isolated", "install", "--quiet", "--index-url", wheel_index.url]
    done = subprocess.run([*argv, "--target", str(target), "made-whole"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (target / "made_part.py").read_text() == 'VERSION = "1.2"\n'
    assert (target / "bin" / "made").is_file()


@pytest.mark.real("ext4")
def test_a_small_disk_gets_full(small_disk):
    mount = small_disk(8)
    with pytest.raises(OSError, match="No space left"):
        (mount / "file").write_bytes(bytes(9 << 20))


@pytest.mark.real("fat")
def test_a_fat_disk_has_neither_modes_nor_colons(fat_disk):
    mount = fat_disk(48)
    (mount / "File.txt").write_bytes(b"x" * 1000)
    assert (mount / "FILE.TXT").read_bytes() == b"x" * 1000
    with pytest.raises(OSError):
        (mount / "a:b").write_text("x")
    with pytest.raises(OSError):
        (mount / "link").symlink_to("File.txt")


@pytest.mark.real("ext4")
def test_media_can_be_read_only_and_noexec(tmp_path):
    script = tmp_path / "stick" / "run.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    with read_only_noexec(script.parent) as media:
        with pytest.raises(OSError, match="Read-only"):
            (media / "new").write_text("x")
        with pytest.raises(PermissionError):
            subprocess.run([media / "run.sh"])
        assert subprocess.run(["sh", media / "run.sh"], capture_output=True).stdout == b"ran\n"


@pytest.mark.real("netns")
def test_a_command_without_network_has_loopback_only(no_network):
    code = "import socket; print(socket.if_nameindex()); socket.create_server(('127.0.0.1', 0))"
    done = no_network([sys.executable, "-c", code])
    assert (done.returncode, done.stdout.count("lo")) == (0, 1), done.stderr
    reach = "import socket; socket.create_connection(('192.0.2.1', 80), 3)"
    assert "unreachable" in no_network([sys.executable, "-c", reach]).stderr


def ask(url: str, question: str = "What is the capital of France?", **more: object) -> bytes:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": question}], **more}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    return DIRECT.open(request, timeout=2).read()


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("none", "The capital of France is Paris."),
        ("garbage", "!" * 64),
        ("empty", ""),
        ("wrong", "The capital of France is Rome."),
    ],
)
def test_the_fake_engine_answers(fake_engine, fault, text):
    running = fake_engine.start(fault)
    assert json.loads(ask(running.url))["choices"][0]["message"]["content"] == text
    chunks = [
        json.loads(line[6:]) for line in ask(running.url, stream=True).splitlines() if line.startswith(b"data: {")
    ]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text


def test_the_fake_engine_loads_hangs_and_ends(fake_engine):
    loading = fake_engine.start("loading", "--load-seconds", "60")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        DIRECT.open(f"{loading.url}/health", timeout=5)
    hanging = fake_engine.start("hang")
    assert DIRECT.open(f"{hanging.url}/health", timeout=5).status == 200
    with pytest.raises(TimeoutError):
        ask(hanging.url)
    with pytest.raises(RuntimeError, match="cannot load the model"):
        fake_engine.start("exit-at-start")


@pytest.mark.real("netns")
def test_the_fake_engine_phones_home_in_vain(fake_engine, no_network, tmp_path):
    words = ["--port", "1", "--fault", "phone-home", "--phone-home-host", "192.0.2.1", "--host", "192.0.2.9"]
    script = Path(models.__file__).with_name("fake_engine.py")
    assert "telemetry to 192.0.2.1 failed" in no_network([sys.executable, script, *words]).stderr


def test_a_thing_in_the_cache_is_made_once_and_only_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRBUNDLE_TEST_CACHE", str(tmp_path))
    made: list[Path] = []

    def broken(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise ValueError("cut off")

    def make(directory: Path) -> None:
        made.append(directory)
        (directory / "whole").write_text("x")

    with pytest.raises(ValueError, match="cut off"):
        store.once("thing", broken)
    threads = [threading.Thread(target=store.once, args=("thing", make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert [path.name for path in store.once("thing", make).iterdir()] == ["whole"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".thing.lock", "thing"]


def test_a_missing_part_fails_in_ci(monkeypatch):
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match=r"missing part: no-such-program.*apt-get install"):
        need.program("no-such-program")


def test_no_settings_of_the_caller_reach_the_tests():
    assert not {"PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "HF_TOKEN", "HF_ENDPOINT", "DOCKER_HOST"} & set(os.environ)
