"""A GGUF model that is larger than the profile's GPUs: divided with the host, its speed said, or refused by policy."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from airbundle.contract.lock import BundleLock, LockedFile
from airbundle.contract.spec import DowngradePolicy
from airbundle.engines import ollama
from airbundle.engines.ggufplans import shape_of
from airbundle.engines.llamacpp import create
from airbundle.gguf import GgufHeader, layer_facts, read_header, shape_facts
from airbundle.memory.kv import KvLayout
from airbundle.memory.offload import LayerSizes, Offload, fill_gpu, sizes_from, speed_text, token_rate
from airbundle_onsite.contract.fingerprint import Fingerprint, MemoryFacts
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.errors import UsageError
from airbundle_onsite.plan import choose_plan
from airbundle_onsite.smoke.patterns import scan_log
from unit.online.test_engine_llamacpp import lock, value
from unit.onsite.hosts import docker, gpus, h100, host, image, manifest

GIB = 1 << 30
LLAMA_70B = {
    "architecture": "llama",
    "block_count": "80",
    "embedding_length": "8192",
    "feed_forward_length": "28672",
    "attention.head_count": "64",
    "attention.head_count_kv": "8",
    "context_length": "131072",
    "vocabulary": "128256",
}
SIZE_70B = 42_520_395_584  # Q4_K_M as published


def large(
    profile: str,
    *,
    gpus: int = 0,
    size: int = SIZE_70B,
    policy: DowngradePolicy = "warn",
    context: int = 8192,
    facts: Mapping[str, str] = LLAMA_70B,
) -> BundleLock:
    made = lock("docker", (), profile=profile, facts=facts, gpus=gpus, context=context)
    serving = dataclasses.replace(made.spec.serving, downgrade=policy)
    model = dataclasses.replace(made.models[0], files=(LockedFile("w.gguf", "0" * 64, size),))
    return dataclasses.replace(made, models=(model,), spec=dataclasses.replace(made.spec, serving=serving))


def divided(made: BundleLock) -> list[LaunchPlan]:
    return [plan for plan in create().plans(made) if value(plan, "--gpu-layers") != "999"]


def layers(plan: LaunchPlan) -> int:
    return int(value(plan, "--gpu-layers"))


def test_70b_on_one_4090_is_divided_and_its_pace_said() -> None:
    """24 GB of 42.5 GB fit: a bit less than half of the layers, and the host's memory sets the pace."""
    (first, second) = divided(large("rtx-4090"))
    assert 38 <= layers(first) <= 44
    assert layers(second) > layers(first)  # one request with a small cache leaves room for more
    assert first.needs.gpus == 1 and first.needs.gpu_memory <= 24 * GIB
    rest = SIZE_70B - 24 * GIB
    assert rest < first.needs.memory < rest + 15 * GIB
    (reason,) = [flag.reason for flag in first.flags if flag.name == "--gpu-layers"]
    assert f"{layers(first)} of 81 layers on the GPU" in reason
    assert re.search(r"about [\d.]+ to [\d.]+ tokens a second for one request alone: slow", reason)
    assert first.id == f"gpu1-{layers(first)}l" and "--threads" in first.argv


def test_what_fits_is_not_divided() -> None:
    assert divided(large("rtx-4090", size=8 * GIB)) == []
    assert divided(large("h200-sxm")) == []
    assert divided(large("a100-80-sxm", gpus=2)) == []


def test_two_gpus_take_more_and_each_its_share() -> None:
    one, two = divided(large("rtx-4090", gpus=1))[0], divided(large("rtx-4090", gpus=2, size=70 * GIB))[0]
    assert two.needs.gpus == 2 and two.needs.gpu_memory <= 24 * GIB
    assert layers(two) > layers(one)


def test_the_policy_can_refuse() -> None:
    with pytest.raises(UsageError, match="does not fit 1 GPU of profile rtx-4090") as caught:
        create().plans(large("rtx-4090", policy="fail"))
    assert 'serving.downgrade is "fail"' in caught.value.summary and "smaller quantisation" in caught.value.remedy
    assert create().plans(large("h200-sxm", policy="fail"))


def test_gpus_that_hold_not_even_one_layer_are_refused() -> None:
    facts = {**LLAMA_70B, "block_count": "2"}
    with pytest.raises(UsageError, match="not even one layer fits"):
        create().plans(large("t4", size=200 * GIB, facts=facts))


def test_the_site_takes_the_divided_plan_on_that_gpu_and_the_whole_one_on_a_larger() -> None:
    plans = create().plans(large("rtx-4090"))
    bundle = manifest(*plans, runtime="docker", images=(image(),))
    engine = docker(runtimes=("nvidia",))

    def with_gpu(memory: int) -> Fingerprint:
        one = h100(capability="8.9", memory_total=memory, memory_free=memory)
        return host(gpu=gpus(one), docker=engine, memory=MemoryFacts(total=128 * GIB))

    small = with_gpu(24 * GIB)
    chosen, checks = choose_plan(bundle, small)
    assert chosen is not None and layers(chosen) == layers(divided(large("rtx-4090"))[0]), checks
    chosen, _ = choose_plan(bundle, with_gpu(96 * GIB))
    assert chosen is not None and value(chosen, "--gpu-layers") == "999"


