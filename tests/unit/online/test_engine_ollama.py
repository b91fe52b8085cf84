"""Ollama: set by variables alone, with a store that its launcher lays out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from airbundle import engines
from airbundle.contract.lock import BundleLock, LockedFile
from airbundle.engines.ollama import LAUNCHER, MANIFEST
from airbundle_onsite.errors import UsageError
from parts.plans import lock

GGUF = b"GGUF" + b"\0" * 60
DIGEST = hashlib.sha256(GGUF).hexdigest()


def ollama(**wishes: Any) -> BundleLock:
    files = (LockedFile("w.gguf", DIGEST, len(GGUF)),)
    given = {"form": "gguf", "files": files, "facts": {"architecture": "llama"}, "profile": "cpu-x86_64", **wishes}
    return lock("ollama", context=2048, concurrency=2, **given)


def test_ollama_is_set_by_variables() -> None:
    made = engines.create("ollama").plans(ollama())[0]
    assert (made.id, made.gpus, made.readiness.health_path) == ("cpu", "none", "/api/version")
    assert {key: made.env[key] for key in ("OLLAMA_CONTEXT_LENGTH", "OLLAMA_NUM_PARALLEL", "OLLAMA_NO_CLOUD")} == {
        "OLLAMA_CONTEXT_LENGTH": "2048",
        "OLLAMA_NUM_PARALLEL": "2",
        "OLLAMA_NO_CLOUD": "1",
    }
    with pytest.raises(UsageError, match="OLLAMA_HOST cannot be given"):
        engines.create("ollama").plans(ollama(flags={"OLLAMA_HOST": "0.0.0.0"}))
    with pytest.raises(UsageError, match="Ollama serves GGUF, this is safetensors"):
        engines.create("ollama").plans(lock("ollama", profile="cpu-x86_64"))
    with pytest.raises(UsageError, match=r"ollama 0\.33\.0 does not take: OLLAMA_NUM_PARALEL"):
        engines.create("ollama").plans(ollama(flags={"OLLAMA_NUM_PARALEL": "1"}))
    split = (LockedFile("w-00001-of-00002.gguf", "1" * 64, 9),)
    with pytest.raises(UsageError, match="is split, and Ollama takes one file"):
        engines.create("ollama").plans(ollama(files=split))


def test_ollama_with_less() -> None:
    made = engines.create("ollama").plans(ollama())
    assert [plan.id for plan in made] == ["cpu", "cpu-1", "cpu-1-q8", "cpu-1-q4"]
    assert [plan.env["OLLAMA_NUM_PARALLEL"] for plan in made] == ["2", "1", "1", "1"]
    assert [plan.env.get("OLLAMA_KV_CACHE_TYPE") for plan in made] == [None, None, "q8_0", "q4_0"]
    assert {plan.env["OLLAMA_FLASH_ATTENTION"] for plan in made[2:]} == {"1"}
    assert {plan.env["OLLAMA_CONTEXT_LENGTH"] for plan in made} == {"2048"}  # as in the model's store
    needs = [plan.needs.memory for plan in made]
    assert needs == sorted(set(needs), reverse=True)
    assert "in place of 2" in {flag.name: flag.reason for flag in made[1].flags}["OLLAMA_NUM_PARALLEL"]

    card = ollama(profile="t4", gpus=1)
    assert card.profile.gpu is not None
    assert [plan.id for plan in engines.create("ollama").plans(card)] == ["gpu1", "gpu1-1", "gpu1-1-q8", "gpu1-1-q4"]
    old = dataclasses.replace(card.profile, gpu=dataclasses.replace(card.profile.gpu, capability="6.1"))
    found = engines.create("ollama").plans(dataclasses.replace(card, profile=old))
    assert not any("OLLAMA_KV_CACHE_TYPE" in plan.env for plan in found)  # flash attention is not for that GPU


def test_ollama_on_a_cpu_where_gpus_were_wanted_is_judged_by_the_spec() -> None:
    for policy in ("warn", "fail"):
        (made, *_) = engines.create("ollama").plans(ollama(downgrade=policy))
        assert {each.id: each.level for each in made.log_patterns}["ollama.cpu"] == policy


def test_ollamas_launcher_lays_out_a_store_whose_digests_hold(tmp_path: Path) -> None:
    made = ollama()
    plan = engines.create("ollama").plans(made)[0]
    config, model, state = tmp_path / "con fig", tmp_path / "m", tmp_path / "state"
    for place in (config, model, tmp_path / "bin"):
        place.mkdir()
    for name, data in engines.create("ollama").config_files(made).items():
        (config / name).write_bytes(data)
    (model / "w.gguf").write_bytes(GGUF)
    program = tmp_path / "bin" / "ollama"
    program.write_text('#!/bin/sh\necho "$@ $OLLAMA_HOST"\n')
    program.chmod(0o755)
    values = {"config": str(config), "model": str(model), "host": "::1", "port": "8000", "served_name": "m"}
    argv = [word.format(**values) for word in plan.argv]
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "OLLAMA_MODELS": str(state)}
    for _ in range(2):  # a restart finds what is there
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (0, "serve [::1]:8000\n", "")
    manifest = json.loads((state / "manifests" / "registry.ollama.ai" / "library" / "m" / "latest").read_text())
    assert [layer["mediaType"].rpartition(".")[2] for layer in manifest["layers"]] == ["model", "params"]
    for part in (manifest["config"], *manifest["layers"]):
        blob = state / "blobs" / part["digest"].replace(":", "-")
        assert (hashlib.sha256(blob.read_bytes()).hexdigest(), blob.stat().st_size) == (
            part["digest"][7:],
            part["size"],
        )
    assert json.loads((config / MANIFEST).read_text()) == manifest
    assert (config / LAUNCHER).is_file()
