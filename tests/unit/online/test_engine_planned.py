"""Launch plans of the engines that are chosen and sized, as the site will read them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airbundle import engines, profiles
from airbundle.contract.lock import (
    LOCK_VERSION,
    BundleLock,
    LockedFile,
    LockedImage,
    LockedModel,
    LockedWheel,
    WheelSettings,
)
from airbundle.contract.spec import (
    BundleSpec,
    BundleTable,
    EngineTable,
    ImageTable,
    ModelTable,
    RuntimeTable,
    ServingTable,
    TargetTable,
    WheelsTable,
)
from airbundle.engines.auto import choose, held
from airbundle.engines.base import Chooses
from airbundle.engines.lazy import plan_environment
from airbundle.engines.ollama import LAUNCHER, MANIFEST
from airbundle_onsite.contract.fingerprint import Gpu
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.errors import UsageError
from airbundle_onsite.plan import gpu_unfit

GOLDEN = Path(__file__).parents[2] / "golden"
CONFIG = (GOLDEN / "configs" / "qwen2.5-7b.json").read_text()
BLOB = LockedFile("x", "0" * 64, 1)
WEIGHTS = 15_231_233_024
IMAGES = {
    "vllm": "vllm/vllm-openai:v0.24.0",
    "sglang": "lmsysorg/sglang:v0.5.23",
    "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
    "ollama": "ollama/ollama:0.33.0",
    "auto": "vllm/vllm-openai:v0.24.0",
}


def wheel(name: str, version: str) -> LockedWheel:
    return LockedWheel(name, version, LockedFile(f"{name}-{version}-py3-none-any.whl", "0" * 64, 1))


def lock(
    engine: str = "vllm",
    *,
    profile: str = "h200-sxm",
    gpus: int = 0,
    runtime: str = "docker",
    image: str = "",
    facts: Mapping[str, str] | None = None,
    form: str = "safetensors",
    files: tuple[LockedFile, ...] = (LockedFile("model.safetensors", "1" * 64, WEIGHTS),),
    wheels: tuple[LockedWheel, ...] = (),
    extra: tuple[LockedModel, ...] = (),
    flags: Mapping[str, str] | None = None,
    version: str = "",
    **serving: Any,
) -> BundleLock:
    docker = runtime == "docker"
    spec = BundleSpec(
        bundle=BundleTable("b", "1"),
        target=TargetTable(profile=profile, gpus=gpus),
        model=ModelTable("local:x", "m"),
        engine=EngineTable(engine, version, flags or {}),
        runtime=RuntimeTable(runtime),  # type: ignore[arg-type]
        image=ImageTable("daemon:x:1") if docker else None,
        wheels=WheelsTable(("x",)) if wheels or not docker else None,
        serving=ServingTable(**{"context": 8192, "concurrency": 16, **serving}),
    )
    model = LockedModel(
        "m", "local:x", "r", form, files, files[0].path, facts={"config": CONFIG} if facts is None else facts
    )  # type: ignore[call-arg]
    made = LockedImage(image or IMAGES[engine], "s", "d", BLOB, BLOB, (), (), "linux/amd64")
    settings = WheelSettings("3.12", "linux_x86_64") if wheels else None
    return BundleLock(
        LOCK_VERSION,
        0,
        "t",
        spec,
        "0" * 64,
        profiles.load(profile),
        (model, *extra),
        wheels,
        settings,
        (made,) if docker else (),
    )


def plans(engine: str = "vllm", **wishes: Any) -> tuple[LaunchPlan, ...]:
    return engines.create(engine).plans(lock(engine, **wishes))


def value(made: LaunchPlan, flag: str) -> str:
    return made.argv[made.argv.index(flag) + 1]


# --- vLLM --------------------------------------------------------------------------------------------------------


def test_a_local_path_an_explicit_port_and_no_way_out() -> None:
    for made in plans():
        assert made.argv[:5] == ("{python}", "-m", "vllm.entrypoints.cli.main", "serve", "{model}")
        assert (value(made, "--port"), value(made, "--host")) == ("{port}", "{host}")
        assert value(made, "--served-model-name") == "{served_name}"
        assert {made.env["HF_HUB_OFFLINE"], made.env["TRANSFORMERS_OFFLINE"], made.env["VLLM_NO_USAGE_STATS"]} == {"1"}
        assert made.env["VLLM_CACHE_ROOT"] == "{state}/vllm"


def test_more_gpus_less_memory_and_the_context_always_said() -> None:
    made = plans(context=16384, concurrency=64)
    assert [plan.id for plan in made][:2] == ["gpu2", "gpu1"]
    assert [plan.id for plan in plans(context=2048, concurrency=1)][-2:] == ["gpu2", "gpu1"]  # nothing smaller fits
    assert len(made) >= 3
    assert value(made[0], "--data-parallel-size") == "2"
    for plan in made:
        assert "--max-model-len" in plan.argv
        assert plan.shm_bytes >= 1 << 30
    needs = [(plan.needs.gpus, plan.needs.gpu_memory) for plan in made]
    assert needs == sorted(needs, reverse=True)


def test_a_plan_for_less_memory_says_what_was_given_up() -> None:
    smaller = plans(profile="a100-40-pcie", context=16384, concurrency=20)
    reasons = {flag.name: flag.reason for flag in smaller[-1].flags}
    assert int(value(smaller[-1], "--max-num-seqs")) < 20 or int(value(smaller[-1], "--max-model-len")) < 16384
    assert "in place of" in reasons["--max-num-seqs"]


def test_the_site_takes_what_its_gpu_can_hold() -> None:
    """By the site's own rule: the first plan that speaks against no GPU of the host."""
    made = plans(context=16384, concurrency=64, gpus=1)

    def taken(memory: int, capability: str = "9.0") -> str:
        gpu = Gpu(index=0, name="x", capability=capability, memory_total=memory)
        return next((plan.id for plan in made if not gpu_unfit(plan.needs, gpu)), "")

    assert taken(150 << 30) == made[0].id == "gpu1"
    assert taken(made[1].needs.gpu_memory) == made[1].id
    assert taken(10 << 30) == ""
    assert taken(150 << 30, "8.0") == ""


