"""The engine, the layout and the flags for a model on a hardware."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from airbundle import profiles
from airbundle.choose import EnginePlan, Request, plan_engine
from airbundle_onsite.errors import UsageError

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
NEW, OLD = "580.65.06", "550.54.14"


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads((CONFIGS / f"{name}.json").read_text()), **changes}


def plan(
    model: str | dict[str, Any] = "qwen2.5-7b",
    profile: str = "h200-sxm",
    *,
    model_format: str = "safetensors",
    memory: int = 0,
    **wishes: Any,
) -> EnginePlan:
    given = {"context": 8192, "concurrency": 16, "driver": NEW, **wishes}
    hardware = profiles.load(profile)
    if memory:
        assert hardware.gpu is not None
        hardware = dataclasses.replace(hardware, gpu=dataclasses.replace(hardware.gpu, memory=memory))
    shape = config(model) if isinstance(model, str) else model
    return plan_engine(Request(**given), shape, hardware, model_format=model_format)


def statuses(made: EnginePlan) -> dict[str, str]:
    return {check.id: check.status for check in made.checks}


def rejected(made: EnginePlan) -> dict[str, str]:
    return {item.name: item.reason for item in made.rejected}


# --- which engine ------------------------------------------------------------------------------------------------


def test_the_path_and_why_the_others_lost() -> None:
    made = plan(concurrency=100)
    assert (made.engine, made.version, made.workload, made.verdict) == ("vllm", "0.33.0", "concurrent", "runnable")
    assert [step.partition(":")[0] for step in made.path] == [
        "workload",
        "order for it",
        "hardware and versions",
        "engine",
        "layout",
    ]
    assert rejected(made)["sglang"] == "vllm comes before it for this workload"
    assert rejected(made)["llama.cpp"] == "it reads gguf, and the weights are safetensors"


def test_the_bundle_decides_among_what_is_left() -> None:
    made = plan(workload="agents", bundle=("vllm", "tensorrt-llm"))
    assert made.engine == "vllm"
    assert rejected(made)["sglang"] == "the bundle does not hold it"
    assert "in the bundle: vllm, tensorrt-llm" in made.path
    with pytest.raises(UsageError, match="no engine is left") as caught:
        plan(bundle=("ollama",))
    assert "ollama: it reads gguf, and the weights are safetensors" in caught.value.details


def test_old_gpus_get_the_last_version_with_code_for_them() -> None:
    made = plan(profile="v100-32")
    assert (made.engine, made.version) == ("vllm", "0.19.1")
    assert made.value("--dtype") == "float16"
    assert rejected(made)["sglang"].startswith("version 0.5.23 holds code for 8.0")
    assert any("vLLM 0.33.0 is out: version 0.33.0 holds code for 7.5" in step for step in made.path)
    assert {"trap.volta-v1", "trap.volta-no-bf16"} <= set(statuses(made))


def test_an_old_driver_gets_the_last_version_for_its_cuda() -> None:
    made = plan(profile="a100-80-sxm", driver=OLD)
    assert made.version == "0.19.1"
    assert any("needs driver 580.65.06, and the host has 550.54.14 (CUDA 12.4)" in step for step in made.path)


def test_a_driver_that_is_only_promised_is_a_warning() -> None:
    made = plan(profile="a100-80-sxm", driver="")
    check = next(check for check in made.checks if check.id == "trap.driver-promised-below-cuda")
    assert (made.version, check.status, check.expected) == ("0.33.0", "warn", "driver 580.65.06 or newer")


def test_a_named_engine_is_taken_and_what_is_against_it_fails() -> None:
    made = plan(profile="t4", engine="sglang", context=2048, concurrency=1)
    assert made.engine == "sglang"
    assert statuses(made)["plan.engine"] == statuses(made)["trap.sglang-turing"] == "fail"
    with pytest.raises(UsageError, match=r"no engine 'vlm' \(did you mean 'vllm'"):
        plan(engine="vlm")


def test_quantisation_by_capability() -> None:
    with pytest.raises(UsageError) as caught:
        plan("qwen2.5-72b-awq", "v100-32")
    assert caught.value.details[0] == "vllm: awq weights need compute capability 7.5, and the GPU has 7.0"
    emulated = plan(config("qwen2.5-7b", quantization_config={"quant_method": "fp8"}), "a100-80-sxm")
    assert statuses(emulated)["trap.fp8-weights-emulated"] == "warn"
    native = plan(config("qwen2.5-7b", quantization_config={"quant_method": "fp8"}), "h100-sxm")
    assert "trap.fp8-weights-emulated" not in statuses(native)


def test_gguf_on_a_cpu_and_without_a_gpu() -> None:
    made = plan(profile="cpu-x86_64", model_format="gguf", context=2048, concurrency=2)
    assert (made.engine, made.workload, made.layout.gpus, made.memory) == ("llama.cpp", "cpu", 1, None)


# --- how it is spread --------------------------------------------------------------------------------------------


def test_throughput_gets_copies_and_latency_shared_layers() -> None:
    many = plan(profile="h100-sxm", gpus=4, concurrency=100)
    few = plan(profile="h100-sxm", gpus=4, concurrency=1)
    assert (many.layout.tensor, many.layout.copies) == (1, 4)
    assert (few.layout.tensor, few.layout.copies) == (4, 1)
    assert many.value("--data-parallel-size") == few.value("--tensor-parallel-size") == "4"


def test_without_nvlink_stages_come_before_shared_layers() -> None:
    made = plan("qwen2.5-72b-awq", "l20", gpus=2)
    assert (made.layout.tensor, made.layout.pipeline) == (1, 2)
    assert (made.value("--pipeline-parallel-size"), made.value("--tensor-parallel-size")) == ("2", None)


def test_sizes_that_heads_cannot_be_divided_by_are_out() -> None:
    made = plan(profile="h100-sxm", gpus=8, concurrency=1)
    assert made.layout.tensor == 4
    assert rejected(made)["tensor parallel 8"] == "28 attention heads are not divisible by 8"


def test_widths_and_groups_of_quantised_weights_count_too() -> None:
    odd = config("qwen2.5-72b-awq", intermediate_size=29568)  # the width before it was padded for quantised weights
    made = plan(odd, "a100-80-sxm", gpus=2, concurrency=1)
    assert made.layout.tensor == 1
    assert "no multiple of the quantisation's group of 128" in rejected(made)["tensor parallel 2"]


def test_a_model_of_experts_is_not_copied() -> None:
    made = plan("gpt-oss-120b", "h100-sxm", gpus=8)
    assert (made.layout.tensor, made.layout.copies) == (8, 1)
    assert statuses(made)["trap.harmony-vocabulary"] == "warn"


# --- what fits ---------------------------------------------------------------------------------------------------


def test_what_does_not_fit_says_what_would() -> None:
    made = plan("llama-3-70b", "h200-sxm")
    check = next(check for check in made.checks if check.id == "plan.memory")
    assert (made.verdict, check.status) == ("impossible", "fail")
    assert "tensor parallel 2" in check.remedy
    assert "quantised to 8 bits" in check.remedy


@pytest.mark.parametrize("profile", ["a100-40-pcie", "rtx-4090", "h100-sxm", "v100-32"])
@pytest.mark.parametrize("concurrency", [4, 16])
def test_the_memory_that_is_asked_for_suffices(profile: str, concurrency: int) -> None:
    made = plan(profile=profile, concurrency=concurrency)
    assert made.verdict == "runnable"
    assert made.memory is not None
    assert made.needed <= made.memory.total
    again = plan(profile=profile, concurrency=concurrency, memory=made.needed, utilization=made.memory.utilization)
    assert again.verdict == "runnable"


def test_an_8_bit_cache_only_where_it_is_needed_and_the_gpu_has_it() -> None:
    roomy, short = plan(profile="l40s", context=8192), plan(profile="l40s", context=32768, concurrency=20)
    assert (roomy.kv_dtype, roomy.value("--kv-cache-dtype")) == ("bf16", None)
    assert (short.kv_dtype, short.value("--kv-cache-dtype")) == ("fp8", "fp8")
    ampere = plan(profile="a100-40-pcie", gpus=1, context=32768, concurrency=20)
    assert (ampere.kv_dtype, ampere.verdict) == ("bf16", "tight")


def test_the_context_is_always_said_and_never_beyond_the_model() -> None:
    assert plan(context=4096).value("--max-model-len") == "4096"
    beyond = plan(context=131072, concurrency=1)
    assert statuses(beyond)["trap.context-beyond-native"] == "fail"


def test_requests_of_usual_length_need_less_than_full_ones() -> None:
    full = plan(profile="a100-40-pcie", gpus=1, context=32768, concurrency=30)
    usual = plan(profile="a100-40-pcie", gpus=1, context=32768, concurrency=30, typical=1536)
    assert (full.verdict, usual.verdict) == ("tight", "runnable")


# --- flags -------------------------------------------------------------------------------------------------------


def test_every_flag_has_a_reason() -> None:
    for flag in plan(gpus=2, profile="h100-sxm").flags:
        assert flag.reason, flag.name


def test_offline_variables_are_always_there() -> None:
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        made = plan(engine=engine)
        assert (made.value("HF_HUB_OFFLINE"), made.value("TRANSFORMERS_OFFLINE")) == ("1", "1")


def test_several_gpus_get_shared_memory() -> None:
    two = plan(profile="h100-sxm", gpus=2, concurrency=1)
    assert int(two.value("shm") or 0) >= 8 << 30
    assert plan(engine="tensorrt-llm", profile="h100-sxm", gpus=2).value("ipc") == "host"


def test_the_spec_has_the_last_word_but_not_on_what_the_site_sets() -> None:
    made = plan(flags={"max-num-seqs": "7", "gpu-memory-utilization": "-", "seed": "1"})
    assert (made.value("--max-num-seqs"), made.value("--gpu-memory-utilization"), made.value("--seed")) == (
        "7",
        None,
        "1",
    )
    with pytest.raises(UsageError, match="--port is set by the site"):
        plan(flags={"port": "1"})


def test_a_flag_that_is_gone_names_version_and_replacement() -> None:
    with pytest.raises(
        UsageError, match=r"vllm 0\.33\.0 does not take: --swap-space, gone since 0\.19\.1: --kv-offloading"
    ):
        plan(flags={"swap-space": "0"})
    assert plan(flags={"swap-space": "0"}, engine="vllm", version="0.10.2").value("--swap-space") == "0"


def test_consumer_cards_without_peer_access() -> None:
    made = plan("qwen2.5-72b-awq", "rtx-4090", gpus=2)
    assert made.value("NCCL_P2P_DISABLE") == "1"
    assert plan("qwen2.5-72b-awq", "l20", gpus=2).value("NCCL_P2P_DISABLE") is None


# --- the first token ---------------------------------------------------------------------------------------------


def test_the_case_from_the_field() -> None:
    made = plan(
        config("qwen2.5-7b", max_position_embeddings=131072),
        "a100-40-pcie",
        gpus=4,
        context=131072,
        concurrency=100,
        typical=1536,
        prompt=1024,
        ttft_ms=200,
    )
    assert (made.engine, made.verdict, made.layout.tensor, made.layout.copies) == ("vllm", "runnable", 1, 4)
    first = next(check for check in made.checks if check.id == "plan.first-token")
    assert first.status == "warn"
    assert first.actual == "66 to 122 ms without waiting"
    assert "100 that arrive in one moment are through after" in first.summary


def test_a_first_token_out_of_reach_is_a_failure() -> None:
    made = plan("llama-3-70b", "a100-80-sxm", gpus=4, context=8192, prompt=7000, ttft_ms=100)
    assert statuses(made)["plan.first-token"] == "fail"
    assert "plan.first-token" not in statuses(plan())


def test_a_host_of_its_own_is_recognised_by_its_gpus_name() -> None:
    known = profiles.load("h200-sxm")
    assert known.gpu is not None
    host = dataclasses.replace(known, id="host-1", gpu=dataclasses.replace(known.gpu, names=(r"NVIDIA\ H200",)))
    made = plan_engine(Request(8192, 16, ttft_ms=500, driver=NEW), config("qwen2.5-7b"), host)
    assert statuses(made)["plan.first-token"] == "warn"
