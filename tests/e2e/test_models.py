"""Models as a person meets them: what is not whole is named before it leaves, what stands beside a model is served."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parts import gguf, journeys, models, wheels
from parts.hub import ModelHub
from parts.journeys import airbundle
from parts.modelscope_hub import ModelScopeHub
from parts.process import free_port
from parts.specs import write_spec

SHARD = "model-00002-of-00002.safetensors"

Build = Callable[..., journeys.Said]


@pytest.fixture
def build(tmp_path: Path, wheel_index: wheels.WheelIndex) -> Build:
    """``build(source, more, **environment)``: build a bundle of a model, with a stand-in for the engine."""

    def run(source: str, more: str = "", **environment: str) -> journeys.Said:
        path = write_spec(tmp_path / "spec.toml", wheel_index, source, more=more)
        return airbundle(
            "build", path, "-o", tmp_path / "dist", "--json", "--cache", tmp_path / "cache", env=environment
        )

    return run


def missing(model: Path) -> str:
    (model / SHARD).unlink()
    return f"{SHARD}: missing"


def short(model: Path) -> str:
    whole = (model / SHARD).read_bytes()
    (model / SHARD).write_bytes(whole[:-1])
    return f"{SHARD}: {len(whole) - 1} bytes, its header needs {len(whole)}"


def pointer(model: Path) -> str:
    data = (model / SHARD).read_bytes()
    text = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{hashlib.sha256(data).hexdigest()}\nsize {len(data)}\n"
    )
    (model / SHARD).write_text(text)
    return f"{SHARD}: a pointer, not the file: fetch its LFS content"


def unlisted(model: Path) -> str:
    index = model / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"] = {name: place for name, place in document["weight_map"].items() if place != SHARD}
    index.write_text(json.dumps(document))
    return f"{SHARD}: model.safetensors.index.json does not list it"


DAMAGES = [missing, short, pointer, unlisted]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_is_named(
    build: Build, tiny_model: Path, tmp_path: Path, damage: Callable[[Path], str]
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    wanted = damage(model)
    said = build(f"local:{model}").check(10)
    assert wanted in said.err
    assert not list((tmp_path / "dist").glob("*"))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["hf", "modelscope"])
def test_a_damaged_model_on_a_hub_is_named(
    build: Build,
    tiny_model: Path,
    tmp_path: Path,
    model_hub: ModelHub,
    modelscope: ModelScopeHub,
    damage: Callable[[Path], str],
    kind: str,
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    wanted = damage(model)
    hub, branch = (model_hub, "main") if kind == "hf" else (modelscope, "master")
    hub.add("org/tiny", model, branch=branch)
    said = build(f"{kind}:org/tiny", HF_ENDPOINT=model_hub.url, MODELSCOPE_ENDPOINT=modelscope.url).check(10)
    assert wanted in said.err
    assert f"{kind}:org/tiny" in said.err
    assert not list((tmp_path / "dist").glob("*"))


def test_a_hub_cache_s_dead_link_and_a_link_that_leaves_are_named(
    build: Build, tiny_model: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / ("a" * 40)
    blobs = tmp_path / "models--org--tiny" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in tiny_model.iterdir():
        shutil.copy(path, blobs / f"blob-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob-{path.name}")
    (blobs / f"blob-{SHARD}").rename(blobs / f"blob-{SHARD}.incomplete")
    (tmp_path / "private.txt").write_text("secret")
    (snapshot / "notes.txt").symlink_to(tmp_path / "private.txt")
    said = build(f"local:{snapshot}").check(10)
    assert f"{SHARD}: a link to nothing" in said.err
    assert "notes.txt: a link that leaves the directory" in said.err


def test_a_download_that_was_not_finished_is_no_model(build: Build, tiny_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    for path in model.glob("*.safetensors*"):
        path.rename(path.with_name(f"{path.name}.incomplete"))
    assert "it holds no weights" in build(f"local:{model}").check(10).err


def test_a_model_with_code_is_a_decision(build: Build, tiny_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "modeling_x.X"}}))
    (model / "modeling_x.py").write_text("import einops\n")
    assert "trust_remote_code" in build(f"local:{model}").check(10).err
    said = build(f"local:{model}", "trust_remote_code = true").check(10)
    assert "its Python code imports einops, which no wheel of the bundle provides" in said.err


def test_many_quantisations_want_a_choice(build: Build, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for quant in ("Q4_K_M", "Q8_0"):
        (model / f"m-{quant}.gguf").write_bytes(gguf.language_model())
    said = build(f"local:{model}").check(10)
    assert "m-Q4_K_M.gguf (" in said.err and "m-Q8_0.gguf (" in said.err and "file = " in said.err
    made = build(f"local:{model}", 'file = "*Q8*"\n').check().json["manifest"]
    assert made["models"][0]["entry"] == "m-Q8_0.gguf"
    assert made["models"][0]["quantization"] == "gguf Q4_K_M", "by its header, whatever its name says"
    assert made["models"][0]["chat_template"] is True


def test_what_does_not_fit_the_model_is_named(build: Build, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf.language_model(width=4096))
    gguf.write_adapter(tmp_path / "a.gguf", width=16, architecture="qwen2")
    extra = f'[[model.extra]]\nrole = "adapter"\nsource = "local:{tmp_path}/a.gguf"\nserved_name = "lora"\n'
    said = build(f"local:{tmp_path}/m.gguf", extra).check(10)
    assert "it was trained for qwen2, the model is llama" in said.err
    twice = build(f"local:{tmp_path}/m.gguf", extra.replace('"lora"', '"tiny"')).check(2)
    assert "served_name 'tiny' is given to two of the models" in twice.err


# --- really served -----------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Iterator[journeys.Site]:
    made = journeys.Site(tmp_path / "site", free_port())
    yield made
    if (made.root / "bin").exists():
        made.control("--uninstall", "--yes").check()


@pytest.mark.timeout(900)
def test_a_draft_model_and_an_adapter_are_packed_and_served(site: journeys.Site, tmp_path: Path) -> None:
    """The model guesses ahead for itself, and the adapter changes nothing: the answer is the model's own."""
    gguf.write_adapter(tmp_path / "nothing.gguf", width=576)
    extras = (
        f'model.extra=[{{role="draft", source="local:{models.smollm2_gguf()}", served_name="draft"}}, '
        f'{{role="adapter", source="local:{tmp_path}/nothing.gguf", served_name="nothing"}}]'
    )
    bundle = journeys.Office(tmp_path).build("demo-smollm2.toml", "v1", extras)
    manifest = json.loads((bundle / "bundle.json").read_text())
    assert [(model["served_name"], model.get("role", "model")) for model in manifest["models"]] == [
        ("smollm2", "model"),
        ("draft", "draft"),
        ("nothing", "adapter"),
    ]
    site.install(bundle, "--yes").check()
    assert "Paris" in site.ask()
    log = "".join(path.read_text(errors="replace") for path in site.root.rglob("engine.log"))
    assert "loading draft model" in log and "draft acceptance" in log
