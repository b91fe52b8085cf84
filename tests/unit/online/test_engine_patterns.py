"""What engines' logs say, read by the site with the patterns of the facts; logs as vLLM 0.24.0 wrote them on H200."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airbundle import profiles
from airbundle.choose import Request, plan_engine
from airbundle.engines.facts import engine_facts, known_engines
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.launch import LaunchPlan, LogPattern
from airbundle_onsite.smoke.patterns import scan_log

GOLDEN = Path(__file__).parents[2] / "golden"
LOGS = GOLDEN / "engines" / "logs"


def scan(log: str, patterns: tuple[LogPattern, ...]) -> dict[str, CheckResult]:
    plan = LaunchPlan(
        id="x", engine="e", engine_version="1", runtime="venv", argv=("x",), model="m", log_patterns=patterns
    )
    return {check.id.removeprefix("log."): check for check in scan_log(plan, log)}


def facts_of(name: str) -> dict[str, str]:
    log = (LOGS / f"vllm-0.24.0-h200-{name}.log").read_text()
    found = scan(log, engine_facts("vllm").log_patterns("0.24.0"))
    assert {check.status for check in found.values()} == {"pass"}
    return {identifier: check.actual for identifier, check in found.items()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "qwen7b",
            {
                "vllm.version": "version=0.24.0",
                "vllm.attention": "backend=FLASH_ATTN",
                "vllm.flash-attention": "version=3",
                "vllm.dtype": "dtype=bfloat16, context=4096",
                "vllm.weights": "gib=14.29",
                "vllm.kv-memory": "gib=108.57",
                "vllm.kv-tokens": "tokens=2,032,976",
            },
        ),
        ("qwen7b-fp8kv", {"vllm.kv-dtype": "dtype=fp8", "vllm.kv-tokens": "tokens=4,064,800"}),
        ("llama8b", {"vllm.weights": "gib=14.96", "vllm.kv-tokens": "tokens=891,760"}),
        ("dsv2lite", {"vllm.attention": "backend=FLASH_ATTN_MLA", "vllm.kv-memory": "gib=94.5"}),
        ("llama70b-tp2", {"vllm.weights": "gib=65.71", "vllm.allreduce": "backends='CUSTOM', 'PYNCCL'"}),
    ],
)
def test_facts_of_a_real_log(name: str, expected: dict[str, str]) -> None:
    found = facts_of(name)
    assert {key: found.get(key) for key in expected} == expected


def expectations(name: str, **wishes: object) -> tuple[LogPattern, ...]:
    config = json.loads((GOLDEN / "configs" / f"{name}.json").read_text())
    given: dict[str, object] = {"context": 4096, "concurrency": 8, "engine": "vllm", "version": "0.24.0", **wishes}
    return plan_engine(Request(**given), config, profiles.load("h200-sxm")).expectations  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("log", "model", "context"),
    [("qwen7b", "qwen2.5-7b", 4096), ("llama8b", "llama-3-8b", 4096), ("dsv2lite", "deepseek-v2-lite", 4096)],
)
def test_a_start_as_planned_meets_no_expectation(log: str, model: str, context: int) -> None:
    text = (LOGS / f"vllm-0.24.0-h200-{log}.log").read_text()
    patterns = expectations(model, context=context)
    assert {pattern.id for pattern in patterns} >= {"vllm.expected-attention", "vllm.expected-dtype"}
    assert scan(text, patterns) == {}


@pytest.mark.parametrize(
    ("old", "new", "identifier", "actual"),
    [
        ("Using FLASH_ATTN attention", "Using TRITON_ATTN attention", "vllm.expected-attention", "backend=TRITON_ATTN"),
        ("FlashAttention version 3", "FlashAttention version 2", "vllm.expected-flash-attention", "version=2"),
        ("dtype=torch.bfloat16", "dtype=torch.float16", "vllm.expected-dtype", "dtype=float16"),
        ("kv_cache_dtype=auto", "kv_cache_dtype=fp8", "vllm.expected-kv-dtype", "dtype=fp8"),
        ("max_seq_len=4096", "max_seq_len=2048", "vllm.expected-context", "context=2048"),
        ("2,032,976 tokens", "1,632,976 tokens", "vllm.expected-kv-tokens", "tokens=1,632,976"),
    ],
)
def test_a_silent_downgrade_is_told(old: str, new: str, identifier: str, actual: str) -> None:
    text = (LOGS / "vllm-0.24.0-h200-qwen7b.log").read_text()
    assert old in text
    found = scan(text.replace(old, new), expectations("qwen2.5-7b"))
    assert {key: (check.status, check.actual) for key, check in found.items()} == {identifier: ("warn", actual)}
    assert found[identifier].remedy


@pytest.mark.parametrize(
    ("line", "identifier", "status"),
    [
        ("Your device Tesla T4 (with compute capability 7.5) doesn't support torch.bfloat16. Falling back to "
         "torch.float16 for compatibility.", "vllm.dtype-changed", "warn"),
        ("Your GPU does not have native support for FP8 computation but FP8 quantization is being used.",
         "vllm.no-native-fp8", "warn"),
        ("CUDA error: no kernel image is available for execution on the device", "vllm.no-kernel", "fail"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.", "vllm.no-memory", "fail"),
        ("ValueError: To serve at least one request with the models's max seq len (131072), (7.00 GiB KV cache is "
         "needed, which is larger than the available KV cache memory (3.10 GiB).", "vllm.context-too-long", "fail"),
        ("ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored "
         "in KV cache (27952). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
         "initializing the engine.", "vllm.context-too-long", "fail"),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load the files", "vllm.wants-the-hub", "warn"),
        ("HTTPSConnectionPool(host='openaipublic.blob.core.windows.net', port=443): Max retries exceeded with url: "
         "/encodings/o200k_base.tiktoken (Failed to resolve 'openaipublic.blob.core.windows.net')",
         "vllm.wants-the-hub", "warn"),
        ("Failed to initialize NVML: Unknown Error", "vllm.gpu-lost", "fail"),
        ("ValueError: The quantization method awq is not supported for the current GPU. Minimum capability: 75. "
         "Current capability: 70.", "vllm.capability", "fail"),
        ("unable to open shared memory object </torch_1_2_3> in read-write mode", "vllm.shm", "fail"),
    ],
)  # fmt: skip
def test_lines_of_trouble(line: str, identifier: str, status: str) -> None:
    found = scan(line, engine_facts("vllm").log_patterns("0.24.0"))
    assert {key: check.status for key, check in found.items()} == {identifier: status}


def test_a_context_that_does_not_fit_names_the_setting_and_both_figures() -> None:
    line = (
        "To serve at least one request with the models's max seq len (131072), (24.00 GiB KV cache is needed, which "
        "is larger than the available KV cache memory (9.61 GiB)."
    )
    found = scan(line, engine_facts("vllm").log_patterns("0.24.0"))["vllm.context-too-long"]
    assert found.actual == "wanted=131072, needed=24.00, free=9.61"
    assert "serving.context" in found.remedy


def test_policy_makes_a_silent_downgrade_a_failure() -> None:
    strict = engine_facts("vllm").log_patterns("0.33.0", policy="fail")
    line = "NVFP4 linear falling back to the slow and unoptimized path"
    assert scan(line, strict)["vllm.nvfp4-slow"].status == "fail"
    assert scan("Model loading took 1.0 GiB", strict)["vllm.weights"].status == "pass"


@pytest.mark.parametrize(
    ("line", "identifier", "actual"),
    [
        ("Attention backend not specified. Use fa3 backend by default.", "sglang.attention", "backend=fa3"),
        ("max_total_num_tokens=1234567, chunked_prefill_size=8192", "sglang.kv-tokens", "tokens=1234567"),
        ("The server is fired up and ready to roll!", "sglang.ready", ""),
        ("RuntimeError: unable to write to shared memory object", "sglang.shm", ""),
        ("RuntimeError: No CUDA GPUs are available", "sglang.gpu-lost", ""),
    ],
)
def test_sglang_says(line: str, identifier: str, actual: str) -> None:
    assert scan(line, engine_facts("sglang").log_patterns("0.5.23"))[identifier].actual == actual


def test_ollama_says_how_many_layers_are_on_the_gpu() -> None:
    found = scan("load_tensors: offloaded 20/31 layers to GPU", engine_facts("ollama").log_patterns("0.33.0"))
    assert found["ollama.offloaded"].actual == "offloaded=20, layers=31"


@pytest.mark.parametrize("name", known_engines())
def test_each_engines_facts_hold_together(name: str) -> None:
    facts = engine_facts(name)
    for version in facts.plan_for:
        assert facts.release(version).source
        patterns = facts.log_patterns(version)
        assert len({pattern.id for pattern in patterns}) == len(patterns)
        for pattern in patterns:
            re.compile(pattern.regex)
            assert pattern.level == "fact" or pattern.remedy, pattern.id
    assert all(row.source for row in (*facts.releases, *facts.kernels))
    assert facts.defaults


@pytest.mark.parametrize(
    ("engine", "version", "identifier"),
    [
        ("vllm", "0.24.0", "vllm.gpu-lost"),
        ("sglang", "0.5.23", "sglang.gpu-lost"),
        ("tensorrt-llm", "1.2", "trtllm.gpu-lost"),
        ("ollama", "0.33.0", "ollama.gpu-lost"),
    ],
)
def test_every_engine_s_way_of_saying_that_its_gpu_is_gone(engine: str, version: str, identifier: str) -> None:
    """What a container's engine says after systemd has reloaded its units; a start then restarts it."""
    for line in ("RuntimeError: CUDA error: unknown error", "CUDA error: no CUDA-capable device is detected"):
        found = scan(line, engine_facts(engine).log_patterns(version))[identifier]
        assert found.status == "fail" and "--start restarts it" in found.remedy
