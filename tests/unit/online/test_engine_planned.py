"""Launch plans of the engines that are chosen and sized, as the site will read them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from airbundle import engines
from airbundle.contract.lock import LockedFile, LockedModel
from airbundle.contract.spec import TargetTable
from airbundle.engines.lazy import plan_environment
from airbundle_onsite.contract.fingerprint import Gpu
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.errors import UsageError
from airbundle_onsite.plan import gpu_unfit
from parts.plans import BLOB, CONFIG, GOLDEN, WEIGHTS, lock, plans, value, wheel


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