def test_a_number_of_gpus_in_the_spec_is_a_limit() -> None:
    assert max(plan.needs.gpus for plan in plans(profile="h100-sxm", gpus=2)) == 2
    assert {plan.needs.gpus for plan in plans(profile="h100-sxm", gpus=2)} == {1, 2}


def test_code_for_the_gpu_and_python_for_the_wheels() -> None:
    made = plans(runtime="venv", wheels=(wheel("vllm", "0.24.0"), wheel("pip", "26.0")))[0]
    assert (made.engine_version, made.image, made.wheels) == ("0.24.0", None, True)
    assert made.needs.architectures == ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
    assert (made.needs.capability, made.needs.python) == ("9.0", ">=3.12,<3.13")
    assert made.env["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


def test_patterns_and_expectations_travel_with_the_plan() -> None:
    found = {pattern.id for pattern in plans()[0].log_patterns}
    assert {"vllm.attention", "vllm.kv-tokens", "vllm.expected-attention", "vllm.expected-dtype"} <= found


def levels(engine: str, downgrade: str, **wishes: Any) -> dict[str, str]:
    return {each.id: each.level for each in plans(engine, downgrade=downgrade, **wishes)[-1].log_patterns}


@pytest.mark.parametrize(
    ("engine", "silent", "loud", "fact"),
    [
        ("vllm", {"vllm.eager", "vllm.expected-dtype"}, "vllm.context-too-long", "vllm.attention"),
        ("sglang", {"sglang.float16"}, "sglang.no-memory", "sglang.kv-tokens"),
    ],
)
def test_a_silent_downgrade_is_judged_by_the_spec(engine: str, silent: set[str], loud: str, fact: str) -> None:
    for policy in ("warn", "fail"):
        found = levels(engine, policy)
        assert {found[name] for name in silent} == {policy}
        assert (found[loud], found[fact]) == ("fail", "fact")


def test_what_stands_beside_the_model() -> None:
    beside = (
        LockedModel("tone", "local:a", "r", "safetensors", (BLOB,), role="adapter"),
        LockedModel("facts", "local:b", "r", "safetensors", (BLOB,), role="adapter"),
        LockedModel("small", "local:c", "r", "safetensors", (BLOB,), role="draft"),
    )
    made = plans(extra=beside)[0]
    assert made.needs.gpu_memory >= plans()[0].needs.gpu_memory
    place = made.argv.index("--lora-modules")
    assert made.argv[place + 1 : place + 3] == ("tone={models}/tone", "facts={models}/facts")
    assert '"model":"{models}/small"' in value(made, "--speculative-config")


def test_what_stands_beside_the_model_on_sglang_and_not_on_tensorrt_llm() -> None:
    beside = (
        LockedModel("tone", "local:a", "r", "safetensors", (BLOB,), role="adapter"),
        LockedModel("facts", "local:b", "r", "safetensors", (BLOB,), role="adapter"),
        LockedModel("small", "local:c", "r", "safetensors", (BLOB,), role="draft"),
    )
    made = plans("sglang", extra=beside)[0]
    place = made.argv.index("--lora-paths")
    assert made.argv[place + 1 : place + 3] == ("tone={models}/tone", "facts={models}/facts")
    assert "--enable-lora" in made.argv
    assert value(made, "--speculative-draft-model-path") == "{models}/small"
    with pytest.raises(UsageError, match="adapter tone: trtllm-serve has no option for it"):
        plans("tensorrt-llm", extra=beside)
    for engine in ("vllm", "sglang"):
        with pytest.raises(UsageError, match="2 models with the role draft"):
            plans(engine, extra=(beside[2], dataclasses.replace(beside[2], served_name="other")))
        with pytest.raises(UsageError, match=r"draft small: .* reads safetensors here, this is GGUF"):
            plans(engine, extra=(dataclasses.replace(beside[2], format="gguf"),))


def test_what_stands_beside_the_model_takes_memory() -> None:
    draft = LockedModel(
        "small", "local:c", "r", "safetensors", (LockedFile("d.safetensors", "2" * 64, 4 << 30),), role="draft"
    )
    usual = plans(gpus=1)[0].needs.gpu_memory
    assert plans(gpus=1, extra=(draft,))[0].needs.gpu_memory - usual > 3 << 30


@pytest.mark.parametrize(
    ("engine", "flag"),
    [("vllm", "--trust-remote-code"), ("sglang", "--trust-remote-code"), ("tensorrt-llm", "--trust_remote_code")],
)
def test_a_model_s_own_code_runs_only_where_the_spec_says_so(engine: str, flag: str) -> None:
    config = json.dumps({**json.loads(CONFIG), "auto_map": {"AutoConfig": "configuration.Own"}})

    def found(trust: bool | None, config: str, code: tuple[str, ...] = ()) -> bool:
        made = lock(engine, facts={"config": config})
        spec = dataclasses.replace(made.spec, model=dataclasses.replace(made.spec.model, trust_remote_code=trust))
        model = dataclasses.replace(made.models[0], custom_code=code)
        words = engines.create(engine).plans(dataclasses.replace(made, spec=spec, models=(model,)))[0].argv
        return flag in words

    assert found(True, config)
    assert found(True, CONFIG, ("tokenizer.py",))  # named by the tokenizer's settings
    assert not found(False, config)  # left out of the bundle
    assert not found(None, config)
    assert not found(True, CONFIG)


def on_nodes(nodes: int, engine: str, **wishes: Any) -> LaunchPlan:
    made = lock(engine, **wishes)
    return engines.create(engine).plans(
        dataclasses.replace(made, profile=dataclasses.replace(made.profile, numa_nodes=nodes))
    )[0]


def test_workers_keep_to_the_numa_node_of_their_gpu_where_they_may() -> None:
    for version, has in (("0.24.0", True), ("0.10.2", False)):
        wheels = (wheel("vllm", version),)
        for nodes in (0, 1, 2):
            made = on_nodes(nodes, "vllm", runtime="venv", wheels=wheels)
            assert ("--numa-bind" in made.argv) is (has and nodes == 2)
    patterns = {each.id: each for each in on_nodes(2, "vllm", runtime="venv", wheels=wheels).log_patterns}
    assert "vllm.numa-bind" in patterns
    assert "--numa-bind" not in on_nodes(2, "vllm").argv  # a container has no right to
    assert on_nodes(2, "sglang").env["SGLANG_AUTO_NUMA_BIND"] == "1"
    assert "SGLANG_AUTO_NUMA_BIND" not in on_nodes(0, "sglang").env


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_what_keeps_an_engine_quiet_is_set(engine: str) -> None:
    made = lock(engine)
    for plan in engines.create(engine).plans(made):
        wanted = plan_environment(engine, plan.engine_version, made)
        assert wanted["HF_HUB_OFFLINE"] == "1"
        assert wanted.items() <= plan.env.items()


def test_what_cannot_work_is_refused_with_its_cure() -> None:
    with pytest.raises(UsageError, match="cannot serve this as planned") as caught:
        plans(facts={"config": (GOLDEN / "configs" / "llama-3-70b.json").read_text()})
    assert "quantised to 8 bits" in caught.value.details[0]
    with pytest.raises(UsageError, match="needs a GPU, and profile cpu-x86_64 has none"):
        plans(profile="cpu-x86_64")
    with pytest.raises(UsageError, match=r"config\.json is not in the lock"):
        plans(facts={"model_type": "qwen2"})
    with pytest.raises(UsageError, match="the wheels hold no vllm"):
        plans(runtime="venv", wheels=(wheel("torch", "2.11.0"),))
    with pytest.raises(UsageError, match=r"--num-scheduler-steps, gone since 0\.10\.2"):
        plans(flags={"num-scheduler-steps": "4"})


def test_weights_larger_than_their_shape_are_counted() -> None:
    usual = plans(gpus=1)[0].needs.gpu_memory
    files = (LockedFile("model.safetensors", "1" * 64, WEIGHTS + (8 << 30)),)
    assert plans(gpus=1, files=files)[0].needs.gpu_memory - usual > 8 << 30


def test_a_driver_from_the_fingerprint_decides() -> None:
    old = lock(version="", image="registry/engine:latest")
    assert old.profile.gpu is not None
    known = dataclasses.replace(
        old.profile, gpu=dataclasses.replace(old.profile.gpu, min_driver="550.54.14"), sources={"fingerprint": "taken"}
    )
    assert engines.create("vllm").plans(dataclasses.replace(old, profile=known))[0].engine_version == "0.19.1"
    target = TargetTable(profile="h200-sxm", driver="580.95.05")
    newer = dataclasses.replace(old, profile=known, spec=dataclasses.replace(old.spec, target=target))
    assert engines.create("vllm").plans(newer)[0].engine_version == "0.33.0"
    with pytest.raises(UsageError, match="cannot serve") as caught:
        engines.create("vllm").plans(dataclasses.replace(lock(), profile=known))
    assert "needs driver 580.65.06, and the host has 550.54.14" in caught.value.details[0]


# --- SGLang, TensorRT-LLM ----------------------------------------------------------------------------------------


def test_sglang() -> None:
    made = plans("sglang", workload="agents", gpus=1)[0]
    assert made.argv[:5] == ("{python}", "-m", "sglang.launch_server", "--model-path", "{model}")
    assert (value(made, "--schedule-policy"), made.readiness.health_path) == ("lpm", "/ready")
    assert "--enable-metrics" in made.argv
    assert 0.8 < float(value(made, "--mem-fraction-static")) < 0.95


def test_tensorrt_llm_serves_checkpoints_from_its_image() -> None:
    made = plans("tensorrt-llm", profile="h100-sxm", gpus=2, concurrency=1)[0]
    assert made.argv[:3] == ("trtllm-serve", "serve", "{model}")
    assert (value(made, "--backend"), value(made, "--tp_size"), made.ipc_host) == ("pytorch", "2", True)
    assert (
        engines.create("tensorrt-llm").config_files(lock("tensorrt-llm"))["trtllm.yaml"]
        == b"return_perf_metrics: true\n"
    )
    with pytest.raises(UsageError, match=r"rank0\.engine is a prebuilt engine"):
        plans("tensorrt-llm", files=(LockedFile("rank0.engine", "1" * 64, 9),))
    with pytest.raises(UsageError, match="from its image only"):
        plans("tensorrt-llm", runtime="venv", wheels=(wheel("torch", "2.11.0"),))


# --- Ollama ------------------------------------------------------------------------------------------------------

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


# --- auto --------------------------------------------------------------------------------------------------------


def test_auto_is_what_the_bundle_holds() -> None:
    made = lock("auto", version="")
    assert (held(made), choose(made)) == (("vllm",), "vllm")
    found = engines.create("auto").plans(made)
    assert {plan.engine for plan in found} == {"vllm"}
    engine = engines.create("auto")
    assert isinstance(engine, Chooses)
    plan = engine.choice(made)
    assert plan is not None
    assert "in the bundle: vllm" in plan.path


def test_auto_chooses_by_workload_when_the_bundle_holds_several() -> None:
    several = (wheel("vllm", "0.24.0"), wheel("sglang", "0.5.23"))
    assert choose(lock("auto", runtime="venv", wheels=several, workload="agents")) == "sglang"
    assert choose(lock("auto", runtime="venv", wheels=several, workload="batch")) == "vllm"


def test_auto_needs_an_engine_it_recognises() -> None:
    with pytest.raises(UsageError, match="neither the image nor the wheels are recognised"):
        choose(lock("auto", image="company/inference:1"))
    assert held(lock("auto", image="ghcr.io/ggml-org/llama.cpp:server-cuda")) == ("llama.cpp",)
    assert held(lock("auto", image="nvcr.io/nvidia/tensorrt-llm/release:1.2.1")) == ("tensorrt-llm",)