def test_other_layers_than_planned_are_seen_in_the_log() -> None:
    plan = divided(large("rtx-4090"))[0]
    as_planned = f"load_tensors: offloaded {layers(plan)}/81 layers to GPU"
    assert {check.status for check in scan_log(plan, as_planned)} == {"pass"}
    found = {check.id: check for check in scan_log(plan, "load_tensors: offloaded 12/81 layers to GPU")}
    assert found["log.llama.offloaded-otherwise"].status == "warn"
    whole = create().plans(large("h200-sxm"))[0]
    assert "log.llama.offloaded-otherwise" not in {
        check.id for check in scan_log(whole, "load_tensors: offloaded 81/81 layers to GPU")
    }


def test_ollama_divides_by_itself_and_needs_what_it_then_takes() -> None:
    made = large("rtx-4090")
    image = dataclasses.replace(made.images[0], name="ollama/ollama:0.33.0")
    engine = dataclasses.replace(made.spec.engine, name="ollama")
    made = dataclasses.replace(made, images=(image,), spec=dataclasses.replace(made.spec, engine=engine))
    plans = ollama.create().plans(made)
    last = next(plan for plan in plans if plan.needs.gpus == 1 and plan.needs.gpu_memory <= 24 * GIB)
    assert last.needs.memory > SIZE_70B - 24 * GIB
    assert any("of 81 layers on the GPU" in flag.reason for flag in last.flags)


# --- by value ---------------------------------------------------------------------------------------------


def test_sizes_of_a_real_file_are_those_of_its_tensors(smollm2_gguf: Path) -> None:
    header = read_header(smollm2_gguf)
    facts = {**shape_facts(header.metadata), **layer_facts(header)}
    shape = shape_of(facts)
    assert shape is not None and shape.layers == 30
    sizes = sizes_from(facts, shape, smollm2_gguf.stat().st_size)
    tied = sizes.embedding  # SmolLM2 has no output layer of its own: the embedding is there twice
    assert sum(sizes.layers) + sizes.output == sum(header.sizes.values())
    assert sizes.output > tied and len(set(sizes.layers)) <= 3
    roughly = sizes_from(shape_facts(header.metadata), shape, smollm2_gguf.stat().st_size)
    assert sum(roughly.layers) == pytest.approx(sum(sizes.layers), rel=0.35)


def test_no_sizes_from_a_file_of_several_or_of_types_unknown() -> None:
    sizes = {"blk.0.a": 5, "token_embd.weight": 3, "output.weight": 4, "output_norm.weight": 1}
    facts = layer_facts(GgufHeader(3, 4, 0, {}, {}, sizes))
    assert facts == {"layer_bytes": "5", "embedding_bytes": "3", "output_bytes": "5"}
    assert layer_facts(GgufHeader(3, 4, 0, {"split.count": 2}, {}, sizes)) == {}
    assert layer_facts(GgufHeader(3, 4, 0, {}, {}, {**sizes, "blk.0.b": 0})) == {}
    assert layer_facts(GgufHeader(3, 4, 0, {}, {}, {**sizes, "blk.2.a": 1})) == {}


def test_filling_begins_with_the_last_layer_and_the_output() -> None:
    shape = shape_of(LLAMA_70B)
    assert shape is not None
    sizes = LayerSizes((100,) * 80, 7, 50)
    none = KvLayout("bf16", paging="slots")
    cache = fill_gpu(shape, sizes, 1, 1, 1e18, none)
    assert (cache.layers, cache.most, cache.on_host) == (81, 81, 7)
    assert fill_gpu(shape, sizes, 1, 1, 0, none).layers == 0
    some = fill_gpu(shape, sizes, 1, 1, cache.on_gpu / 2, none)
    assert some.on_gpu <= cache.on_gpu / 2 and some.on_gpu + some.on_host == cache.on_gpu + 7


def test_the_pace_by_what_is_read_for_a_token() -> None:
    shape = shape_of(LLAMA_70B)
    assert shape is not None
    slow, fast = token_rate(Offload(40, 81, 20 * 10**9, 20 * 10**9), shape, 10**12)
    assert slow == pytest.approx(1 / (20e9 / 0.7e12 + 20e9 / 40e9)) and fast == pytest.approx(
        1 / (20e9 / 0.7e12 + 20e9 / 200e9)
    )
    experts = shape_of(
        {**LLAMA_70B, "expert_count": "64", "expert_used_count": "4", "expert_feed_forward_length": "2048"}
    )
    assert experts is not None
    assert token_rate(Offload(40, 81, 0, 20 * 10**9), experts, 10**12)[0] > 3 * slow
    assert speed_text((25.0, 90.0)).endswith("as fast as people read, and faster")
    assert (
        speed_text((0.5, 2.0)) == "about 0.5 to 2 tokens a second for one request alone: for work that nobody waits for"
    )
